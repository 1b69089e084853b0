"""Environments with tools as a policy plays them: in an episode, in each tool format, and in a process."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from roll.data.tasks import jsonl
from roll.data.tools import ParsedResponse, ToolCall
from roll.envs.base import StepResult
from roll.errors import EnvFailed
from roll.rollout.env_pool import EnvPool
from roll.rollout.environments import make_inline_env
from roll.rollout.episode.runner import Attempt, EpisodeLimits, EpisodeRunner
from roll.sandbox.level import unavailable_reason
from roll.types import Message, Sampling, Spec, Status, Task, Trajectory
from tests.chat.server import server, words
from tests.data.chat_templates import family
from tests.rollout.sampler import Sampler

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples" / "data"
DATABASE = str(EXAMPLES / "retail_{table}.json")
KEYS = {"hermes": "arguments", "llama": "parameters"}
SQL = [
    ("execute_sql", {"query": "SELECT Name FROM Boats ORDER BY Length DESC LIMIT 1"}),
    ("answer", {"values": ["Swan"]}),
]
ISOLATED = pytest.mark.skipif(
    bool(unavailable_reason()), reason=f"untrusted code is not run here: {unavailable_reason()}"
)
REPAIR = [
    ("read_file", {"path": "mean.py"}),
    ("edit_file", {"path": "mean.py", "old": "(len(numbers) - 1)", "new": "len(numbers)"}),
    ("run_tests", {}),
    ("submit", {}),
]


def task_of(name: str, key: str) -> Task:
    return next(task for task in jsonl(str(EXAMPLES / f"{name}.jsonl")) if task.id == key)


def written(call: tuple[str, dict[str, Any]], form: str) -> str:
    text = json.dumps({"name": call[0], KEYS[form]: call[1]})
    return f"<tool_call>\n{text}\n</tool_call>" if form == "hermes" else text


@pytest.mark.parametrize(("name", "form"), [("chatml", "hermes"), ("thinking", "hermes"), ("llama", "llama")])
@pytest.mark.parametrize(("world", "key", "calls", "hears"), [
    ("sql", "longest", SQL, '["Swan"]'),
    pytest.param("repair", "mean", REPAIR, "return total / (len(numbers) - 1)", marks=ISOLATED),
])  # fmt: skip
def test_a_world_is_played_in_the_form_of_the_template(
    name: str, form: str, world: str, key: str, calls: list[tuple[str, dict[str, Any]]], hears: str
) -> None:
    template, task = family(name), task_of(world, key)
    sampler = Sampler([template.answer(written(call, form), where="t").tolist() for call in calls])
    runner = EpisodeRunner(
        router=sampler,  # pyright: ignore[reportArgumentType]
        template=template,
        limits=EpisodeLimits(
            sampling=Sampling(), max_seq_len=8000, max_new_tokens=400, max_turns=8, stop=template.eos_ids
        ),
    )

    async def run() -> Trajectory:
        env = await make_inline_env(Spec(world), task)
        return (await runner.run(Attempt(task=task, sibling=0, number=0, purpose="train", seed=1), env))[0]

    found = asyncio.run(run())
    assert (found.status, found.reward, len(found.turns)) == (Status.FINISHED, 1.0, len(calls)), found.reason
    assert hears in template.tokenizer.decode(found.turns[1].observation.tolist())
    assert found.metrics["tools/calls"] == len(calls) and found.metrics["valid_actions"] == 1.0


@pytest.mark.parametrize(
    ("world", "field", "arguments"),
    [("sql", "table", {}), ("repair", "buggy_code", {}), ("retail", "actions", {"database": DATABASE})],
)
def test_a_row_that_lacks_a_field_fails_its_attempts_and_names_itself(
    world: str, field: str, arguments: dict[str, Any]
) -> None:
    task = Task(id="row-9", domain="d", messages=(Message("user", "?"),), answer=[], metadata={"entry_point": "f"})
    with pytest.raises(EnvFailed) as error:
        asyncio.run(make_inline_env(Spec(world, arguments), task))
    place = f"environment '{world}' of task 'row-9': ConfigError: {world}: task 'row-9'"
    assert str(error.value).startswith(f"{place}: Object missing required field `{field}`")


def test_worlds_live_in_a_process_and_a_model_elsewhere_plays_the_customer() -> None:
    cancel = ToolCall("cancel_pending_order", {"order_id": "#W2", "reason": "no longer needed"})

    async def use(url: str) -> StepResult:
        pool = EnvPool(1, names=["retail", "sql"])
        try:
            await pool.start()
            user = {"url": url, "model": "customer", "max_retries": 0}
            call = Spec("retail", {"database": DATABASE, "user": user})
            env: Any = await pool.make(call, task_of("retail", "cancel"))
            (opening,) = await env.start()
            assert opening.content == "Hello, my mug." and len(env.tools) == 16
            await env.call(ParsedResponse(text="", calls=(cancel,)))
            found = await env.call(ParsedResponse(text="It is cancelled."))
            await env.close()
            return found
        finally:
            await pool.stop()

    with server(words("Hello, my mug."), words("###STOP###")) as served:
        found = asyncio.run(use(served.url))
    assert (found.done, found.reward) == (True, 1.0)
    said = [(message["role"], message["content"]) for message in served.asked[1]["messages"][1:]]
    assert said[1:] == [("assistant", "Hello, my mug."), ("user", "It is cancelled.")]
