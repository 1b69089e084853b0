"""How Ray behaves in this process and in those it starts: said through the environment, before Ray is imported."""

from __future__ import annotations

import os

_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nobody is told about the run
    "RAY_ENABLE_AUTO_CONNECT": "0",  # a call after the end starts no second cluster
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a worker sees the GPUs that its configuration names
    "RAY_DEDUP_LOGS_SKIP_REGEX": "(?s).*",  # what Ray has to say of a worker's end is said by `WorkerDied`
}


def settle_ray() -> None:
    """Whatever the user has set stays."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
