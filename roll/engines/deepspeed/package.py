"""DeepSpeed's package: the check of its release, and its import."""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from roll.config.deepspeed import release_fault
from roll.errors import ConfigError


def check_package() -> None:
    """Raise `ConfigError` if DeepSpeed is missing or not a supported release."""
    try:
        release = version("deepspeed")
    except PackageNotFoundError:
        release = None
    if fault := release_fault(release):
        raise ConfigError(f"actor_train: backend deepspeed {fault}")


def deepspeed(module: str = "") -> Any:
    """A module of DeepSpeed, which is installed only where this backend is used."""
    return importlib.import_module(f"deepspeed.{module}" if module else "deepspeed")
