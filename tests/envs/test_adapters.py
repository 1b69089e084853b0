"""Environments of other libraries, named as in a config file."""

import asyncio
import json
from typing import Any

import pytest

from roll.envs.base import Env, StepResult
from roll.envs.guarded import GuardedEnv
from roll.errors import ConfigError, EnvFailed
from roll.registry import ENVS
from roll.types import Message, Spec, Task
from tests.envs import strangers

HERE = strangers.__name__


def env(kind: str, *, seed: int = 0, **arguments: Any) -> Any:
    return ENVS[kind](Task(id="t", domain="d", seed=seed), **arguments)


def played(found: Env, *replies: str) -> tuple[tuple[Message, ...], list[StepResult]]:
    async def play() -> tuple[tuple[Message, ...], list[StepResult]]:
        opening = await found.start()
        heard = [await found.step(reply) for reply in replies]
        await found.close()
        await found.close()
        return opening, heard

    return asyncio.run(play())


def texts(replies: list[StepResult]) -> list[str]:
    return [message.content for reply in replies for message in reply.messages]


def test_a_gymnasium_environment_is_played_by_the_names_of_its_actions() -> None:
    ladder = env(
        "gymnasium",
        seed=1,
        env=f"{HERE}:Ladder",
        options={"rungs": 2},
        actions=["down", "up"],
        describe=f"{HERE}:in_words",
        prompt="Climb.",
        format_penalty=0.5,
    )
    opening, heard = played(ladder, "jump", "down", "down", "UP ", "up")
    assert opening == (Message("user", "Climb.\nrung 1 of 2"),)
    assert texts(heard) == [
        "Not an action. Choose one of: down, up\nrung 1 of 2",
        "rung 0 of 2",
        "rung 0 of 2",
        "rung 1 of 2",
        "rung 2 of 2",
    ]
    assert [reply.reward for reply in heard] == [-0.5, 0.0, 0.0, 0.0, 1.0]
    assert [reply.done for reply in heard] == [False] * 4 + [True]
    assert [reply.state for reply in heard][-2:] == ["rung 1 of 2", "rung 2 of 2"]
    assert heard[-1].metrics == {"success": 1.0, "turns": 5.0, "valid_actions": 0.8, "effective_actions": 0.6}
    assert ladder._wrapped.env.closed == 1, "closed once, however often it is asked for"


def test_actions_without_names_are_numbers_and_a_cut_attempt_is_no_success() -> None:
    ladder = env("gymnasium", env=f"{HERE}:Ladder", options={"patience": 2}, describe=f"{HERE}:in_words")
    assert ladder.actions == ("0", "1")
    _, heard = played(ladder, "1", "0")
    assert heard[-1].done and heard[-1].metrics["success"] == 0.0


def test_the_real_gymnasium_is_found_by_id_and_read_as_it_draws_itself() -> None:
    pytest.importorskip("gymnasium", reason="the package gymnasium is not installed")
    frozen, again = (
        env(
            "gymnasium",
            env="FrozenLake-v1",
            options={"render_mode": "ansi", "is_slippery": False},
            actions=["left", "down", "right", "up"],
        )
        for _ in range(2)
    )
    opening, heard = played(frozen, *["down", "down", "right", "right", "right"])
    assert "FFFH" in opening[0].content
    assert (heard[-1].done, heard[-1].reward, heard[-1].metrics["success"]) == (True, 0.0, 0.0), "that is a hole"
    _, heard = played(again, *["down", "down", "right", "right", "down", "right"])
    assert (heard[-1].done, heard[-1].reward, heard[-1].metrics["success"]) == (True, 1.0, 1.0)
    assert heard[-1].metrics["effective_actions"] == 1.0


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"env": f"{HERE}:Ladder"}, "has no text observation (observation 0, got None); name a function in"),
        ({"env": f"{HERE}:Ladder", "actions": ["up"]}, "has 2 actions (got 1); name each of them"),
        ({"env": f"{HERE}:Lader"}, "did you mean 'Ladder'?"),
        ({"env": "nowhere.at:All"}, "no module named 'nowhere.at'"),
        ({"env": f"{HERE}:Riddle"}, "unexpected keyword argument 'seed'"),
    ],
)
def test_an_unsuitable_environment_fails_with_a_reason(arguments: dict[str, Any], message: str) -> None:
    async def start() -> None:
        await GuardedEnv(Spec("gymnasium", arguments), Task(id="t", domain="d")).start()

    with pytest.raises(EnvFailed) as failed:
        asyncio.run(start())
    assert message in str(failed.value) and str(failed.value).startswith("environment 'gymnasium' of task 't'")


