"""Attempts of a scripted agent become exactly the ids that the policy would see and write."""

import asyncio
from typing import Literal

import pytest

from roll.data.templates import Template, character_tokenizer
from roll.errors import ConfigError
from roll.rollout.episode.demonstration import Demonstrator, Row
from roll.types import Message, Spec, Task

TOKENIZER = character_tokenizer("123456789-?eghilortw")
LIMITS = {"max_seq_len": 64, "max_turns": 32}


def rows(
    player: str = "guess_number",
    *,
    stop: str = "",
    seed: int = 1,
    template: Literal["plain", "last"] = "plain",
    **limits: int,
) -> list[Row]:
    found = Demonstrator(
        agent=Spec(player),
        template=Template(TOKENIZER, template),
        stop=frozenset(TOKENIZER.encode(stop)),
        **{**LIMITS, **limits},
    )
    return asyncio.run(found.rows(Task(id="t", domain="d", seed=seed), Spec("guess_number", {"high": 9})))


def texts(row: Row) -> list[str]:
    return [TOKENIZER.decode(part) for part in row]


def fives(messages: object) -> str:
    return "5"


def nothing(messages: object) -> None: ...


def test_observations_and_responses_alternate_and_every_response_ends_with_eos():
    (row,) = rows()
    seen, said = texts(row)[::2], texts(row)[1::2]
    assert seen[0] == "1-9?" and said[0] == "5<eos>"
    assert set(seen[1:]) <= {"higher", "lower"} and len(seen) == len(said) > 1


def test_a_response_that_ends_with_a_stop_token_gets_no_other():
    (row,) = rows(stop="123456789")
    assert all(len(part) == 1 for part in row[1::2])
    assert texts(row)[1] == "5"


def test_an_attempt_ends_at_the_sequence_limit_and_at_the_turn_limit():
    own = f"{__name__}:fives"
    (whole,) = rows(own, stop="5", seed=2)
    assert len(whole) == 8  # four turns, none of them right
    assert rows(own, stop="5", seed=2, max_turns=2) == [whole[:4]]
    length = sum(map(len, whole[:4]))
    assert rows(own, stop="5", seed=2, max_seq_len=length) == [whole[:4]]
    assert rows(own, stop="5", seed=2, max_seq_len=length - 1) == [whole[:2]]


def test_a_template_that_rewrites_earlier_text_starts_a_row_per_response():
    (whole,) = rows(stop="123456789")
    assert rows(stop="123456789", template="last") == [whole[at : at + 2] for at in range(0, len(whole), 2)]


def test_a_context_without_room_for_one_response_is_refused():
    with pytest.raises(ConfigError, match=r"'t': its first messages and a response do not fit .*max_seq_len \(5\)"):
        rows(max_seq_len=5)


def test_an_agent_that_returns_no_text_is_refused():
    with pytest.raises(ConfigError, match=r"agent '.*:nothing' must return text \(got None\)"):
        rows(f"{__name__}:nothing")


def test_agents_see_the_whole_conversation():
    heard: list[list[Message]] = []
    PLAYED.append(heard)
    (row,) = rows(f"{__name__}:listener", stop="5", seed=2)
    assert [len(messages) for messages in heard] == [1, 3, 5, 7]
    assert [message.role for message in heard[-1]] == ["user", "assistant"] * 3 + ["user"]
    assert len(row) == 8


PLAYED: list[list[list[Message]]] = []


def listener(messages: list[Message]) -> str:
    PLAYED[-1].append(list(messages))
    return "5"


def test_an_agent_for_an_environment_with_several_agents_is_refused():
    words = Template(TOKENIZER, "plain")
    found = Demonstrator(agent=Spec(f"{__name__}:fives"), template=words, stop=frozenset(), **LIMITS)
    with pytest.raises(ConfigError, match=r"a scripted agent plays one agent \(got x, o\)"):
        asyncio.run(found.rows(Task(id="t", domain="d"), Spec("tic_tac_toe")))
