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
from roll.types import Batch
from roll.weights.digest import Digest
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
        written = recorded.index("CheckpointSaved")  # in the background, once the last version is published
        assert written > recorded.index("WeightsPublished", 10) and recorded.pop(written)
        assert recorded == ["WeightsPublished", *step, *step, *step]


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


@pytest.mark.parametrize("last", [-1, 409])
def test_a_first_publication_that_fails_ends_the_run_with_its_cause(last: int, tmp_path: Path) -> None:
    """`last` is the last version of the process before, of a step that the checkpoint does not have."""

    class Broken(FakeGenerator):
        """Cannot receive weights."""

        async def receive(self, version: int) -> Digest:
            raise RunStopped("no such tensor")

    with closing(Rig(tmp_path, Setting(), make_engine=lambda **_: Broken())) as rig:
        (publisher,) = rig.loop.publishers.by_policy.values()
        publisher.version = last
        with pytest.raises(RunStopped, match="no such tensor"):
            asyncio.run(rig.run())


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
        notices = [line for line in capsys.readouterr().out.splitlines() if "refused" in line]
        assert [line.partition(",")[0] for line in notices] == [
            f"step {each}: an update was refused" for each in (2, 4)
        ]
        assert all("lower actor_train.optimizer.lr or actor_train.optimizer.max_grad_norm" in line for line in notices)


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


def minutes_of(trainer: FakeTrainer, **setting: Any) -> Setting:
    """A run whose clock advances 100 seconds with every update, and that saves after 250 seconds without a save."""
    return Setting(checkpoint_every_s=250.0, clock=lambda: 100.0 * len(trainer.batches), **setting)


def test_a_checkpoint_is_also_due_after_so_much_time_without_one(tmp_path: Path) -> None:
    trainer = FakeTrainer()
    with closing(Rig(tmp_path, minutes_of(trainer, checkpoint_every=4), trainer)) as rig:
        asyncio.run(rig.run())
        saved = [event.step for event in rig.events(CheckpointSaved)]
    assert saved == [3, 4, 7, 8], "300 s after the start, by steps, 300 s after that, at the end"


def test_a_run_that_dies_resumes_from_the_checkpoint_that_its_clock_made_due(tmp_path: Path) -> None:
    class Dying(FakeTrainer):
        """Fails in the fifth update."""

        async def update(self, batch: Batch, objective: Objective) -> dict[str, float]:
            if self.num_updates == 4:
                raise RunStopped("died")
            return await super().update(batch, objective)

    dying, trainer = Dying(), FakeTrainer()
    with closing(Rig(tmp_path, minutes_of(dying), dying)) as rig, pytest.raises(RunStopped, match="died"):
        asyncio.run(rig.run())
    with closing(Rig(tmp_path, minutes_of(trainer), trainer)) as rig:
        asyncio.run(rig.resume())
        saved = [event.step for event in rig.events(CheckpointSaved)]
    assert saved == [3, 6, 8] and len(trainer.batches) == 5, "steps 4 to 8 ran again"


def test_a_wait_for_groups_is_described_with_its_reason(tmp_path: Path) -> None:
    with closing(Rig(tmp_path, Setting())) as rig:
        rig.router.idle_reasons.add("environments", 3)
        assert rig.loop.describe_wait() == "0 of 4 groups are complete; attempts: 3 waiting for environments"
