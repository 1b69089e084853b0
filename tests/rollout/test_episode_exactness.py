"""Ten turns through families of chat templates: what is trained is what was sampled, and nothing twice."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.data.templates import Template
from roll.data.tools import ParsedResponse, Tool
from roll.envs.base import StepResult
from roll.rollout.episode.conversation import SegmentBreaks
from roll.rollout.episode.runner import Attempt, EpisodeLimits, EpisodeRunner
from roll.types import Message, Sampling, Task, Trajectory
from tests.data.chat_templates import ALPHABET, FAMILIES, STRICT, TAGS, family
from tests.rollout.sampler import Sampler

pytestmark = pytest.mark.slow

TURNS = 10
CONTEXT = 20_000
TEXT = "".join(letter for letter in ALPHABET if letter not in "<>")
"""What observations are made of: a text that spells a special token would be one."""
OPENING = (Message("system", "Use the tools."), Message("user", "What is 12 x 12?"))

texts = st.text(TEXT, min_size=1, max_size=12)
observations = st.lists(st.tuples(st.sampled_from(("tool", "tool", "user")), texts), min_size=TURNS, max_size=TURNS)


@cache
def words(name: str) -> Template:
    return family(name)


class Saying:
    """An environment with a tool and prepared messages, each prefixed with the number of its turn."""

    tools = (Tool("far", "How far.", {"type": "object"}),)

    def __init__(self, said: Sequence[tuple[str, str]]) -> None:
        self._said, self._turn = said, 0
        self.heard: list[str] = []

    async def start(self) -> tuple[Message, ...]:
        return OPENING

    async def step(self, response: str) -> StepResult:
        self.heard.append(response)
        role, text = self._said[self._turn]
        self._turn += 1
        return StepResult(messages=(Message(role, f"[{self._turn}]{text}"),), done=self._turn == TURNS)

    async def call(self, response: ParsedResponse) -> StepResult:
        return await self.step(response.text)

    async def close(self) -> None: ...


class Asking(Saying):
    """Without tools and system message; every message is the user's, as strict templates demand."""

    tools = ()

    async def start(self) -> tuple[Message, ...]:
        return OPENING[1:]

    async def step(self, response: str) -> StepResult:
        result = await super().step(response)
        return replace(result, messages=tuple(Message("user", message.content) for message in result.messages))


def play(
    name: str, replies: Sequence[Sequence[int]], said: Sequence[tuple[str, str]], **changes: Any
) -> tuple[Trajectory, Sampler, SegmentBreaks]:
    sampler, breaks, template = Sampler(replies), SegmentBreaks(), words(name)
    numbers: dict[str, Any] = {"max_seq_len": CONTEXT, "max_new_tokens": 64, "max_turns": TURNS, **changes}
    runner: Any = EpisodeRunner(
        router=sampler,  # pyright: ignore[reportArgumentType] - as much of it as an episode needs
        template=template,
        limits=EpisodeLimits(sampling=Sampling(), stop=template.eos_ids, **numbers),
        segment_breaks=breaks,
    )
    attempt = Attempt(task=Task(id="t", domain="d"), sibling=0, number=0, purpose="train", seed=1)
    env = Asking(said) if name in STRICT else Saying(said)
    found, _ = asyncio.run(runner.run(attempt, env))
    return found, sampler, breaks


def scattered(name: str) -> st.SearchStrategy[list[list[int]]]:
    """Replies of any ids at all, spelled as no tokenizer would, some with an end and some without."""
    template = words(name)
    inner = st.sampled_from(sorted(set(template.tokenizer.get_vocab().values()) - template.eos_ids))
    reply = st.tuples(
        st.lists(inner, min_size=1, max_size=8), st.sampled_from([[], [template.eos_id], sorted(template.eos_ids)[:1]])
    )
    return st.lists(reply.map(lambda parts: [*parts[0], *parts[1]]), min_size=TURNS, max_size=TURNS)


def check_exact(found: Trajectory, sampler: Sampler) -> None:
    """Every sampled token is trained once, as it was sampled, after exactly what the engine was shown."""
    assert found.status.valid, found.reason
    trained = [token for segment in found.segments for token in segment.ids[segment.trained].tolist()]
    assert trained == [token for reply in sampler.replies for token in reply]
    shown = iter(sampler.asked)
    for segment in found.segments:
        end = 0
        for turn in segment.turns:
            end += len(turn.observation)
            assert segment.ids[:end].tolist() == list(next(shown).ids)
            end += len(turn.sampled)
        assert end == len(segment.ids)


