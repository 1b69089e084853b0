"""A share of every step is trained on again: bound, amounts, choice, crashes, and how the journal counts the uses."""

import asyncio
import itertools
import math
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from roll.errors import RunStopped
from roll.journal.events import GroupAdmitted, RunEnded, RunStarted
from roll.report.invariants import RunBounds
from roll.report.ledger import read_ledger
from roll.report.verify import verify_journal
from roll.rollout.selection import Priority
from tests.rollout.rig import GROUP_SIZE, Rig, Setting
from tests.rollout.test_reuse import STRAGGLERS, Hashing, uses

STEPS, GROUPS, REPLAYED, USES = 10, 6, 2, 3


def replaying(staleness: float, **changes: object) -> Setting:
    """As the configuration computes it: a third of every step is replayed, each group at most twice."""
    slots = math.floor(GROUPS + (staleness - 1) * (GROUPS - REPLAYED))
    values = {"steps": STEPS, "groups_per_step": GROUPS, "num_slots": slots, "max_age": math.ceil(staleness)}
    return Setting(**{**values, "reuse": USES, "replayed": REPLAYED, **changes})  # type: ignore[arg-type]


def violations(path: Path, **changes: object) -> list[str]:
    """What `roll verify` finds, but for metrics.jsonl, which a rig does not write."""
    values = {"groups_per_step": GROUPS, "group_size": GROUP_SIZE, "reuse": USES, "num_replayed": REPLAYED}
    invariants = verify_journal(path, RunBounds(**{**values, **changes})).invariants  # type: ignore[arg-type]
    return [example for each in invariants if each.unit != "lines" for example in each.examples]


@pytest.mark.parametrize(("staleness", "redundant"), [(1, 0), (2.5, 0), (3, 2)])
@pytest.mark.parametrize("priority", ["age", "value"])
def test_every_step_replays_its_share_within_the_bound(
    staleness: float, redundant: int, priority: Priority, tmp_path: Path
) -> None:
    setting = replaying(
        staleness,
        redundant_groups=redundant,
        priority=priority,
        stragglers=STRAGGLERS,
        generators=2,
        reward={"refuse": "1"},
    )
    with closing(Rig(tmp_path, setting)) as rig:
        rig.journal.record(RunStarted(config_digest=""))
        asyncio.run(rig.run())
        steps_of, max_age = uses(rig), math.ceil(staleness)
        births = {event.group: event.birth for event in rig.events(GroupAdmitted)}
        for group, steps in steps_of.items():
            assert len(steps) <= USES and steps[-1] - 1 - births[group] <= max_age
        assert Counter(step for steps in steps_of.values() for step in steps) == dict.fromkeys(range(1, 11), GROUPS)
        new = Counter(steps[0] for steps in steps_of.values())
        assert new == {1: GROUPS, **dict.fromkeys(range(2, 11), GROUPS - REPLAYED)}
        assert [rig.metrics[step]["reuse/groups"] for step in range(1, 11)] == [0] + [REPLAYED] * 9
        assert all(rig.metrics[step]["reuse/usable"] >= REPLAYED for step in range(1, 11))
        apart = any(after - before > 1 for steps in steps_of.values() for before, after in itertools.pairwise(steps))
        assert apart == (priority == "value" and max_age > 1), "another priority reaches further back than one step"
        rig.journal.record(RunEnded(step=STEPS, reason="finished"))
    bounds = {"max_age": max_age, "redundant_groups": redundant, "in_order": priority == "age"}
    assert violations(tmp_path, **bounds) == []
    assert "step 2 has 2 groups that were trained on before" in violations(tmp_path, **{**bounds, "num_replayed": 1})
    assert any("was trained in step" in each for each in violations(tmp_path, **{**bounds, "reuse": 1}))
    assert any("tokens 1 steps old" in each for each in violations(tmp_path, **{**bounds, "max_age": 0}))


@pytest.mark.parametrize("priority", ["age", "value"])
def test_a_crash_between_two_uses_changes_no_choice(priority: Priority, tmp_path: Path) -> None:
    """The resumed run trains on the same groups with the same tokens, also if they were used steps ago."""
    setting = replaying(1, max_age=3, priority=priority, in_order=True, checkpoint_every=4, keep_steps=1)
    whole, final = Hashing(), Hashing()
    for folder in ("whole", "broken"):
        (tmp_path / folder).mkdir()
    with closing(Rig(tmp_path / "whole", setting, whole)) as rig:
        asyncio.run(rig.run())
        expected = sorted(uses(rig).values())
        longest = max(after - before for steps in expected for before, after in itertools.pairwise(steps))
        assert (longest > 1) == (priority == "value")
    with closing(Rig(tmp_path / "broken", setting, Hashing(stop_at=8))) as rig:
        rig.journal.record(RunStarted(config_digest=""))
        with pytest.raises(RunStopped, match="died"):
            asyncio.run(rig.run())
        before = {group: [step for step in steps if step <= 4] for group, steps in uses(rig).items()}
    with closing(Rig(tmp_path / "broken", setting, final)) as rig:
        rig.journal.record(RunStarted(config_digest="", resumed_from=4))
        restored = asyncio.run(rig.resume())
        trained = [group for group in restored if group.uses]
        assert min(each.last for each in trained) < 4, "some were used before the last step"
        for group in trained:
            assert (group.uses, group.last) == (len(before[group.ticket]), before[group.ticket][-1])
            assert [each.trajectory is not None for each in group.attempts.values()] == [True] * GROUP_SIZE
        assert sorted(uses(rig).values()) == expected
        assert final.weights == whole.weights
        rig.journal.record(RunEnded(step=STEPS, reason="finished"))
    ledger = read_ledger(tmp_path / "broken")
    assert [each.unaccounted for each in (ledger.tokens, ledger.trajectories, ledger.groups)] == [0, 0, 0]
    assert violations(tmp_path / "broken", max_age=3, in_order=False) == []


@pytest.mark.parametrize(
    ("priority", "changes"), [("age", {"reuse": 2}), ("value", {"max_age": 1}), ("value", {"replayed": 1})]
)
def test_a_run_resumed_with_lower_limits_takes_new_groups_instead(
    priority: Priority, changes: dict[str, int], tmp_path: Path
) -> None:
    before = {"max_age": 3, "priority": priority}
    with closing(Rig(tmp_path, replaying(1, **before, checkpoint_every=4), Hashing(stop_at=8))) as rig:
        with pytest.raises(RunStopped, match="died"):
            asyncio.run(rig.run())
        assert max(rig.metrics[step]["staleness/max"] for step in rig.metrics) == (1 if priority == "age" else 3)
    lower = replaying(1, **{**before, **changes})
    with closing(Rig(tmp_path, lower, Hashing())) as rig:
        restored = asyncio.run(rig.resume())
        assert "reuse" not in changes or max(group.uses for group in restored) == 2
        assert max(rig.metrics[step]["staleness/max"] for step in range(5, 11)) <= lower.max_age
        assert max(len(steps) for steps in uses(rig).values() if steps[-1] > 4) <= lower.reuse
        assert [rig.metrics[step]["reuse/groups"] for step in range(6, 11)] == [lower.num_replayed] * 5
