"""Rewards within a response: from the reward function's spans of characters to the tokens that end them."""

import asyncio
from dataclasses import replace
from typing import Any, cast

import numpy as np

from roll.data.templates import Template, character_tokenizer
from roll.rewards.base import LocalRewards
from roll.rollout.episode.runner import Attempt
from roll.rollout.episode.spans import with_span_rewards
from roll.rollout.source import TaskSource
from roll.rollout.statistics import describe
from roll.serving.counts import IdleReasons
from roll.types import Finish, Group, Score, Segment, Span, Spec, Status, Task, Trajectory, Turn

TEMPLATE = Template(character_tokenizer("abc"))
TASK = Task(id="t", domain="d")


def turn(text: str) -> Turn:
    ids = np.array([*TEMPLATE.tokenizer.encode(text), TEMPLATE.eos_id], np.int32)
    zeros = np.zeros(len(ids), np.float32)
    return Turn(observation=ids[:1], sampled=ids, sampler_logprobs=zeros, versions=ids * 0, finish=Finish.STOP)


def attempt(*segments: Segment, score: Score | None = None) -> Trajectory:
    return Trajectory(task=TASK, sibling=0, segments=segments, status=Status.FINISHED, score=score)


def per_letter(task: Task, response: str) -> Score:
    """1 for the whole, and for each character its place in the alphabet."""
    return Score(1.0, spans=tuple(Span(at, at + 1, ord(letter) - 96.0) for at, letter in enumerate(response)))


class Runner:
    """Plays every attempt alike; is its own router."""

    def __init__(self) -> None:
        self.router, self.template, self.idle_reasons = self, TEMPLATE, IdleReasons()

    async def run(self, attempt_: Attempt, env: object) -> tuple[Trajectory, str]:
        return attempt(Segment(turns=(turn("cc"), turn("abc")))), "abc"


def test_the_reward_of_an_attempt_is_its_score_plus_its_spans_at_their_tokens():
    source = TaskSource(
        name="d", tasks=[TASK], env=Spec("single_turn"), reward=Spec(f"{__name__}:per_letter"), rewards=LocalRewards()
    )
    given = Attempt(task=TASK, sibling=0, number=0, purpose="train", seed=0)
    scored = asyncio.run(source.attempt(cast(Any, Runner()), given))
    assert [turn.span_rewards for turn in scored.turns] == [(), ((0, 1.0), (1, 2.0), (2, 3.0))]
    assert scored.reward == 7.0 and scored.score == per_letter(TASK, "abc")
    metrics = describe([Group(id=0, birth=0, trajectories=(scored,))], step=1, step_of={0: 0})
    assert (metrics["reward/mean"], metrics["reward/spans"]) == (7.0, 6.0)


def test_spans_that_end_at_one_token_add_up():
    score = Score(0.0, spans=(Span(1, 2, 0.5), Span(0, 2, 0.25), Span(0, 1, 1.0)))
    scored = with_span_rewards(attempt(Segment(turns=(turn("ab"),)), score=score), "ab", TEMPLATE)
    assert scored.turns[0].span_rewards == ((0, 1.0), (1, 0.75))


def test_the_agent_that_responded_last_gets_the_spans_and_all_agents_the_value():
    score = Score(1.0, spans=(Span(0, 1, 0.5),))
    segments = (Segment(turns=(turn("b"),), agent="x"), Segment(turns=(turn("a"),), agent="y"))
    scored = with_span_rewards(attempt(*segments, score=score), "a", TEMPLATE)
    assert {agent: part.reward for agent, part in scored.by_agent().items()} == {"x": 1.0, "y": 1.5}
    same = replace(segments[0], agent="y", turns=(turn("a"),))
    for text, others in (("a", (replace(same, agent="x"), same)), ("c", segments)):
        failed = with_span_rewards(attempt(*others, score=score), text, TEMPLATE)
        assert failed.status is Status.REWARD_FAILED and failed.score is None and "\n" not in failed.reason
        assert "task 't': a score with spans needs a response of one agent" in failed.reason