def test_a_gem_environment_speaks_for_itself() -> None:
    opening, heard = played(env("gem", env=f"{HERE}:Riddle", prompt="Solve:"), "6", "9")
    assert opening == (Message("user", "Solve:\n3 times 3?"),)
    assert texts(heard) == ["no", "yes"] and [reply.reward for reply in heard] == [0.0, 1.0]
    assert heard[-1].metrics == {"success": 1.0, "turns": 2.0}
    seeded, _ = played(env("gem", seed=7, env=f"{HERE}:Seeded"))
    assert seeded == (Message("user", "riddle 7?"),)


def test_a_verifiers_environment_asks_its_dataset_and_is_scored_by_its_rubric() -> None:
    opening, heard = played(env("verifiers", seed=3, env=f"{HERE}:Tutor"), "6", "5")
    assert opening == (Message("user", "3+2?"),)
    assert texts(heard) == ["odd 1"]
    assert [(reply.reward, reply.done) for reply in heard] == [(0.0, False), (1.0, True)]
    assert heard[-1].metrics == {"turns": 2.0, "success": 1.0, "turns_used": 2.0}
    opening, heard = played(env("verifiers", seed=2, env=f"{HERE}:tutor"), "1", "1", "1", "1")
    assert opening == (Message("system", "Answer."), Message("user", "2+2?"))
    assert (heard[-1].done, heard[-1].reward, heard[-1].metrics["success"]) == (True, 0.25, 0.0)


def test_attempts_share_a_verifiers_environment_and_not_its_state() -> None:
    one, two = (env("verifiers", seed=1, env=f"{HERE}:Tutor") for _ in range(2))
    assert one._env is two._env
    played(one, "6", "6")
    assert texts(played(two, "6")[1]) == ["odd 1"]


def test_an_older_verifiers_environment_with_tools_works_too() -> None:
    call = json.dumps({"name": "add", "arguments": {"a": 3}})
    opening, heard = played(env("verifiers", env=f"{HERE}:OldTutor"), f"so <tool_call>{call}</tool_call>", "5")
    assert opening == (Message("user", "3+2?"),)
    assert heard[0].messages == (Message("tool", 'add {"a": 3}'),)
    assert (heard[1].reward, heard[1].metrics) == (1.0, {"turns": 2.0, "success": 1.0, "length": 3.0})
    _, heard = played(env("verifiers", env=f"{HERE}:OldTutor"), "<tool_call>{broken</tool_call>", "5")
    assert texts(heard)[0] == "no tool"


def test_tasks_with_messages_need_no_dataset() -> None:
    task = Task(id="t", domain="d", messages=(Message("user", "7?"),), answer="7", metadata={"hint": "prime"})
    opening, heard = played(ENVS["verifiers"](task, env=f"{HERE}:Tutor"), "8", "7")
    assert opening == task.messages and texts(heard) == ["prime 1"] and heard[-1].reward == 1.0


def test_an_object_that_is_no_verifiers_environment_is_rejected() -> None:
    with pytest.raises(ConfigError, match="has no 'env_response'"):
        env("verifiers", env=f"{HERE}:Riddle")
