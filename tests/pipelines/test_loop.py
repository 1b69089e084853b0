"""The loop on fake engines: staleness, order, refused updates and early stops."""

import asyncio
import math
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from roll.algorithms.recipe import Objective
from roll.engines.fake import FakeGenerator, FakeTrainer
from roll.errors import RunStopped
from roll.journal.events import (
    CheckpointSaved,
    Event,
    GroupAdmitted,
    GroupFailed,
    SlotsReleased,
    StepStarted,
    WeightsPublished,
    WeightsUpdated,
)
from roll.types import Batch, Digest
from tests.rollout.rig import GROUP_SIZE, Rig, Setting, keys_of

STRAGGLERS = frozenset[int]().union(*(keys_of(f"t{number}", tries=3) for number in range(0, 30, 7)))


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("adversary", ["none", "stragglers", "failures", "both"])
def test_no_group_is_trained_on_past_its_staleness_bound(staleness: float, adversary: str, tmp_path: Path) -> None:
    setting = Setting(
        steps=12,
        num_slots=math.floor((staleness + 1) * 4),
        reward={"refuse": "01"} if adversary in ("failures", "both") else {},
        max_retries=0,
        stragglers=STRAGGLERS if adversary in ("stragglers", "both") else frozenset(),
        generators=2,
    )
    with closing(Rig(tmp_path, setting)) as rig:
        asyncio.run(rig.run())
        births = {event.group: event.birth for event in rig.events(GroupAdmitted)}
        assert bool(rig.events(GroupFailed)) == (adversary in ("failures", "both"))
        ages = [[event.step - 1 - births[group] for group in event.groups] for event in rig.events(StepStarted)]
        assert all(0 <= age <= math.ceil(staleness) for step in ages for age in step)
        for step, batch in enumerate(rig.trainer.batches, 1):
            oldest = step - 1 - int(batch.versions[batch.trained].min())
            assert oldest <= math.ceil(staleness) and rig.metrics[step]["staleness/max"] == oldest
        if staleness == 0.5:
            assert all(sum(age > 0 for age in step) <= 2 for step in ages), "half of the groups at most"
        assert (max(age for step in ages for age in step) > 0) == (staleness > 0), "sampling runs ahead"


def test_groups_are_trained_in_the_order_of_their_admission(tmp_path: Path) -> None:
    with closing(Rig(tmp_path, Setting(num_slots=12, stragglers=STRAGGLERS, reward={"refuse": "0"}))) as rig:
        asyncio.run(rig.run())
        taken = [group for event in rig.events(StepStarted) for group in event.groups]
        assert taken == sorted(set(taken)) and len(taken) == 8 * 4
        assert all(len(batch.rewards) == 4 * GROUP_SIZE for batch in rig.trainer.batches)


def test_a_version_is_published_after_every_step_and_slots_free_only_then(tmp_path: Path) -> None:
    with closing(Rig(tmp_path, Setting(steps=3))) as rig:
        asyncio.run(rig.run())
        assert [(event.version, event.step) for event in rig.events(WeightsPublished)] == [
            (0, 0),
            (1, 1),
            (2, 2),
            (3, 3),
        ]
        kinds = (StepStarted, WeightsUpdated, WeightsPublished, SlotsReleased, CheckpointSaved)
        recorded = [type(event).__name__ for event in rig.events(Event) if isinstance(event, kinds)]
        step = ["StepStarted", "WeightsUpdated", "WeightsPublished", "SlotsReleased"]
        assert recorded == [
            "WeightsPublished",
            *step,
            *step,
            "StepStarted",
            "WeightsUpdated",
            "WeightsPublished",
            "CheckpointSaved",
            "SlotsReleased",
        ]


def test_a_generator_with_other_weights_stops_the_run(tmp_path: Path) -> None:
    class Deaf(FakeGenerator):
        """Reports version 0 after every transfer."""

        async def receive(self, version: int) -> Digest:
            await super().receive(version)
            return Digest({"fake": (0, 0)})

    with closing(Rig(tmp_path, Setting(), make_engine=lambda **_: Deaf())) as rig:
        with pytest.raises(RunStopped, match="version 1: generator 0 does not hold the trainer's weights"):
            asyncio.run(rig.run())
        assert [event.version for event in rig.events(WeightsPublished)] == [0]


def test_refused_updates_are_reported_and_saved_and_too_many_in_a_row_stop_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Refusing(FakeTrainer):
        """Refuses some updates by number."""

        refused = frozenset({2, 4, 5})

        async def update(self, batch: Batch, objective: Objective) -> dict[str, float]:
            metrics = await super().update(batch, objective)
            return {**metrics, "loss/refused": float(len(self.batches) in self.refused)}

    with closing(Rig(tmp_path, Setting(), trainer=Refusing())) as rig:
        with pytest.raises(RunStopped, match="step 5: 2 updates in a row"):
            asyncio.run(rig.run())
        assert sorted(path.name for path in (tmp_path / "refused").iterdir()) == ["step-2.pt", "step-4.pt", "step-5.pt"]
        notices = [line.partition(",")[0] for line in capsys.readouterr().out.splitlines() if "refused" in line]
        assert notices == [f"step {step}: an update was refused" for step in (2, 4)]


def test_a_requested_stop_finishes_the_step_and_checkpoints(tmp_path: Path) -> None:
    class Stopping(Rig):
        """Asks to stop once step 2 is reported."""

        def __init__(self, path: Path, setting: Setting) -> None:
            super().__init__(path, setting)
            self.loop.report = self.stop

        def stop(self, step: int, metrics: Mapping[str, Any]) -> None:
            self.asked_to_stop = step == 2

    with closing(Stopping(tmp_path, Setting())) as rig:
        assert asyncio.run(rig.run()) == 3
        assert [event.step for event in rig.events(CheckpointSaved)] == [3]
        assert (tmp_path / "checkpoints" / "step-3" / "state.json").is_file()


def test_a_long_wait_is_reported_with_its_reason(tmp_path: Path) -> None:
    rig = Rig(tmp_path, Setting())
    notices: list[str] = []
    rig.loop.notice = notices.append
    with closing(rig):
        rig.router.idle_reasons.add("environments", 3)
        rig.loop.report_stall(7, 61.2)
    assert notices == ["step 7 has waited 61 s: 0 of 4 groups are complete; attempts: 3 waiting for environments"]
