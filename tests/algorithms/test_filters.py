"""Filters that keep groups out of a batch."""

from collections.abc import Sequence

import numpy as np

from roll.algorithms.filters import mean_between, mixed
from roll.types import Finish, Group, Score, Segment, Status, Task, Trajectory, Turn


def turn(reward: float) -> Turn:
    none = np.zeros(0, np.int32)
    return Turn(
        observation=none,
        sampled=none,
        sampler_logprobs=none.astype(np.float32),
        versions=none,
        finish=Finish.STOP,
        reward=reward,
    )


def group(*rewards: float | Sequence[float]) -> Group:
    """One attempt each: a number is its score, several numbers are the rewards of its turns."""
    trajectories = [
        Trajectory(
            task=Task(id="t", domain="d"),
            sibling=sibling,
            segments=() if isinstance(example, float) else (Segment(turns=tuple(turn(each) for each in example)),),
            status=Status.FINISHED,
            score=Score(example) if isinstance(example, float) else None,
        )
        for sibling, example in enumerate(rewards)
    ]
    return Group(id=0, birth=0, trajectories=tuple(trajectories))


def test_a_group_whose_rewards_differ_is_kept():
    assert mixed(group(0.0, 0.0, 1.0)) == ""


def test_a_group_of_equal_rewards_is_not():
    for example in (group(1.0, 1.0), group(0.0, 0.0), group(5.0)):
        assert mixed(example) == "all rewards are equal"


def test_rewards_that_are_equal_in_single_precision_are_equal():
    assert mixed(group(0.3, [0.1, 0.2])) == "all rewards are equal"  # 0.1 + 0.2 is not 0.3 in double precision


def test_the_mean_reward_must_lie_strictly_between_the_bounds():
    assert mean_between(group(0.0, 1.0)) == ""
    assert mean_between(group(1.0, 1.0)) == "mean reward 1 is not between 0 and 1"
    assert mean_between(group(0.0, 0.0)) == "mean reward 0 is not between 0 and 1"
    assert (
        mean_between(group(0.0, 0.0, 0.0, 1.0), low=0.25, high=0.75) == "mean reward 0.25 is not between 0.25 and 0.75"
    )


def test_rounding_does_not_admit_a_mean_at_the_bound():
    assert mean_between(group(*[0.1] * 10), low=0.0, high=0.1) == "mean reward 0.1 is not between 0 and 0.1"


def test_of_several_agents_one_whose_rewards_differ_is_enough():
    def game(sibling: int, x: float, o: float) -> Trajectory:
        segments = (Segment(turns=(turn(x),), agent="x"), Segment(turns=(turn(o),), agent="o"))
        return Trajectory(task=Task(id="t", domain="d"), sibling=sibling, segments=segments, status=Status.FINISHED)

    won_and_lost = Group(id=0, birth=0, trajectories=(game(0, 1.0, -1.0), game(1, -1.0, 1.0)))
    always_won = Group(id=0, birth=0, trajectories=(game(0, 1.0, -1.0), game(1, 1.0, -1.0)))
    assert mixed(won_and_lost) == "" and mixed(always_won) == "all rewards are equal"
