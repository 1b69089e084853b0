"""Environment variables that configure Ray in this process and its children; set before Ray is imported."""

from __future__ import annotations

import os

_DEFAULTS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no usage reports
    "RAY_ENABLE_AUTO_CONNECT": "0",  # a call after the end starts no second cluster
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a worker sees the GPUs that its configuration names
    "RAY_DEDUP_LOGS_SKIP_REGEX": "(?s).*",  # `WorkerDied` reports a worker's end instead
}


def set_ray_environment() -> None:
    """Set the defaults; values that the user has set are kept."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
