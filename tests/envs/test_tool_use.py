"""Multi-turn tool use: alone, in an episode, and in a run with misbehaving tools."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roll.config.load import load
from roll.data.tools import CallFault, ToolCall, format_call
from roll.envs.base import StepResult
from roll.envs.guarded import unusable_reason
from roll.envs.tool_use import ToolUse
from roll.errors import ConfigError
from roll.preflight import preflight
from roll.registry import SCRIPTED_AGENTS
from roll.rollout.env_pool import EnvPool
from roll.rollout.environments import make_inline_env
from roll.rollout.episode.runner import Attempt, EpisodeLimits, EpisodeRunner
from roll.rollout.source import TaskSource
from roll.tools.base import FAULTS, ToolFault
from roll.tracking.glossary import describe
from roll.types import Message, Sampling, Spec, Status, Task, Trajectory
from tests.data.chat_templates import family
from tests.envs.worlds import play
from tests.rollout.sampler import Sampler

OWN = "tests.tools.custom_tools"
TASK = Task(id="t", domain="d", messages=(Message("user", "12*34="),), answer="408")


def calling(name: str, **arguments: Any) -> str:
    return format_call(ToolCall(name, arguments))


def env(*tools: Any, **options: Any) -> ToolUse:
    return ToolUse(TASK, list(tools) or ["calculator"], **{"exact": True, **options})


def faults(reply: StepResult) -> dict[str, float]:
    """Those that there were."""
    kinds = {str(fault): reply.metrics[f"tools/faults/{fault}"] for fault in FAULTS}
    assert sum(kinds.values()) == reply.metrics["tools/faults"]
    return {kind: count for kind, count in kinds.items() if count}


def test_a_tool_is_called_and_a_reply_without_a_call_is_the_answer() -> None:
    first, last = play(env(), calling("calculator", expression="12*34"), "<think>so</think> 408\n")
    assert first.messages == (Message("tool", "408"),) and (first.reward, first.done) == (0.0, False)
    assert (last.reward, last.done, last.messages, last.metrics["success"]) == (1.0, True, (), 1.0)
    assert (last.metrics["tools/calls"], last.metrics["turns"], faults(last)) == (1, 2, {})


def test_several_calls_in_one_reply_are_answered_in_their_order() -> None:
    both = calling("calculator", expression="1+1") + calling("calculator", expression="2/0")
    (found,) = play(env(), both)
    assert [message.content for message in found.messages] == ["2", "error: division by zero"]
    assert found.metrics["tools/calls"] == 2 and faults(found) == {"failed": 1}


@pytest.mark.parametrize(
    ("reply", "fault", "says"),
    [
        (calling("oracle", question="?"), CallFault.UNKNOWN_TOOL, "error: no tool named 'oracle'"),
        (calling("calculator", expression=3), CallFault.BAD_ARGUMENTS, "'expression' must be of type string"),
        (calling("calculator"), CallFault.BAD_ARGUMENTS, "'expression' is missing"),
        ('<tool_call>{"name": "calculator", }</tool_call>', CallFault.NOT_JSON, "error: the call is not JSON"),
        ('<tool_call>{"name": "calculator"}</tool_call>', CallFault.NOT_A_CALL, "error: a call is"),
        ('<tool_call>{"name": "calc', CallFault.NOT_CLOSED, "without </tool_call>"),
        (calling("hangs"), ToolFault.TIMED_OUT, "error: hangs gave no answer within 0.05 s"),
        (calling("raises", word="w"), ToolFault.FAILED, "error: KeyError: 'w'"),
        (calling("burn"), ToolFault.GONE, "error: ashes"),
    ],
)
def test_every_fault_is_reported_and_counted_and_the_attempt_continues(reply: str, fault: str, says: str) -> None:
    tools = ["calculator", f"{OWN}:hangs", f"{OWN}:raises", {"kind": f"{OWN}:Diary", "owner": "a"}]
    world = env(*tools, timeout_s=0.05, format_penalty=0.25)
    first, last = play(world, reply, "408")
    (message,) = first.messages
    assert message.role == "tool" and says in message.content and not first.done
    assert first.reward == (-0.25 if isinstance(fault, CallFault) else 0.0)
    assert faults(last) == {str(fault): 1} and last.reward == 1.0
    assert last.metrics["effective_actions"] == 0.5
    assert last.metrics["valid_actions"] == (0.5 if isinstance(fault, CallFault) else 1.0)


def test_without_an_answer_it_ends_after_its_turns_with_nothing() -> None:
    *_, last = play(env(max_turns=2), *[calling("calculator", expression="12*34")] * 3)
    assert (last.done, last.reward, last.metrics["turns"]) == (True, 0.0, 2)


def test_a_wrong_answer_gets_nothing_and_one_of_several_right_ones_is_right() -> None:
    assert play(env(), "409")[0].reward == 0.0 and play(env(), "<think>408")[0].reward == 0.0
    several = ToolUse(replace(TASK, answer=["four hundred", 408]), ["calculator"], exact=True)
    assert play(several, "408")[0].reward == 1.0


def test_equal_calls_lead_to_equal_states_with_any_text_around_them() -> None:
    call = calling("calculator", expression="1")
    (plain,), (chatty,) = play(env(), call), play(env(), f"Let me see. {call}")
    (other,) = play(env(), calling("calculator", expression="1+0"))
    assert plain.state == chatty.state != other.state


def test_every_metric_has_a_separate_meaning() -> None:
    (reply,) = play(env(), "408")
    meanings = {describe(f"env/d/{name}") for name in reply.metrics if name.startswith("tools/")}
    assert len(meanings) == 3 and None not in meanings and describe("env/d/turns") not in meanings


def attempt(words: Any, replies: list[str], source: TaskSource) -> Trajectory:
    sampler = Sampler([words.answer(reply, where="t").tolist() for reply in replies])
    runner = EpisodeRunner(
        router=sampler,  # pyright: ignore[reportArgumentType]
        template=words,
        limits=EpisodeLimits(
            sampling=Sampling(), max_seq_len=4000, max_new_tokens=200, max_turns=8, stop=words.eos_ids
        ),
    )
    return asyncio.run(source.attempt(runner, Attempt(task=TASK, sibling=0, number=0, purpose="train", seed=1)))


@pytest.mark.parametrize(("name", "form"), [("chatml", "hermes"), ("thinking", "hermes"), ("llama", "llama")])
def test_an_episode_calls_in_the_form_of_its_template_and_the_source_rewards_the_answer(name: str, form: Any) -> None:
    source = TaskSource(
        name="d",
        tasks=[TASK],
        env=Spec("tool_use", {"tools": ["calculator"]}),
        reward=Spec("exact"),
        make_env=make_inline_env,
    )
    words = family(name)
    call = format_call(ToolCall("calculator", {"expression": "12*34"}), form)
    found = attempt(words, [call, "408"], source)
    assert (found.status, found.reward, len(found.segments)) == (Status.FINISHED, 1.0, 1), found.reason
    assert "408" in words.tokenizer.decode(found.turns[1].observation.tolist())
    assert "success" not in found.metrics and found.metrics["tools/calls"] == 1
    assert attempt(words, [call, "407"], source).reward == 0.0


@pytest.mark.slow
def test_tools_that_are_known_late_and_tools_in_processes_are_called_all_the_same() -> None:
    call = Spec("tool_use", {"tools": [{"kind": f"{OWN}:Diary", "owner": "b"}], "exact": True})

    async def use() -> StepResult:
        pool = EnvPool(1, names=["tool_use"])
        try:
            await pool.start()
            env: Any = await pool.make(call, TASK)
            await env.start()
            assert [tool.name for tool in env.tools] == ["note", "burn"]
            from roll.data.tools import parse_response

            found = await env.call(parse_response(calling("note", line="x"), env.tools))
            await env.close()
            return found
        finally:
            await pool.stop()

    assert asyncio.run(use()).messages == (Message("tool", "diary of b\nx"),)


@pytest.mark.parametrize(
    ("task", "arguments", "says"),
    [
        (TASK, {"tools": []}, "tool_use: 'tools' must be a non-empty list (got [])"),
        (TASK, {"tools": "calculator"}, "tool_use: 'tools' must be a non-empty list"),
        (TASK, {"tools": ["calculater"]}, "no set of tools named 'calculater'; did you mean 'calculator'?"),
        (TASK, {"tools": ["calculator"], "max_turns": 0}, "tool_use: max_turns must be a whole number"),
        (replace(TASK, messages=()), {"tools": ["calculator"]}, "task 't': no 'prompt' or 'messages'"),
        (replace(TASK, answer=None), {"tools": ["calculator"], "exact": True}, "task 't': no 'answer' to compare with"),
    ],
)
def test_unusable_arguments_are_reported_before_the_first_attempt(
    task: Task, arguments: dict[str, Any], says: str
) -> None:
    assert says in asyncio.run(unusable_reason(Spec("tool_use", arguments), task))


def checked(folder: Path, env: dict[str, Any], **more: Any) -> None:
    run = {
        "name": "r",
        "model": {"shape": {"hidden": 16}},
        "rollout": {"max_seq_len": 256, "max_new_tokens": 64},
        "algorithm": "grpo",
        "tasks": [{"name": "sums", "data": "arithmetic", "env": {"kind": "tool_use", **env}, **more}],
    }
    (folder / "run.yaml").write_text(json.dumps(run))
    preflight(load(folder / "run.yaml"))


def test_the_check_finds_tools_that_do_not_exist_and_arguments_that_they_do_not_take(tmp_path: Path) -> None:
    checked(tmp_path, {"tools": ["calculator", {"kind": f"{OWN}:double", "times": 2}], "exact": True})
    bad = ["calculater", {"kind": "retrieval", "num": 3}, {"kind": "shell", "timeout": 3}, f"{OWN}:dubble"]
    with pytest.raises(ConfigError) as caught:
        checked(tmp_path, {"tools": bad, "exact": True})
    assert [line.partition(": ")[2] for line in str(caught.value).splitlines()] == [
        "tasks.0.env.tools.0: no set of tools named 'calculater'; did you mean 'calculator'?",
        "tasks.0.env.tools.1: set of tools 'retrieval' needs 'corpus'; add it",
        "tasks.0.env.tools.2.timeout: set of tools 'shell' takes no 'timeout'; did you mean 'timeout_s'?",
        f"tasks.0.env.tools.3: set of tools '{OWN}:dubble': module {OWN} has no 'dubble'; did you mean 'double'?",
    ]


def test_a_source_has_exactly_one_scorer_of_the_answer(tmp_path: Path) -> None:
    checked(tmp_path, {"tools": ["calculator"]}, reward="exact")
    for env, more in (({}, {}), ({"exact": True}, {"reward": "exact"})):
        with pytest.raises(ConfigError, match="needs 'reward', or `exact: true` in its 'env', and not both"):
            checked(tmp_path, {"tools": ["calculator"], **env}, **more)


def test_the_player_of_the_calculator_earns_every_point_and_with_noise_it_errs() -> None:
    async def played(task: Task, **arguments: Any) -> float:
        world, messages = ToolUse(task, ["calculator"], exact=True), task.messages
        await world.start()
        while True:
            said = SCRIPTED_AGENTS["calculator"](messages, **arguments)
            reply = await world.step(said)
            if reply.done:
                return reply.reward
            messages = (*messages, Message("assistant", said), *reply.messages)

    tasks = [replace(TASK, messages=(Message("user", f"{a}+7="),), answer=str(a + 7)) for a in range(40)]
    assert [asyncio.run(played(task)) for task in tasks] == [1.0] * 40
    assert 5 < sum(asyncio.run(played(task, noise=0.5)) for task in tasks) < 35
