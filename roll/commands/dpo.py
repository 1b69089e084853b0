"""`roll dpo`: preference optimisation on pairs of responses or on labelled ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

from roll.commands import offline
from roll.commands.offline import OfflineParts, first_and_last
from roll.commands.train import REFERENCE
from roll.config.load import LoadedRun
from roll.config.schema import Run
from roll.pipelines.checkpointer import Checkpointer
from roll.pipelines.dpo import DpoLoop
from roll.rollout.resume import ResumeState
from roll.tracking.directory import RunDirectory
from roll.tracking.log import announce
from roll.wiring.data import Data
from roll.wiring.models import Roles
from roll.wiring.preferences import (
    PreferenceData,
    PreferenceScorers,
    build_dpo_loop,
    build_preferences,
    build_scorers,
    preference_run,
)
from roll.wiring.run import RunServices


class DpoCommand:
    """`OfflineCommand` of preference optimisation."""

    section = "dpo"
    title = "preference optimisation"

    def prepare(self, run: Run) -> Run:
        return preference_run(run)

    def read(self, run: Run, roles: Roles, tasks: Data) -> PreferenceData:
        return build_preferences(run, roles.template)

    async def score(self, parts: OfflineParts, checkpointer: Checkpointer) -> PreferenceScorers:
        """Saves the reference, or the logprobs of one."""
        run, models = parts.run, parts.roles.first.models
        _report_dropped(parts.examples, parts.directory)
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


def _report_dropped(data: PreferenceData, directory: RunDirectory) -> None:
    """Print how many rows are used, and list the others in the run directory."""
    lines = [json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in data.dropped]
    (directory.path / "dropped.jsonl").write_text("".join(lines), encoding="utf-8", errors="backslashreplace")
    held_out = f", {len(data.held_out)} held out" if data.held_out else ""
    listed = f"; {len(lines)} of {data.num_read} rows dropped, listed in dropped.jsonl" if lines else ""
    announce(f"preferences: {len(data.examples)} examples{held_out}{listed}")
