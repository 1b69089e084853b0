"""What becomes of a conversation that outgrows its context, and of turns that are trained on one by one."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from roll.algorithms.advantages import discounted, gigpo, group_normalised
from roll.data.collate import collate
from roll.data.templates import Template, character_tokenizer
from roll.envs.base import StepResult
from roll.rollout.episode.conversation import SegmentBreaks, checksum
from roll.rollout.episode.runner import Attempt, EpisodeLimits, EpisodeRunner
from roll.types import Group, Message, Sampling, Status, Task, Trajectory
from tests.rollout.sampler import Sampler

WORDS = Template(character_tokenizer("0123456789abcmore"))
OPENING = (Message("system", "ab"), Message("user", "c"))
TASK = Task(id="t", domain="d")


class More:
    """Says `more` to everything, and gives the rewards of a list."""

    def __init__(self, rewards: Sequence[float], said: str = "more", states: Sequence[str] = ()) -> None:
        self._rewards, self._said, self._turn = rewards, said, 0
        self._states = states or [f"after {turn}" for turn in range(len(rewards))]

    async def start(self) -> tuple[Message, ...]:
        return OPENING

    async def step(self, response: str) -> StepResult:
        turn, self._turn = self._turn, self._turn + 1
        return StepResult(
            messages=(Message("user", self._said),),
            reward=self._rewards[turn],
            done=self._turn == len(self._rewards),
            state=self._states[turn],
        )

    async def close(self) -> None: ...


def play(
    env: More, replies: Sequence[str], *, sibling: int = 0, **changes: Any
) -> tuple[Trajectory, Sampler, SegmentBreaks]:
    sampler, breaks = Sampler([WORDS.tokenizer.encode(reply) for reply in replies]), SegmentBreaks()
    numbers: dict[str, Any] = {"max_seq_len": 16, "max_new_tokens": 2, "max_turns": 9, **changes}
    runner = EpisodeRunner(
        router=sampler,  # pyright: ignore[reportArgumentType]
        template=WORDS,
        limits=EpisodeLimits(sampling=Sampling(), stop=frozenset({1}), **numbers),
        segment_breaks=breaks,
    )
    attempt = Attempt(task=TASK, sibling=sibling, number=0, purpose="train", seed=1)
    found, _ = asyncio.run(runner.run(attempt, env))
    return found, sampler, breaks


def spelled(found: Trajectory) -> list[tuple[str, str]]:
    """By segment, all of it and what of it is trained."""
    return [(WORDS.decode(each.ids), WORDS.decode(each.ids[each.trained])) for each in found.segments]


def test_with_stop_an_attempt_ends_where_its_context_is_full() -> None:
    found, _, breaks = play(More([1.0] * 4), ["12", "34", "5"])
    assert spelled(found) == [("abc12more34more5", "12345")]  # 3 + 2 + 4 + 2 + 4 = 15 of 16, which leaves room for one
    assert (found.status, found.reason) == (Status.TRUNCATED, "the context is full")
    assert breaks.dropped == 0


def test_with_drop_oldest_an_attempt_continues_in_a_new_segment_without_its_oldest_turns() -> None:
    found, sampler, breaks = play(More([1.0] * 4), ["12", "34", "56", "78"], drop_oldest=True)
    assert spelled(found) == [
        ("abc12more34", "1234"),  # with the answer it has 15 tokens, and 14 leave room for a response
        ("abc34more56", "56"),
        ("abc56more78", "78"),
    ]
    assert (found.status, found.reward, breaks.dropped) == (Status.TRUNCATED, 4.0, 2)  # replies of two have no end
    assert found.reason == "the last response reached max_new_tokens"
    assert [len(request.ids) for request in sampler.asked] == [3, 9, 9, 9]
    assert {request.max_new_tokens for request in sampler.asked} == {2}


def test_the_fewest_turns_are_dropped_and_the_new_context_has_its_checksum() -> None:
    found, sampler, breaks = play(More([1.0] * 5), ["12", "34", "56", "78", "90"], max_seq_len=22, drop_oldest=True)
    assert [text for text, _ in spelled(found)] == ["abc12more34more56", "abc34more56more78", "abc56more78more90"]
    assert breaks.dropped == 2
    for segment, asked in zip(found.segments[1:], sampler.asked[3:], strict=True):
        assert checksum(segment.turns[0].observation.tolist()) == checksum(asked.ids)


def test_a_message_longer_than_the_context_ends_an_attempt() -> None:
    found, _, _ = play(More([1.0] * 4, said="more" * 4), ["12"], drop_oldest=True)
    assert (found.status, found.reason, len(found.turns)) == (Status.TRUNCATED, "the context is full", 1)


def test_a_trajectory_counts_once_in_its_group_however_many_segments_it_has() -> None:
    long, _, _ = play(More([0.0, 0.0, 0.0, 1.0]), ["12", "34", "56", "78"], drop_oldest=True)
    short, _, _ = play(More([0.0]), ["12"], sibling=1, drop_oldest=True)
    batch = collate([Group(id=0, birth=0, trajectories=(long, short))])
    assert batch.lengths == (11, 11, 11, 5) and batch.trajectory.tolist() == [0, 0, 0, 1]
    assert batch.rewards.tolist() == [1.0, 0.0]
    found = group_normalised(batch, eps=0.0)
    # mean 0.5 and deviation 0.5; counted by segments the mean would be 0.75
    assert found[batch.trained].tolist() == pytest.approx([1.0] * 8 + [-1.0] * 2)
    assert found[~batch.trained].abs().sum() == 0


def test_with_per_turn_every_turn_is_a_row_after_its_whole_context() -> None:
    found, sampler, _ = play(More([0.0, 1.0, 1.0]), ["12", "34", "56"], max_seq_len=64, per_turn=True)
    assert spelled(found) == [("abc12", "12"), ("abc12more34", "34"), ("abc12more34more56", "56")]
    whole, once, _ = play(More([0.0, 1.0, 1.0]), ["12", "34", "56"], max_seq_len=64)
    assert [request.ids for request in sampler.asked] == [request.ids for request in once.asked]
    assert [turn.sampled.tolist() for turn in found.turns] == [turn.sampled.tolist() for turn in whole.turns]
    for segment, asked in zip(found.segments, sampler.asked, strict=True):
        assert segment.turns[0].observation.tolist() == list(asked.ids), "the prompt is what the engine saw"


def test_rows_per_turn_get_the_credit_of_their_turns() -> None:
    first, _, _ = play(More([0.0, 1.0, 1.0]), ["12", "34", "56"], max_seq_len=64, per_turn=True)
    other, _, _ = play(More([0.0, 0.0, 0.0]), ["12", "34", "56"], sibling=1, max_seq_len=64, per_turn=True)
    batch = collate([Group(id=0, birth=0, trajectories=(first, other))])
    assert batch.lengths == (5, 11, 17, 5, 11, 17) and batch.trajectory.tolist() == [0, 0, 0, 1, 1, 1]
    assert batch.trained.sum() == 12 and batch.turn_trajectory.tolist() == [0, 0, 0, 1, 1, 1]
    returns = discounted(batch, gamma=0.5)
    # from the first turn on 0 + 0.5 + 0.25, then 1 + 0.5, then 1
    assert returns[batch.trained].tolist() == [0.75, 0.75, 1.5, 1.5, 1.0, 1.0] + [0.0] * 6
    whole = [
        play(More(rewards), ["12", "34", "56"], sibling=sibling, max_seq_len=64)[0]
        for sibling, rewards in enumerate(([0.0, 1.0, 1.0], [0.0, 0.0, 0.0]))
    ]
    together = collate([Group(id=0, birth=0, trajectories=tuple(whole))])
    assert together.lengths == (17, 17)
    for credit in (discounted, gigpo, group_normalised):
        assert torch.equal(credit(batch)[batch.trained], credit(together)[together.trained]), credit.__name__
    # gigpo: the episodes are 1 and -1; in each state one sibling does better, so the steps are 1 and -1 as well
    assert gigpo(batch, eps=0.0)[batch.trained].tolist() == pytest.approx([2.0] * 6 + [-2.0] * 6)


def test_per_turn_and_drop_oldest_can_be_combined() -> None:
    found, _, _ = play(More([1.0] * 4), ["12", "34", "56", "78"], drop_oldest=True, per_turn=True)
    assert spelled(found) == [("abc12", "12"), ("abc12more34", "34"), ("abc34more56", "56"), ("abc56more78", "78")]
