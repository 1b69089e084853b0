"""Metrics of the groups that a step trains on."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from roll.data.collate import collate
from roll.rollout.statistics import describe, mean_advantages, token_values
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


def test_the_mean_advantage_of_an_attempt_is_over_the_sampled_tokens_of_all_its_agents() -> None:
    one = attempt(0, Score(1.0))
    several = replace(one, sibling=1, segments=(*one.segments, replace(one.segments[0], agent="other")))
    groups = [
        Group(id=9, birth=0, trajectories=(several, one)),
        Group(id=4, birth=0, trajectories=(attempt(2, Score(0.0)),)),
    ]
    batch = collate(groups)
    assert mean_advantages(groups, batch) == {}
    # Rows of one observed and two sampled tokens: group 4, then group 9 with sibling 0 and both agents of sibling 1.
    advantages = torch.tensor([99.0, 1.0, 2.0, 99.0, 3.0, 5.0, 99.0, 1.0, 2.0, 99.0, 3.0, 6.0])
    found = mean_advantages(groups, replace(batch, advantages=advantages))
    assert found == {4: {2: 1.5}, 9: {0: 4.0, 1: 3.0}}
    advantages[1] = float("nan")
    assert mean_advantages(groups, replace(batch, advantages=advantages))[4] == {2: None}


def test_token_values_are_in_the_order_of_the_turns_and_unknown_where_the_step_does_not_train() -> None:
    one = attempt(0, Score(1.0))
    policy, other = one.segments[0], replace(one.segments[0], agent="other")
    groups = [Group(id=9, birth=0, trajectories=(replace(one, sibling=1, segments=(policy, other, policy)), one))]
    batch = collate(groups)
    assert list(token_values(3, groups, batch)) == []
    # Rows of one observed and two sampled tokens: sibling 0, then sibling 1: its policy twice, and the other agent.
    advantages = torch.tensor([99.0, 1.0, 2.0, 99.0, 3.0, 4.0, 99.0, 5.0, 6.0, 99.0, 7.0, 8.0])
    masked = torch.where(advantages == 4.0, False, batch.trained)
    batch = replace(batch, advantages=advantages, old_logprobs=-advantages, trained=masked)
    first, second = token_values(3, groups, batch)
    assert (first.step, first.group, first.sibling, second.sibling) == (3, 9, 0, 1)
    assert first.advantages.tolist() == [1.0, 2.0]
    np.testing.assert_array_equal(second.advantages, [3.0, math.nan, 7.0, 8.0, 5.0, 6.0])
    assert second.trainer_logprobs is not None
    np.testing.assert_array_equal(second.trainer_logprobs, [-3.0, math.nan, -7.0, -8.0, -5.0, -6.0])
    (without, _) = token_values(3, groups, replace(batch, old_logprobs=None))
    assert without.trainer_logprobs is None


def test_groups_with_equal_rewards_are_counted_by_domain() -> None:
    def group(id: int, domain: str, *rewards: float) -> Group:
        attempts = [attempt(sibling, Score(reward)) for sibling, reward in enumerate(rewards)]
        task = Task(id="t", domain=domain)
        return Group(id=id, birth=0, trajectories=tuple(replace(each, task=task) for each in attempts))

    groups = [group(0, "a", 1.0, 1.0), group(1, "a", 0.0, 1.0), group(2, "a", 0.0, 0.0), group(3, "b", 0.0, 1.0)]
    metrics = describe(groups, step=1, step_of={0: 0})
    assert (metrics["trained/groups"], metrics["domain/a/groups"], metrics["domain/b/groups"]) == (4, 3, 1)
    assert (metrics["trained/uniform"], metrics["domain/b/uniform"]) == (0.5, 0.0)
    assert metrics["domain/a/uniform"] == pytest.approx(2 / 3)
    single = describe([group(0, "a", 1.0)], step=1, step_of={0: 0})
    assert single["trained/groups"] == 1 and "trained/uniform" not in single, "one attempt equals no other"
