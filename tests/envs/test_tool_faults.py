"""Tool failures are recorded on the attempt, which finishes, and so does the run."""

from pathlib import Path

import pytest

from roll.journal.events import AttemptRetried, GroupFailed, TrajectoryEnded
from tests.envs.clumsy import BLUNDERS, ClumsyEnvs
from tests.envs.fault_rig import attempts, tasks


@pytest.mark.slow
def test_every_fault_of_a_tool_is_counted_by_kind_and_ends_neither_the_attempt_nor_the_run(tmp_path: Path) -> None:
    found, events = attempts(tmp_path, tasks(list(BLUNDERS)), ClumsyEnvs, until=lambda each: each.status.valid)
    for kind in BLUNDERS:
        assert len(found[kind]) >= 4
        for trajectory in found[kind]:
            assert trajectory.status.valid and len(trajectory.turns) == 2, trajectory.reason
            counted = {name: value for name, value in trajectory.metrics.items() if value and "faults" in name}
            assert counted == {"tools/faults": 1, f"tools/faults/{kind}": 1}
    ended = [event for event in events if isinstance(event, TrajectoryEnded)]
    assert len(ended) >= 4 * len(BLUNDERS) and all(event.status.valid for event in ended)
    assert not [event for event in events if isinstance(event, AttemptRetried | GroupFailed)]
