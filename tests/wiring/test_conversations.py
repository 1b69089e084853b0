"""What a file says of long conversations reaches the attempts of a run, and what became of them its metrics."""

import contextlib
import json
from contextlib import closing
from pathlib import Path

import pytest

from roll.cli import main
from roll.journal.records import TrajectoryQuery
from roll.journal.store import Reader
from roll.types import Trajectory

pytestmark = pytest.mark.slow

RUN = """\
name: talk
steps: 1
threads: 1
model:
  shape: {alphabet: "123456789-?eghilortw", hidden: 16, layers: 1, heads: 2, kv_heads: 1, mlp: 16, max_seq_len: 64}
algorithm: step_reinforce
tasks: [{name: guess, env: {kind: guess_number, max_turns: 6}}]
rollout: {groups_per_step: 2, group_size: 2, max_seq_len: 20, max_new_tokens: 2}
tracking: {tensorboard: false}
checkpoint: {every: 0}
"""


def trained(folder: Path, *overrides: str) -> tuple[dict[str, float], list[Trajectory]]:
    """What the step reported, and what was said in it."""
    (folder / "run.yaml").write_text(RUN)
    with contextlib.chdir(folder), pytest.raises(SystemExit) as ended:
        main(["train", "run.yaml", "--overwrite", *overrides])
    assert not ended.value.code
    run = folder / "runs" / "talk"
    metrics = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    with closing(Reader(run / "journal.db")) as journal:
        found = [kept.trajectory for kept in journal.trajectories(TrajectoryQuery(step=1))]
    return metrics, [trajectory for trajectory in found if trajectory is not None]


def test_long_conversations_are_truncated_or_dropped_as_configured(tmp_path: Path) -> None:
    metrics, stopped = trained(tmp_path)
    assert "segments/dropped" not in metrics and all(len(each.segments) == 1 for each in stopped)
    metrics, dropped = trained(tmp_path, "rollout.context_policy=drop_oldest")
    assert metrics["segments/dropped"] == sum(len(each.segments) - 1 for each in dropped) > 0
    assert sum(len(each.turns) for each in dropped) > sum(len(each.turns) for each in stopped)
    assert all(len(segment.ids) <= 20 for each in dropped for segment in each.segments)


def test_every_turn_is_a_segment_if_configured(tmp_path: Path) -> None:
    metrics, found = trained(tmp_path, "rollout.segment_per=turn", "rollout.max_seq_len=64")
    assert max(len(each.segments) for each in found) > 1 and "segments/dropped" not in metrics
    assert all(len(segment.turns) == 1 for each in found for segment in each.segments)
