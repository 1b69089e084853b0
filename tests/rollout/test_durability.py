"""What has to be on the disk before something else may happen, looked at from outside at that very moment."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

from roll.algorithms.recipe import Objective
from roll.engines.fake import FakeGenerator, FakeTrainer
from roll.types import Batch
from tests.rollout.rig import Rig, Setting


def durable(path: Path, kind: str) -> list[int]:
    """The steps of all events of this kind that would survive a power cut now."""
    query = "SELECT step FROM events WHERE kind = ? AND id <= (SELECT position FROM durable) ORDER BY id"
    with closing(sqlite3.connect(path / "journal.db")) as journal:
        return [step for (step,) in journal.execute(query, (kind,))]


def test_the_groups_of_a_step_are_on_disk_before_its_update(tmp_path: Path) -> None:
    seen: list[list[int]] = []

    class Looking(FakeTrainer):
        async def update(self, batch: Batch, objective: Objective) -> dict[str, float]:
            seen.append(durable(tmp_path, "StepStarted"))
            return await super().update(batch, objective)

    with closing(Rig(tmp_path, Setting(steps=3, num_slots=8), trainer=Looking())) as rig:
        asyncio.run(rig.run())
    assert seen == [[1], [1, 2], [1, 2, 3]]


def test_a_version_is_on_disk_before_anything_is_sampled_with_it(tmp_path: Path) -> None:
    seen: list[tuple[int, list[int]]] = []

    class Looking(FakeGenerator):
        async def resume(self, version: int) -> None:
            seen.append((version, durable(tmp_path, "WeightsPublished")))
            await super().resume(version)

    with closing(Rig(tmp_path, Setting(steps=2, num_slots=8), make_engine=lambda **_: Looking())) as rig:
        asyncio.run(rig.run())
    assert seen == [(0, [0]), (1, [0, 1]), (2, [0, 1, 2])]
