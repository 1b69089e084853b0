"""Metrics of the groups that a step trains on."""

import numpy as np
import pytest

from roll.rollout.statistics import describe
from roll.types import Finish, Group, Score, Segment, Status, Task, Trajectory, Turn

TASK = Task(id="t", domain="math")


def attempt(sibling: int, score: Score) -> Trajectory:
    turn = Turn(
        observation=np.array([3], np.int32),
        sampled=np.array([4, 5], np.int32),
        sampler_logprobs=np.zeros(2, np.float32),
        versions=np.zeros(2, np.int32),
        finish=Finish.STOP,
    )
    return Trajectory(
        task=TASK, sibling=sibling, segments=(Segment(turns=(turn,)),), status=Status.FINISHED, score=score, reason=""
    )


def test_a_score_part_never_shares_a_metric_with_a_domain_or_a_statistic_of_the_run() -> None:
    parts = {"math": 5.0, "mean": 7.0, "std": 8.0, "format/depth": 9.0}
    group = Group(id=0, birth=0, trajectories=(attempt(0, Score(0.0, parts)), attempt(1, Score(1.0, parts))))
    metrics = describe([group], step=1, step_of={0: 0})
    assert metrics["reward/mean"] == 0.5 and metrics["reward/std"] == pytest.approx(0.5)
    assert metrics["domain/math/reward"] == 0.5 and metrics["reward/math"] == 5.0
    assert metrics["reward/part/mean"] == 7.0 and metrics["reward/part/std"] == 8.0
    assert metrics["reward/format/depth"] == 9.0 and metrics["staleness/0"] == 1.0