@pytest.mark.parametrize("name", sorted({**FAMILIES, **STRICT}))
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_every_sampled_token_is_trained_unchanged_in_exactly_one_segment(name: str, data: st.DataObject) -> None:
    for per_turn in (False, True):
        replies, said = data.draw(scattered(name)), data.draw(observations)
        found, sampler, _ = play(name, replies, said, per_turn=per_turn)
        check_exact(found, sampler)
        if per_turn:
            assert [len(segment.turns) for segment in found.segments] == [1] * TURNS


@pytest.mark.parametrize("name", sorted(FAMILIES))
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_old_turns_are_dropped_without_a_sampled_token_being_lost_or_trained_twice(
    name: str, data: st.DataObject
) -> None:
    replies, said = data.draw(scattered(name)), data.draw(observations)
    found, sampler, breaks = play(name, replies, said, max_seq_len=400, max_new_tokens=9, drop_oldest=True)
    check_exact(found, sampler)
    assert all(len(segment.ids) <= 400 for segment in found.segments)
    assert all(request.max_new_tokens == 9 for request in sampler.asked), "there is room for a whole reply each time"
    if name == "chatml":
        assert len(found.segments) == 1 + breaks.dropped > 2


@pytest.mark.parametrize("name", ["chatml", "llama", *STRICT])
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_a_template_that_only_appends_gives_one_segment_with_every_text_tokenised_once(
    name: str, data: st.DataObject
) -> None:
    template = words(name)
    spoken, said = data.draw(st.lists(texts, min_size=TURNS, max_size=TURNS)), data.draw(observations)
    replies = [template.answer(text, where="t").tolist() for text in spoken]
    found, sampler, breaks = play(name, replies, said)
    check_exact(found, sampler)
    (segment,) = found.segments
    assert (breaks.rewritten, breaks.dropped) == (0, 0)
    for number, turn in enumerate(segment.turns[1:], start=1):
        text = template.tokenizer.decode(turn.observation.tolist())
        assert text.count(f"[{number}]") == 1, "an observation holds what is new"
        assert not any(f"[{other}]" in text for other in range(1, TURNS) if other != number), "and nothing else"
    if name == "chatml":  # which leaves spaces alone, so that the ids spell what the template would write
        whole = [*OPENING]
        for number in range(1, TURNS):
            role, text = said[number - 1]
            whole += [Message("assistant", spoken[number - 1]), Message(role, f"[{number}]{text}")]
        rendered = template.tokenizer.decode(template.open(whole, where="t", tools=Saying.tools).tolist())
        assert template.tokenizer.decode(list(sampler.asked[-1].ids)) == rendered


@settings(max_examples=20, deadline=None)
@given(
    thoughts=st.lists(st.none() | st.text("abc xyz", min_size=1).filter(str.strip), min_size=TURNS, max_size=TURNS),
    said=observations,
)
def test_a_template_that_drops_thoughts_starts_a_segment_exactly_there(
    thoughts: list[str | None], said: list[tuple[str, str]]
) -> None:
    template = words("thinking")
    spoken = [f"<think>\n{thought}\n</think>\n\nso" if thought else "so" for thought in thoughts]
    replies = [[*template.tokenizer.encode(text, add_special_tokens=False), template.eos_id] for text in spoken]
    found, sampler, breaks = play("thinking", replies, said)
    check_exact(found, sampler)
    lengths, thinking = [0], False
    for thought, (role, _) in zip(thoughts, said, strict=True):
        lengths[-1] += 1
        thinking = thinking or thought is not None
        if role == "user" and thinking:  # a new question: what was thought before it is shown no more
            lengths.append(0)
            thinking = False
    assert [len(segment.turns) for segment in found.segments] == [length for length in lengths if length]
    assert breaks.rewritten == len(found.segments) - 1


def test_tags_of_a_template_are_words_of_a_reply() -> None:
    template = words("chatml")
    ids = [template.tokenizer.convert_tokens_to_ids(tag) for tag in TAGS]
    assert template.decode(ids) == "".join(TAGS)


def test_the_first_rewrite_is_noticed_at_once_and_all_are_counted() -> None:
    heard: list[str] = []
    breaks = SegmentBreaks(notice=heard.append)
    for turn in (3, 5):
        breaks.rewrite("task 't'", turn)
    assert len(heard) == 1 and "task 't', turn 3: the chat template rewrites" in heard[0]
    assert breaks.drain() == {"segments/rewritten": 2.0}
    assert breaks.drain() == {}
