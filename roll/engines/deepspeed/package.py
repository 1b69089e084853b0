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


def start_engine(model: Any, optimizer: Any, settings: dict[str, Any]) -> Any:
    """DeepSpeed's engine. For stage 1 in 16 bits it has the optimizer of stage 2 without divided gradients.

    DeepSpeed would take its `BF16_Optimizer`, which asserts that the gradient is finite and not 0.
    """
    if settings["zero_optimization"]["stage"] != 1 or not settings["bf16"]["enabled"]:
        return deepspeed().initialize(model=model, optimizer=optimizer, config=settings)[0]
    runtime = deepspeed("runtime.engine")

    class StageOneEngine(runtime.DeepSpeedEngine):
        def _do_optimizer_sanity_check(self, _: Any) -> str:
            return runtime.ZERO_OPTIMIZATION

    config = deepspeed("runtime.config").DeepSpeedConfig(settings)
    return StageOneEngine(args=None, model=model, optimizer=optimizer, config=settings, config_class=config)
