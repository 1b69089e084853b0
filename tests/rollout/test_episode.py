"""Attempts of several turns through the native engine: token ids in, token ids out."""

import asyncio
import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from roll.cluster.inline import InlineCluster
from roll.data.templates import Template, character_tokenizer
from roll.engines.base import Generator, Output, Request
from roll.engines.fake import FakeGenerator
from roll.engines.native.generator import NativeGenerator
from roll.envs.base import StepResult
from roll.envs.guess_number import GuessNumber
from roll.rollout.episode.runner import Attempt, EpisodeLimits, EpisodeRunner, SavedTurn, _request
from roll.rollout.source import TaskSource
from roll.serving.dispatch import Sampled
from roll.serving.router import Router
from roll.types import Message, Sampling, Spec, Status, Task, Trajectory
from tests.engines.models import generator, small

ALPHABET = "0123456789+-*/=() abcdefghijklmnopqrstuvwxyz.,?!:\n"
CHAT = (
    "{% for m in messages %}{{ '(' + m['role'] + ':' + m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ '<eos>' }}{% endif %}{{ ')' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '(assistant:' }}{% endif %}"
)
LAST_ONLY = "{{ messages[-1]['content'] }}{% if add_generation_prompt %}{{ '=' }}{% endif %}"
"""Shows nothing but the last message, so a conversation is never append-only."""
SEEN: list[tuple[int, threading.Thread]] = []


class Echo:
    """Answers a fixed number of times."""

    def __init__(self, task: Task, *, turns: int = 3) -> None:
        self._left, self.closed = turns, 0

    async def start(self) -> tuple[Message, ...]:
        return (Message("user", "abc"),)

    async def step(self, response: str) -> StepResult:
        self._left -= 1
        return StepResult(messages=(Message("user", "more"),), reward=0.5, done=self._left == 0)

    async def close(self) -> None:
        self.closed += 1


class Broken(Echo):
    """Fails at its second turn."""

    async def step(self, response: str) -> StepResult:
        if self._left == 2:
            raise RuntimeError("the world ended")
        return await super().step(response)


LIMITS = EpisodeLimits(sampling=Sampling(), max_seq_len=8, max_new_tokens=2, max_turns=1, stop=frozenset())


class Listening(NativeGenerator):
    """Remembers every context it was given."""

    asked: list[Request]

    async def submit(self, requests: Sequence[Request]) -> None:
        self.asked = [*getattr(self, "asked", []), *requests]
        await super().submit(requests)


def template(chat: str | None = None) -> Template:
    tokenizer = character_tokenizer(ALPHABET)
    tokenizer.chat_template = chat
    return Template(tokenizer)


def play(
    env: Any, words: Template, *, saved_turns: tuple[SavedTurn, ...] = (), recorder: Any = None, **changes: Any
) -> tuple[Trajectory, list[Request]]:
    """One attempt with a small random model, and what the engine was asked on the way."""
    numbers = {"max_seq_len": 120, "max_new_tokens": 6, "max_turns": 8, **changes}
    limits = EpisodeLimits(sampling=Sampling(), stop=words.eos_ids, **numbers)
    native = generator(small(vocab_size=len(words.tokenizer)), context=120)
    engine = Listening(native.decoder, native.settings, native.channel)

    async def run() -> Trajectory:
        await engine.start()
        router = Router(InlineCluster[Generator]([engine]))
        running = asyncio.create_task(router.run())
        await router.release(4)
        task = Task(id="t", domain="d", seed=3)
        attempt = Attempt(
            task=task, sibling=0, number=0, purpose="train", seed=1, saved_turns=saved_turns, recorder=recorder
        )
        found, _ = await EpisodeRunner(router=router, template=words, limits=limits).run(attempt, env)
        running.cancel()
        return found

    return asyncio.run(run()), getattr(engine, "asked", [])


def guessing(words: Template, **changes: Any) -> tuple[Trajectory, list[Request]]:
    return play(GuessNumber(Task(id="t", domain="d", seed=3)), words, **changes)


