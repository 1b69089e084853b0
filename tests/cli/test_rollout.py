"""`roll rollout`: attempts by anyone, to be read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

RUN = """\
name: tiny
threads: 1
model:
  shape: {hidden: 32, layers: 1, heads: 2, kv_heads: 1, mlp: 64, max_seq_len: 128}
algorithm: grpo
tasks:
  - {name: guess, env: {kind: guess_number, max_turns: 3}}
  - {name: broken, env: "roamers:Broken"}
  - {name: endless, env: "roamers:Endless"}
  - {name: steps, env: "roamers:Steps"}
rollout: {max_seq_len: 128, max_new_tokens: 4, max_turns: 5, env_timeout_s: 20}
validation:
  tasks: [{name: sums, data: {kind: arithmetic, split: held_out, count: 3}, reward: exact}]
"""
MINE = """
from roll.envs.base import StepResult
from roll.types import Message


async def five(messages):
    return "5"


def talks_back(messages):
    assert messages[-1].role == "user"
    return str(len(messages))


class Knows:
    def __init__(self, task):
        self.task = task

    def __call__(self, messages):
        return self.task.answer


def number(messages):
    return 5


def raises(messages):
    raise ValueError("not my day")


class Endless:
    def __init__(self, task):
        pass

    async def start(self):
        return (Message("user", "?"),)

    async def step(self, response):
        return StepResult(messages=(Message("user", response),), reward=0.25)

    async def close(self):
        pass


class Broken(Endless):
    async def step(self, response):
        raise RuntimeError("the world ended")


class Steps(Endless):
    actions = ("left", "right")

    async def step(self, response):
        assert response in self.actions
        done = response == "left"
        return StepResult(messages=(Message("user", response),), reward=float(done), done=done)
"""


@pytest.fixture
def rollout(folder: Path, roll: Callable[..., Any]) -> Callable[..., Any]:
    (folder / "run.yaml").write_text(RUN)
    (folder / "roamers.py").write_text(MINE)
    return lambda *arguments: roll("rollout", "run.yaml", *arguments)


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]


def test_a_scripted_agent_is_printed_with_its_outcome(rollout: Callable[..., Any]) -> None:
    found = rollout("--agent", "guess_number", "--num", "2")
    assert (found.code, found.err) == (0, "")
    head, *said = found.out.splitlines()
    assert head.startswith("== seed-0: finished, reward ") and said[:2] == ["[user] 1-9?", "[assistant] 5"]
    assert found.out.splitlines()[-1].startswith("2 attempts: success ")


def test_transcripts_are_written_with_all_messages(rollout: Callable[..., Any], folder: Path) -> None:
    found = rollout("--tasks", "endless", "--agent", "roamers:talks_back", "--num", "2", "--output", "out.jsonl")
    assert found.out.splitlines() == ["2 attempts: out.jsonl", "2 attempts: success 1.000, reward 1.250, 5.0 turns"]
    first = rows(folder)[0]
    said = [message["content"] for message in first.pop("messages")]
    assert said == ["?", "1", "1", "3", "3", "5", "5", "7", "7", "9", "9"]
    assert first == {
        "source": "endless",
        "id": "seed-0",
        "task": "seed-0",
        "attempt": 0,
        "status": "truncated",
        "reason": "5 turns are over",
        "reward": 1.25,
        "turns": 5,
        "metrics": {},
    }


def test_a_reward_scores_the_last_reply_and_tasks_repeat(rollout: Callable[..., Any], folder: Path) -> None:
    found = rollout("--tasks", "sums", "--agent", "roamers:Knows", "--num", "5", "--output", "out.jsonl")
    assert found.out.splitlines()[-1] == "5 attempts: success 1.000, reward 1.000, 1.0 turns"
    assert [row["attempt"] for row in rows(folder)] == [0, 0, 0, 1, 1]
    assert len({row["task"] for row in rows(folder)}) == 3
    assert len({row["id"] for row in rows(folder)}) == 5, "each row can be read as a task of its own"


def test_attempts_are_kept_by_reward_and_rank(rollout: Callable[..., Any], folder: Path) -> None:
    options = ("--tasks", "sums", "--agent", "roamers:Knows", "--num", "5", "--output", "out.jsonl")
    assert rollout(*options, "--best", "1").out.splitlines()[0] == "3 of 5 attempts: out.jsonl"
    assert [row["attempt"] for row in rows(folder)] == [0, 0, 0], "the earlier one of equals"
    assert rollout(*options, "--min-reward", "1.5").out.splitlines()[0] == "0 of 5 attempts: out.jsonl"
    assert rows(folder) == []


def test_failures_are_reported_and_counted_and_stop_nothing(rollout: Callable[..., Any]) -> None:
    found = rollout("--tasks", "broken", "--agent", "roamers:five", "--num", "2", "envs.workers=1")
    assert found.code == 0 and found.out.splitlines()[-1] == "2 attempts; env_failed: 2"
    assert "of task 'seed-1', turn 0: RuntimeError: the world ended" in found.out


def test_a_random_agent_takes_legal_actions_and_is_reproducible(rollout: Callable[..., Any], folder: Path) -> None:
    said = []
    for _ in range(2):
        rollout("--tasks", "steps", "--agent", "random", "--num", "20", "--output", "out.jsonl", "envs.workers=1")
        said.append([[message["content"] for message in row["messages"]] for row in rows(folder)])
    assert said[0] == said[1]
    assert {first[1] for first in said[0]} == {"left", "right"}


def test_the_model_plays_as_in_training(rollout: Callable[..., Any], folder: Path) -> None:
    found = rollout("--num", "3", "--output", "out.jsonl")
    assert found.code == 0 and found.out.splitlines()[-1].startswith("3 attempts: success ")
    for row in rows(folder):
        assert row["turns"] == 3 and [message["role"] for message in row["messages"]] == ["user", "assistant"] * 3 + [
            "user"
        ]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--agent", "roamers:number"], "--agent: returned no text (got 5); return the response"),
        (["--agent", "roamers:raises"], "--agent: ValueError: not my day; fix"),
        (["--agent", "roamers:nobody"], "module roamers has no 'nobody'"),
        (["--agent", "guess_numbr"], "no scripted agent named 'guess_numbr'; did you mean 'guess_number'?"),
        (["--tasks", "gues", "--agent", "random"], "has no source named 'gues'; did you mean 'guess'?"),
        (["--tasks", "endless", "--agent", "random"], "does not list its actions; give it an attribute"),
        (["--agent", "roamers:five", "--output", "no/where.jsonl"], "--output no/where.jsonl: cannot be written"),
    ],
)
def test_wrong_options_are_reported_in_one_line(
    rollout: Callable[..., Any], arguments: list[str], message: str
) -> None:
    assert message in rollout(*arguments).fault(2)
