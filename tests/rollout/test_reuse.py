"""Groups that several steps train on: bound, amounts, crashes, and how the journal counts them."""

import asyncio
import hashlib
import math
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from roll.algorithms.recipe import Objective
from roll.engines.fake import FakeTrainer
from roll.errors import RunStopped
from roll.journal.events import GroupAdmitted, GroupStale, RunEnded, RunStarted, StepStarted
from roll.journal.records import TrajectoryQuery
from roll.report.invariants import RunBounds
from roll.report.ledger import read_ledger
from roll.report.outcomes import SampleOutcome
from roll.report.verify import verify_journal
from roll.types import Batch
from tests.rollout.rig import GROUP_SIZE, Rig, Setting, keys_of

STRAGGLERS = frozenset[int]().union(*(keys_of(f"t{number}", tries=3) for number in range(0, 30, 5)))


def reusing(reuse: int, staleness: float, **changes: object) -> Setting:
    """As the configuration computes it, for 6 groups per step."""
    slots = math.floor(6 + (staleness - reuse + 1) * 6 // reuse)
    values = {"steps": 9, "groups_per_step": 6, "num_slots": slots, "max_age": math.ceil(staleness), "reuse": reuse}
    return Setting(**{**values, **changes})  # type: ignore[arg-type]


def uses(rig: Rig) -> dict[int, list[int]]:
    """The steps of every group, without those that a rollback undid."""
    steps: dict[int, tuple[int, ...]] = {event.step: event.groups for event in rig.events(StepStarted)}
    return {
        group: [step for step in sorted(steps) if group in steps[step]]
        for group in sorted({group for groups in steps.values() for group in groups})
    }


@pytest.mark.parametrize(("reuse", "staleness", "redundant"), [(2, 1, 0), (2, 3, 0), (3, 3, 0), (3, 4, 2), (6, 5, 1)])
def test_a_group_is_trained_on_in_consecutive_steps_within_its_bound(
    reuse: int, staleness: int, redundant: int, tmp_path: Path
) -> None:
    setting = reusing(
        reuse, staleness, redundant_groups=redundant, stragglers=STRAGGLERS, generators=2, reward={"refuse": "1"}
    )
    with closing(Rig(tmp_path, setting)) as rig:
        asyncio.run(rig.run())
        births = {event.group: event.birth for event in rig.events(GroupAdmitted)}
        steps_of = uses(rig)
        for group, steps in steps_of.items():
            assert steps == list(range(steps[0], steps[0] + len(steps))) and len(steps) <= reuse
            assert births[group] <= steps[0] - 1 and steps[-1] - 1 - births[group] <= staleness
        assert Counter(step for steps in steps_of.values() for step in steps) == dict.fromkeys(range(1, 10), 6)
        new = Counter(steps[0] for steps in steps_of.values())
        assert new == {1: 6, **dict.fromkeys(range(2, 10), 6 // reuse)}
        assert max(len(steps) for steps in steps_of.values()) == reuse
        for step, batch in enumerate(rig.trainer.batches, 1):
            assert len(batch.rewards) == 6 * GROUP_SIZE
            assert step - 1 - int(batch.versions[batch.trained].min()) <= staleness
            assert rig.metrics[step].get("reuse/groups", 0) == 6 - new[step]
        lost = len(rig.events(GroupStale))
        assert len(births) - lost >= 6 + 8 * 6 // reuse, "every new group was admitted"


class Hashing(FakeTrainer):
    """Its weights are a hash of all it trained on; may stop before an update."""

    def __init__(self, stop_at: int = 0) -> None:
        super().__init__()
        self.weights, self.stop_at = "", stop_at

    async def update(self, batch: Batch, objective: Objective) -> dict[str, float]:
        if self.stop_at == len(self.batches) + 1:
            raise RunStopped("died")
        assert batch.advantages is not None
        self.weights = hashlib.sha256(batch.ids.numpy().tobytes() + batch.advantages.numpy().tobytes()).hexdigest()
        return await super().update(batch, objective)


@pytest.mark.parametrize("redundant_siblings", [0, 1])
@pytest.mark.parametrize("keep_steps", [None, 1])
def test_a_crash_between_two_uses_neither_loses_nor_adds_one(
    redundant_siblings: int, keep_steps: int | None, tmp_path: Path
) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "broken").mkdir()
    setting = reusing(
        3, 2, steps=9, in_order=True, checkpoint_every=4, keep_steps=keep_steps, redundant_siblings=redundant_siblings
    )
    whole, final = Hashing(), Hashing()
    with closing(Rig(tmp_path / "whole", setting, whole)) as rig:
        asyncio.run(rig.run())
        expected = sorted(uses(rig).values())
    with closing(Rig(tmp_path / "broken", setting, Hashing(stop_at=8))) as rig:
        rig.journal.record(RunStarted(config_digest=""))
        with pytest.raises(RunStopped, match="died"):
            asyncio.run(rig.run())
    with closing(Rig(tmp_path / "broken", setting, final)) as rig:
        rig.journal.record(RunStarted(config_digest="", resumed_from=4))
        restored = asyncio.run(rig.resume())
        kept = {group.ticket: group.uses for group in restored if group.uses}
        assert sorted(kept.values()) == [1, 1, 2, 2], "as step 4 left them"
        assert sorted(uses(rig).values()) == expected, "new groups have other tickets"
        if not redundant_siblings:
            assert final.weights == whole.weights, "the same groups, with the same attempts"
        rig.journal.record(RunEnded(step=9, reason="finished"))
    ledger = read_ledger(tmp_path / "broken")
    assert [each.unaccounted for each in (ledger.tokens, ledger.trajectories, ledger.groups)] == [0, 0, 0]
    bounds = RunBounds(groups_per_step=6, group_size=GROUP_SIZE, max_age=2, reuse=3, num_replayed=4)
    verification = verify_journal(tmp_path / "broken", bounds)
    violated = [each.examples for each in verification.invariants if each.violations and each.unit != "lines"]
    assert violated == [], "but for metrics.jsonl, which the rig does not write"
    once = verify_journal(tmp_path / "broken", RunBounds(groups_per_step=6, group_size=GROUP_SIZE, max_age=2))
    (broken,) = [each for each in once.invariants if each.violations and "at most" in each.name]
    assert broken.violations > 0 and "was trained in step" in broken.examples[0]


@pytest.mark.parametrize("redundant", [0, 1])
def test_a_run_resumed_with_fewer_groups_per_step_keeps_as_many_as_fit(redundant: int, tmp_path: Path) -> None:
    first = Rig(tmp_path, reusing(3, 2, checkpoint_every=4), Hashing(stop_at=5))
    with closing(first), pytest.raises(RunStopped, match="died"):
        asyncio.run(first.run())
    smaller = reusing(3, 2, groups_per_step=3, num_slots=3, redundant_groups=redundant)
    with closing(Rig(tmp_path, smaller)) as rig:
        restored = asyncio.run(rig.resume())
        kept = {group.ticket: group.uses for group in restored if group.uses}
        assert sorted(kept.values()) == [1, 1, 2, 2], "a step of 3 groups has room for two of them"
        batch = next(event.groups for event in rig.events(StepStarted) if len(event.groups) == 3)
        assert {group: kept[group] for group in batch if group in kept} == {
            group: number for group, number in kept.items() if number == 1
        }, "those with the fewest uses"
        assert max(map(len, uses(rig).values())) == 3


def test_staleness_is_counted_once_per_use_and_tokens_once(tmp_path: Path) -> None:
    with closing(Rig(tmp_path, reusing(2, 1, steps=4))) as rig:
        rig.journal.record(RunStarted(config_digest=""))
        asyncio.run(rig.run())
        used_twice = sum(len(steps) == 2 for steps in uses(rig).values())
        stored = [each for each in rig.journal.trajectories(TrajectoryQuery(bodies=False)) if each.step is not None]
        of_two = [each for each in rig.journal.trajectories(TrajectoryQuery(step=2)) if each.step == 3]
        assert {each.group for each in of_two}, "the step of an attempt is the last of its group"
        rig.journal.record(RunEnded(step=4, reason="finished"))
    ledger = read_ledger(tmp_path)
    assert used_twice == 9 and ledger.groups.outcomes[SampleOutcome.TRAINED] == 6 + 3 * 3
    assert ledger.tokens.outcomes[SampleOutcome.TRAINED] == sum(each.num_tokens for each in stored)
    assert sum(ledger.staleness.values()) > ledger.tokens.outcomes[SampleOutcome.TRAINED]
    assert set(ledger.staleness) == {0, 1}
