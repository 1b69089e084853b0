"""The environment with tools: alone, in an episode with each tool format, and in a process."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from roll.data.templates import Template
from roll.data.tools import CallFault, ParsedResponse, ToolCall
from roll.envs.base import StepResult
from roll.envs.calculator import CalculatorEnv
from roll.rollout.env_pool import EnvPool
from roll.rollout.environments import InlineEnvs, make_inline_env
from roll.rollout.episode.runner import Attempt, EpisodeLimits, EpisodeRunner
from roll.rollout.episode.transcripts import RecordingEnv
from roll.types import Message, Sampling, Spec, Status, Task, Trajectory
from tests.data.chat_templates import family, tokenizer
from tests.rollout.sampler import Sampler

TASK = Task(id="t", domain="d", seed=3)
CALL = Spec("calculator", {"format_penalty": 0.25})
A, B, C = (lambda draws: [draws.randint(1, 99) for _ in range(3)])(random.Random(3))
CALLS = {
    "hermes": '<tool_call>\n{"name": "%s", "arguments": {"a": %d, "b": %d}}\n</tool_call>',
    "llama": '{"name": "%s", "parameters": {"a": %d, "b": %d}}',
}


def play(words: Template, replies: Sequence[str], env: Any) -> tuple[Trajectory, Sampler]:
    sampler = Sampler([words.answer(reply, where="t").tolist() for reply in replies])
    runner = EpisodeRunner(
        router=sampler,  # pyright: ignore[reportArgumentType]
        template=words,
        limits=EpisodeLimits(
            sampling=Sampling(), max_seq_len=4000, max_new_tokens=200, max_turns=8, stop=words.eos_ids
        ),
    )
    attempt = Attempt(task=TASK, sibling=0, number=0, purpose="train", seed=1)

    async def run() -> Trajectory:
        made = env if not isinstance(env, Spec) else await make_inline_env(env, TASK)
        return (await runner.run(attempt, made))[0]

    return asyncio.run(run()), sampler


def test_it_adds_and_multiplies_and_knows_the_answer() -> None:
    async def use() -> list[StepResult]:
        env = CalculatorEnv(TASK)
        assert await env.start() == (
            Message("user", f"What is ({A} + {B}) x {C}? Use the tools; then answer with the number alone."),
        )
        calls = [
            ParsedResponse(text="", calls=(ToolCall("add", {"a": A, "b": B}),)),
            ParsedResponse(
                text="", calls=(ToolCall("multiply", {"a": A + B, "b": C}), ToolCall("add", {"a": 10**13, "b": 1}))
            ),
            ParsedResponse(text=f" {(A + B) * C}\n"),
        ]
        return [await env.call(said) for said in calls]

    first, second, last = asyncio.run(use())
    assert first.messages == (Message("tool", str(A + B)),) and not first.done
    assert [message.content for message in second.messages] == [str((A + B) * C), "too large"]
    assert (last.reward, last.done, last.metrics["success"], last.metrics["valid_actions"]) == (1.0, True, 1.0, 1.0)


def test_a_wrong_answer_ends_it_without_a_reward() -> None:
    env = CalculatorEnv(TASK)
    found = asyncio.run(env.step("12345678"))
    assert (found.reward, found.done, found.metrics["success"]) == (0.0, True, 0.0)


@pytest.mark.parametrize(("name", "form"), [("chatml", "hermes"), ("thinking", "hermes"), ("llama", "llama")])
def test_a_call_reaches_the_environment_in_the_form_of_the_template(name: str, form: str) -> None:
    words, calls = family(name), CALLS[form]
    replies = [calls % ("add", A, B), calls % ("multiply", A + B, C), str((A + B) * C)]
    found, sampler = play(words, replies, CALL)
    assert (found.status, found.reward, len(found.segments)) == (Status.FINISHED, 1.0, 1), found.reason
    assert "multiply" in words.tokenizer.decode(list(sampler.asked[0].ids)), "the template tells of the tools"
    heard = words.tokenizer.decode(found.turns[1].observation.tolist())
    assert str(A + B) in heard and "multiply" not in heard


def test_a_malformed_call_gets_the_reason_and_costs_the_penalty() -> None:
    words = family("chatml")
    replies = [CALLS["llama"].replace("{", "<tool_call>{", 1) % ("add", 1, 2), str((A + B) * C)]
    found, _ = play(words, replies, CALL)
    assert [turn.reward for turn in found.turns] == [-0.25, 1.0] and found.metrics["valid_actions"] == 0.5
    assert "error: <tool_call> without </tool_call>" in words.tokenizer.decode(found.turns[1].observation.tolist())


def test_a_fault_is_handed_over_by_name() -> None:
    heard: list[ParsedResponse] = []

    class Listening(CalculatorEnv):
        async def call(self, response: ParsedResponse) -> StepResult:
            heard.append(response)
            return await super().call(response)

    play(family("chatml"), ["<tool_call>add</tool_call>"] * 4, Listening(TASK))
    assert [said.fault for said in heard] == [CallFault.NOT_JSON] * 4


def test_a_template_that_cannot_call_tools_is_reported() -> None:
    words = tokenizer("chatml")
    words.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    found, _ = play(Template(words), ["5"], CALL)
    assert found.status is Status.ENV_FAILED and "the chat template has no way to call a tool" in found.reason


@pytest.mark.parametrize("start_limit", [None, 1])
def test_tools_pass_through_every_way_to_come_by_an_environment(start_limit: int | None) -> None:
    async def use() -> StepResult:
        env = RecordingEnv(await InlineEnvs(start_limit=start_limit).make(CALL, TASK))
        await env.start()
        assert [tool.name for tool in env.tools] == ["add", "multiply"]
        found = await env.call(ParsedResponse(text="so", calls=(ToolCall("add", {"a": 1, "b": 2}),)))
        assert env.messages[1:] == [Message("assistant", "so"), Message("tool", "3")]
        return found

    assert asyncio.run(use()).messages == (Message("tool", "3"),)


@pytest.mark.slow
def test_tools_come_from_a_process_and_calls_go_there() -> None:
    async def use() -> None:
        pool = EnvPool(1, names=["calculator"])
        try:
            await pool.start()
            env: Any = await pool.make(CALL, TASK)
            await env.start()
            assert [tool.name for tool in env.tools] == ["add", "multiply"]
            found = await env.call(ParsedResponse(text="", calls=(ToolCall("multiply", {"a": 6, "b": 7}),)))
            assert found.messages == (Message("tool", "42"),)
            await env.close()
        finally:
            await pool.stop()

    asyncio.run(use())
