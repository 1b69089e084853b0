"""Trajectories to flat rows, in an order that does not depend on who finished first."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from roll.data.collate import collate, last_rows, shards, split, supervised
from roll.types import Finish, Group, Score, Segment, Span, Status, Task, Trajectory, Turn

NAN = float("nan")


def turn(observed: list[int], sampled: list[int], reward: float = 0.0) -> Turn:
    return Turn(
        observation=np.array(observed, np.int32),
        sampled=np.array(sampled, np.int32),
        sampler_logprobs=-np.array(sampled, np.float32) / 10,
        versions=np.full(len(sampled), 3, np.int32),
        finish=Finish.STOP,
        reward=reward,
    )


def attempt(
    sibling: int, *segments: Segment, score: float | None = None, status: Status = Status.FINISHED
) -> Trajectory:
    return Trajectory(
        task=Task(id="t", domain="d"),
        sibling=sibling,
        segments=segments,
        status=status,
        score=None if score is None else Score(score),
    )


def segment(*turns: Turn) -> Segment:
    return Segment(turns=turns)


GROUPS = [
    Group(
        id=12,
        birth=0,
        trajectories=(
            attempt(1, segment(turn([1], [2])), score=0.1),
            attempt(0, segment(turn([1], [3, 4]), turn([5], [6], reward=0.5)), segment(turn([7], [8], reward=0.25))),
        ),
    ),
    Group(id=4, birth=0, trajectories=(attempt(0, segment(turn([9, 9], [10])), score=1.0),)),
]


def test_rows_are_ordered_by_group_sibling_and_segment():
    found = collate(GROUPS)
    assert found.lengths == (3, 5, 2, 2)
    assert found.ids.tolist() == [9, 9, 10, 1, 3, 4, 5, 6, 7, 8, 1, 2]
    assert found.trained.int().tolist() == [0, 0, 1, 0, 1, 1, 0, 1, 0, 1, 0, 1]
    assert found.versions.tolist() == [-1, -1, 3, -1, 3, 3, -1, 3, -1, 3, -1, 3]
    torch.testing.assert_close(found.sampler_logprobs, -torch.tensor([0, 0, 1, 0, 0.3, 0.4, 0, 0.6, 0, 0.8, 0, 0.2]))


def test_rows_have_the_index_of_their_trajectory_and_trajectories_of_their_group():
    found = collate(GROUPS)
    assert found.trajectory.tolist() == [0, 1, 1, 2]
    assert found.group.tolist() == [0, 1, 1]
    torch.testing.assert_close(found.rewards, torch.tensor([1.0, 0.75, 0.1]))


def test_the_order_of_arrival_does_not_matter():
    there, back = collate(GROUPS), collate(GROUPS[::-1])
    assert there.ids.tolist() == back.ids.tolist() and there.rewards.tolist() == back.rewards.tolist()


def test_every_row_has_its_dtype():
    found = collate(GROUPS)
    kinds = [row.dtype for row in (found.ids, found.trained, found.sampler_logprobs, found.versions, found.rewards)]
    assert kinds == [torch.int64, torch.bool, torch.float32, torch.int32, torch.float32]
    assert found.trajectory.dtype == found.group.dtype == torch.int64


def test_a_failed_trajectory_never_enters_a_batch():
    failed = Group(id=1, birth=0, trajectories=(attempt(0, segment(turn([1], [2])), status=Status.ENV_FAILED),))
    with pytest.raises(AssertionError, match="env_failed"):
        collate([failed])


def test_a_segment_that_begins_with_a_sampled_token_is_refused():
    with pytest.raises(AssertionError, match="nothing scores it"):
        collate([Group(id=1, birth=0, trajectories=(attempt(0, segment(turn([], [2]))),))])


def test_supervised_batches_train_only_on_answers():
    found = supervised([([5, 6], [7, 1]), ([8], [9, 9, 1])])
    assert found.ids.tolist() == [5, 6, 7, 1, 8, 9, 9, 1]
    assert found.lengths == (4, 4)
    assert found.trained.int().tolist() == [0, 0, 1, 1, 0, 1, 1, 1]
    assert found.versions.tolist() == [-1, -1, 0, 0, -1, 0, 0, 0]
    assert found.advantages is not None and found.weights is not None
    assert found.advantages.tolist() == [0, 0, 1, 1, 0, 1, 1, 1]
    torch.testing.assert_close(found.weights, torch.tensor([0, 0, 0.2, 0.2, 0, 0.2, 0.2, 0.2]))
    assert found.rewards.tolist() == [0.0, 0.0]


def test_a_supervised_row_may_have_several_prompts_with_their_answers():
    found = supervised([([5, 6], [7], [8], [9, 1]), ([2], [3])])
    assert found.lengths == (6, 2)
    assert found.ids.tolist() == [5, 6, 7, 8, 9, 1, 2, 3]
    assert found.trained.int().tolist() == [0, 0, 1, 0, 1, 1, 0, 1]
    assert found.weights is not None
    torch.testing.assert_close(found.weights, torch.tensor([0, 0, 0.25, 0, 0.25, 0.25, 0, 0.25]))


@pytest.mark.parametrize("row", [([], [1]), ([1], []), ([1],), (), ([1], [2], [3])])
def test_an_answer_without_a_prompt_is_refused(row: tuple[list[int], ...]):
    with pytest.raises(AssertionError, match="needs a prompt"):
        supervised([row])


def test_turns_are_numbered_over_the_batch_and_a_score_is_part_of_the_last():
    found = collate(GROUPS)
    assert found.turn.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 4]
    assert found.turn_trajectory.tolist() == [0, 1, 1, 1, 2]
    torch.testing.assert_close(found.turn_rewards, torch.tensor([1.0, 0.0, 0.5, 0.25, 0.1]))


def test_states_are_numbered_by_name_and_missing_if_one_is_not_named():
    def visiting(sibling: int, *states: str) -> Trajectory:
        return attempt(sibling, segment(*(replace(turn([1], [2]), state=state) for state in states)))

    named = Group(id=0, birth=0, trajectories=(visiting(0, "start", "left"), visiting(1, "start", "right", "left")))
    found = collate([named]).turn_states
    assert found is not None and found.tolist() == [0, 1, 0, 2, 1]
    assert collate([Group(id=0, birth=0, trajectories=(visiting(0, "start", ""),))]).turn_states is None


def test_a_batch_has_the_parts_of_scores_and_truncation():
    one = replace(attempt(0, segment(turn([1], [2]))), score=Score(1.0, {"format": 1.0}))
    other = attempt(1, segment(turn([1], [2])), score=0.0, status=Status.TRUNCATED)
    found = collate([Group(id=0, birth=0, trajectories=(one, other))])
    assert found.parts["format"][0] == 1.0 and found.parts["format"].isnan().tolist() == [False, True]
    assert found.truncated.tolist() == [False, True]


def test_the_last_row_of_each_trajectory_gets_one_token_more():
    found = last_rows(collate(GROUPS))
    assert found.lengths == (4, 3, 3)
    assert found.ids.tolist() == [9, 9, 10, 10, 7, 8, 8, 1, 2, 2]
    assert not found.trained.any()


def test_shards_have_every_row_once_and_are_balanced_by_tokens():
    whole = collate(GROUPS)
    assert sorted(row for rows in shards(whole, 2) for row in rows) == [0, 1, 2, 3]
    assert sorted(part.num_tokens for part in split(whole, 2)) == [5, 7]


def test_rewards_of_spans_are_at_their_tokens_and_part_of_the_trajectorys_reward():
    spanned = replace(turn([1, 1], [3, 4, 5], reward=0.5), span_rewards=((0, 0.25), (2, 0.0)))
    one = replace(attempt(0, segment(turn([9], [8]), spanned)), score=Score(1.0, spans=(Span(0, 1, 0.25),)))
    other = attempt(1, segment(turn([9], [7])), score=2.0)
    batch = collate([Group(id=0, birth=0, trajectories=(one, other))])
    assert batch.span_rewards is not None
    torch.testing.assert_close(
        batch.span_rewards, torch.tensor([NAN, NAN, NAN, NAN, 0.25, NAN, 0.0, NAN, NAN]), equal_nan=True
    )
    assert batch.rewards.tolist() == [one.reward, 2.0] == [1.75, 2.0]
    assert batch.turn_rewards.tolist() == [0.0, 1.5, 2.0], "without the spans"
    assert last_rows(batch).span_rewards is None and collate(GROUPS).span_rewards is None
    assert batch.select([1]).span_rewards is not None and len(batch.select([1]).span_rewards) == 2  # type: ignore[arg-type]


def test_experts_of_turns_are_one_row_per_token_and_unknown_for_turns_without():
    known = np.arange(20, dtype=np.int16).reshape(5, 2, 2)
    turns = replace(turn([1, 2], [3, 4, 5]), experts=known), turn([6], [7])
    batch = collate([Group(id=0, birth=0, trajectories=(attempt(0, segment(*turns), score=1.0),))])
    assert batch.experts is not None and batch.experts.dtype == torch.int16
    assert torch.equal(batch.experts[:5], torch.from_numpy(known)) and bool((batch.experts[5:] == -1).all())
    assert collate([Group(id=0, birth=0, trajectories=(attempt(0, segment(turns[1]), score=1.0),))]).experts is None
    both = replace(batch, lengths=(5, 2), trajectory=torch.tensor([0, 0]))
    assert torch.equal(both.select([1, 0]).experts, batch.experts.roll(2, 0))
