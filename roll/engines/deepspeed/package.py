"""DeepSpeed's package: supported releases, and its import, which needs some settings of the process."""

from __future__ import annotations

import importlib
import logging
import os
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
import torch.distributed as dist

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


def join(device: torch.device) -> None:
    """Let DeepSpeed use the process group that this process has joined."""
    check_release(installed_release())
    os.environ["DS_ACCELERATOR"] = device.type
    os.environ["LOCAL_RANK"] = str(device.index or 0)
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    package, comm = deepspeed(), deepspeed("comm")
    for name in ("deepspeed_shm_comm", "shm_comm"):  # gloo instead of operations that a C++ compiler would have to build
        if name in package.ops.__compatible_ops__:
            package.ops.__compatible_ops__[name] = False
    if not comm.is_initialized():
        comm.init_distributed(dist.get_backend(), auto_mpi_discovery=False)


def leave() -> None:
    """Forget the process group, before it is destroyed."""
    comm = deepspeed("comm")
    if comm.is_initialized():
        deepspeed("utils.groups")._release_process_group_references(group=None)
    comm.comm.cdb = None
