"""Reinforcement learning for large language models, after pre-training."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roll.api import (
        ConfigError,
        Evaluation,
        LoadedRun,
        Result,
        RollError,
        RunStopped,
        Training,
        WorkerDied,
        evaluate,
        load,
        metrics,
        metrics_frame,
        resume,
        samples,
        samples_frame,
        start,
        train,
    )

__version__ = "0.1.0"
__all__ = [
    "ConfigError",
    "Evaluation",
    "LoadedRun",
    "Result",
    "RollError",
    "RunStopped",
    "Training",
    "WorkerDied",
    "evaluate",
    "load",
    "metrics",
    "metrics_frame",
    "resume",
    "samples",
    "samples_frame",
    "start",
    "train",
]

if not TYPE_CHECKING:  # a type checker reports unknown names itself

    def __getattr__(name: str) -> Any:
        """The names of `roll.api`, imported on first use: `import roll` stays fast."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from roll import api

        return getattr(api, name)