def test_a_segment_is_observations_and_sampled_tokens_end_to_end() -> None:
    for words in (template(), template(CHAT)):
        found, asked = guessing(words)
        (segment,) = found.segments
        assert len(found.turns) == 4 and found.status.valid
        parts = [part for turn in found.turns for part in (turn.observation, turn.sampled)]
        assert segment.ids.tolist() == np.concatenate(parts).tolist()
        for turn, wanted, num in zip(found.turns, asked, np.cumsum([len(part) for part in parts])[::2], strict=True):
            assert list(wanted.ids) == segment.ids[:num].tolist(), "the engine saw its own tokens, not their text"
            assert turn.versions.tolist() == [4] * len(turn.sampled)


def test_only_tokens_of_the_policy_are_trained() -> None:
    found, _ = guessing(template(CHAT))
    (segment,) = found.segments
    expected = [flag for turn in found.turns for flag in [False] * len(turn.observation) + [True] * len(turn.sampled)]
    assert segment.trained.tolist() == expected and not segment.trained[0]


def test_a_turn_carries_the_state_it_was_taken_in() -> None:
    found, _ = guessing(template())
    states = [turn.state for turn in found.turns]
    assert states[0] == "start" and all("after" in state for state in states[1:])


def test_only_new_messages_of_the_environment_are_encoded() -> None:
    words = template()
    found, _ = play(Echo(Task(id="t", domain="d")), words)
    assert [words.decode(turn.observation) for turn in found.turns] == ["abc", "more", "more"]
    assert found.reward == 1.5


def test_an_attempt_that_fills_the_context_is_truncated() -> None:
    found, asked = play(Echo(Task(id="t", domain="d"), turns=9), template(), max_seq_len=25, max_new_tokens=10)
    assert (found.status, found.reason) == (Status.TRUNCATED, "the context is full")
    assert all(len(wanted.ids) + wanted.max_new_tokens <= 25 for wanted in asked)
    assert len(found.segments[0].ids) <= 25


def test_an_attempt_with_too_many_turns_is_truncated() -> None:
    found, _ = play(Echo(Task(id="t", domain="d"), turns=9), template(), max_turns=2)
    assert (found.status, found.reason, len(found.turns)) == (Status.TRUNCATED, "2 turns are over", 2)


def test_a_template_that_rewrites_earlier_text_starts_a_new_segment() -> None:
    words = template(LAST_ONLY)
    found, _ = play(Echo(Task(id="t", domain="d")), words)
    assert len(found.segments) == 3 and len(found.turns) == 3
    assert [words.decode(segment.turns[0].observation) for segment in found.segments] == ["abc=", "more=", "more="]
    for segment in found.segments:
        assert segment.trained.sum() == len(segment.turns[0].sampled), "each token is trained in one segment only"


def test_a_failing_environment_is_closed_and_recorded_with_its_earlier_turns() -> None:
    env = Broken(Task(id="t", domain="d"))
    found, _ = play(env, template())
    assert found.status is Status.ENV_FAILED and "turn 1: RuntimeError: the world ended" in found.reason
    assert len(found.turns) == 1 and env.closed == 1


def test_requests_of_tasks_with_slashes_in_their_names_have_distinct_ids() -> None:
    def name(domain: str, task: str) -> str:
        attempt = Attempt(task=Task(id=task, domain=domain), sibling=0, number=0, purpose="train", seed=1)
        return _request(attempt, 0, (1,), LIMITS, 1).id

    assert name("a/b", "c") != name("a", "b/c")


def test_turns_of_one_attempt_have_different_noise() -> None:
    _, asked = play(Echo(Task(id="t", domain="d")), template())
    assert len({wanted.key for wanted in asked}) == len({wanted.id for wanted in asked}) == 3


def witness(task: Task, reply: str) -> float:
    SEEN.append((os.getpid(), threading.current_thread()))
    return 1.0


