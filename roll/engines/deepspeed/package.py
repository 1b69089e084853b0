"""DeepSpeed's package: supported releases, and its import."""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from roll.errors import ConfigError

RELEASE = "0.19"
"""Releases of this series are supported."""


def check_release(release: str | None) -> None:
    """Raise `ConfigError` if DeepSpeed is missing (None) or not a supported release."""
    fix = f"install deepspeed {RELEASE} with DS_BUILD_OPS=0"
    if release is None:
        raise ConfigError(f"actor_train: backend deepspeed needs a package that is not installed; {fix}")
    if release.split(".")[:2] != RELEASE.split("."):
        raise ConfigError(f"actor_train: backend deepspeed does not support this release (got {release}); {fix}")


def installed_release() -> str | None:
    """The installed release; None without one."""
    try:
        return version("deepspeed")
    except PackageNotFoundError:
        return None


def deepspeed(module: str = "") -> Any:
    """A module of DeepSpeed, which is installed only where this backend is used."""
    return importlib.import_module(f"deepspeed.{module}" if module else "deepspeed")
