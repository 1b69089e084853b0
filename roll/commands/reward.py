"""`roll reward`: training of a reward model on pairs, ratings, labels, or labels of steps."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from roll.commands import offline
from roll.commands.lifecycle import running
from roll.commands.offline import OfflineProcess, first_and_last, report_dropped
from roll.config.load import LoadedRun, dump
from roll.config.schema import Run
from roll.tracking.directory import RunDirectory
from roll.wiring.models import RunPaths
from roll.wiring.reward_models import (
    build_reward_checkpointer,
    build_reward_data,
    build_reward_engines,
    build_reward_loop,
    build_trainer_watch,
    reward_run,
    section_of,
)


class RewardCommand:
    """The command of reward training, which has one trainer and no generator."""

    name = "reward"
    section = "reward_training"
    title = "reward training"

    def prepare(self, run: Run) -> Run:
        return reward_run(run)

    def from_checkpoint(self, loaded: LoadedRun, path: Path, newest: Path) -> LoadedRun:
        """The checkpoint is the reward model to start from."""
        section = section_of(loaded.run).model_copy(update={"path": str(newest)})
        changed: dict[str, Any] = {"reward_training": section}
        return replace(loaded, run=loaded.run.model_copy(update=changed))

    async def train(self, process: OfflineProcess) -> int:
        run, directory = self.prepare(process.file), process.directory
        monitor = process.server.start()
        engines = build_reward_engines(run, RunPaths(directory=directory.path, resumed=process.origin is None))
        data = build_reward_data(run, engines.template)
        async with AsyncExitStack() as stack:
            watch = monitor.watch = stack.enter_context(build_trainer_watch(run, engines))
            watch.enter("start")
            await stack.enter_async_context(running(engines))
            if process.origin is not None:
                directory.begin(dump(process.file), process.origin)
            report_dropped(data, directory)
            journal, copy = await process.open_journal(stack, run)
            checkpointer = replace(build_reward_checkpointer(run, directory, engines, journal), on_saved=copy)
            state = await process.restore(checkpointer)
            services = process.services(stack, run, checkpointer, watch, state)
            return await process.run_loop(run, build_reward_loop(run, engines, data, services), services, state)

    def describe_result(self, directory: RunDirectory) -> list[str]:
        names = {"accuracy": "held-out accuracy", "calibration_error": "calibration error"}
        return first_and_last(directory, {f"reward_model/held_out_{name}": label for name, label in names.items()})


REWARD = RewardCommand()
resume = partial(offline.continue_directory, REWARD)


def reward(loaded: LoadedRun, *, overwrite: bool, resume: bool = False, overrides: Sequence[str] = ()) -> bool:
    """Train the reward model; it is written to `<run directory>-reward/model`. False if an interrupt ended it."""
    return offline.start(REWARD, loaded, overwrite=overwrite, resume=resume, overrides=overrides)