def test_a_reward_runs_in_the_main_thread_of_this_process_so_a_breakpoint_works() -> None:
    words = template()
    limits = EpisodeLimits(sampling=Sampling(), max_seq_len=60, max_new_tokens=3, max_turns=1, stop=words.eos_ids)
    task = Task(id="t", domain="d", messages=(Message("user", "1+1="),))
    source = TaskSource(name="d", tasks=[task], env=Spec("single_turn"), reward=Spec(f"{__name__}:witness"))

    async def run() -> Trajectory:
        router = Router(InlineCluster[Generator]([FakeGenerator()]))
        running = asyncio.create_task(router.run())
        await router.release(0)
        runner = EpisodeRunner(router=router, template=words, limits=limits)
        found = await source.attempt(runner, Attempt(task=task, sibling=0, number=0, purpose="train", seed=1))
        running.cancel()
        return found

    SEEN.clear()
    assert asyncio.run(run()).reward == 1.0
    assert [(os.getpid(), threading.main_thread())] == SEEN


class Slow(Echo):
    """Takes a while to answer."""

    async def step(self, response: str) -> StepResult:
        await asyncio.sleep(0.2)
        return await super().step(response)


@pytest.mark.slow
def test_an_environment_that_does_not_answer_in_time_has_failed() -> None:
    env = Slow(Task(id="t", domain="d"))
    found, _ = play(env, template(), env_timeout_s=0.05)
    assert found.status is Status.ENV_FAILED and "turn 0" in found.reason and "within 0.05 s" in found.reason
    assert env.closed == 1
    assert play(Slow(Task(id="t", domain="d")), template(), env_timeout_s=5.0)[0].status.valid


class Notes:
    """A `ProgressRecorder` that remembers."""

    def __init__(self) -> None:
        self.parts: list[tuple[int, int, Output]] = []
        self.void: list[int] = []

    def record_output(self, turn: int, context: int, output: Output) -> None:
        self.parts.append((turn, context, output))

    def record_divergence(self, turn: int) -> None:
        self.void.append(turn)


def said(notes: Notes, *, cut: int) -> tuple[SavedTurn, ...]:
    """The first two turns as they were noted, the second without its last `cut` tokens."""
    found: list[SavedTurn] = []
    for turn, context, output in notes.parts[:2]:
        num = len(output.ids) - (cut if turn == 1 else 0)
        versions = np.full(num, output.version, np.int32)
        so_far = Sampled(ids=output.ids[:num], logprobs=output.logprobs[:num], versions=versions)
        found.append(SavedTurn(checksum=context, so_far=so_far))
    return tuple(found)


def test_an_attempt_continues_from_its_last_token_to_the_same_end() -> None:
    notes, again = Notes(), Notes()
    whole, _ = play(Echo(Task(id="t", domain="d")), template(), recorder=notes)
    assert [turn for turn, _, _ in notes.parts] == [0, 1, 2]
    past = said(notes, cut=2)
    found, asked = play(Echo(Task(id="t", domain="d")), template(), saved_turns=past, recorder=again)
    assert [turn.sampled.tolist() for turn in found.turns] == [turn.sampled.tolist() for turn in whole.turns]
    assert [turn.sampler_logprobs.tolist() for turn in found.turns[:1]] == [whole.turns[0].sampler_logprobs.tolist()]
    assert len(asked) == 2 and asked[0].produced == len(past[1].so_far.ids), "the first turn is not sampled again"
    assert again.void == [] and [turn for turn, _, _ in again.parts] == [1, 2]


def test_an_environment_that_differs_after_a_restart_is_detected() -> None:
    class Other(Echo):
        """Does not say what Echo says."""

        async def step(self, response: str) -> StepResult:
            found = await super().step(response)
            return StepResult(messages=(Message("user", "less"),), reward=found.reward, done=found.done)

    notes, again = Notes(), Notes()
    play(Echo(Task(id="t", domain="d")), template(), recorder=notes)
    found, asked = play(Other(Task(id="t", domain="d")), template(), saved_turns=said(notes, cut=0), recorder=again)
    assert again.void == [1] and len(asked) == 2, "the first turn still holds, the second is sampled anew"
    assert asked[0].produced == 0 and found.status.valid
