"""`roll dpo`: preference optimisation on pairs of responses or on labelled ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from roll.commands import offline
from roll.commands.offline import OfflineParts, OfflineProcess, first_and_last, report_dropped, train_policy
from roll.commands.train import REFERENCE, from_checkpoint
from roll.config.load import LoadedRun
from roll.config.schema import Run
from roll.data.preference_rows import PreferenceExample
from roll.pipelines.checkpointer import Checkpointer
from roll.pipelines.dpo import DpoLoop
from roll.rollout.resume import ResumeState
from roll.tracking.directory import RunDirectory
from roll.wiring.data import Data
from roll.wiring.examples import ExampleSets
from roll.wiring.models import Roles
from roll.wiring.preferences import (
    PreferenceScorers,
    build_dpo_loop,
    build_preferences,
    build_scorers,
    preference_run,
)
from roll.wiring.run import RunServices


class DpoCommand:
    """The command of preference optimisation."""

    name = section = "dpo"
    title = "preference optimisation"

    def prepare(self, run: Run) -> Run:
        return preference_run(run)

    def from_checkpoint(self, loaded: LoadedRun, path: Path, newest: Path) -> LoadedRun:
        return from_checkpoint(loaded, path, newest)

    async def train(self, process: OfflineProcess) -> int:
        return await train_policy(self, self.prepare(process.file), process)

    def read(self, run: Run, roles: Roles, tasks: Data) -> ExampleSets[PreferenceExample]:
        return build_preferences(run, roles.template)

    async def score(self, parts: OfflineParts, checkpointer: Checkpointer) -> PreferenceScorers:
        """Saves the reference, or the logprobs of one."""
        run, models = parts.run, parts.roles.first.models
        report_dropped(parts.examples, parts.directory)
        if not parts.resumed and models.reference is not None and run.reference.path is None:
            await checkpointer.export(REFERENCE)  # a resumed run no longer has its initial weights
        return await build_scorers(run, parts.roles, parts.examples, parts.directory.path, resumed=parts.resumed)

    def build_loop(
        self, parts: OfflineParts, scores: PreferenceScorers, services: RunServices, resume: ResumeState | None
    ) -> DpoLoop:
        return build_dpo_loop(parts.run, parts.roles, (parts.tasks, parts.examples), scores, services, resume)

    def describe_result(self, directory: RunDirectory) -> list[str]:
        names = {"preference/held_out_accuracy": "held-out preferences", "validation/accuracy": "held-out tasks"}
        return first_and_last(directory, names)


DPO = DpoCommand()
resume = partial(offline.continue_directory, DPO)


def dpo(loaded: LoadedRun, *, overwrite: bool, resume: bool = False, overrides: Sequence[str] = ()) -> bool:
    """Train on preferences; the model is written to `<run directory>-dpo/model`. False if an interrupt ended it."""
    return offline.start(DPO, loaded, overwrite=overwrite, resume=resume, overrides=overrides)
