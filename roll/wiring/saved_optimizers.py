"""Checks, before processes start, that the trainers of a resumed run can read the state of their optimizers."""

from __future__ import annotations

from pathlib import Path

from roll.config.schema import Optimizer, Run
from roll.errors import ConfigError
from roll.pipelines.model_folder import policy_folder
from roll.weights.optimizer_state import CUSTOM_STATE, check_optimizer_state
from roll.wiring.models import per_policy_runs


def check_saved_optimizers(run: Run, checkpoint: Path) -> None:
    """Raise `ConfigError` if the state of an optimizer in a checkpoint is missing, or of another optimizer."""
    for policy, each in per_policy_runs(run).items():
        _check(policy_folder(checkpoint, policy), each.actor_train.optimizer)
    if (checkpoint / "critic").is_dir():
        _check(checkpoint / "critic", run.critic.optimizer)


def _check(folder: Path, optimizer: Optimizer) -> None:
    if optimizer.custom is None:
        check_optimizer_state(folder, optimizer.kind)
    elif not (folder / CUSTOM_STATE).is_file():
        raise ConfigError(
            f"{folder / CUSTOM_STATE}: no such file; resume with the optimizer that the run was started with"
        )
