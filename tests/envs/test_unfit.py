"""Arguments that no environment accepts are reported before the first step, all at once."""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from roll.cli import main
from roll.envs.guarded import unusable_reason
from roll.errors import ConfigError
from roll.rollout.environments import InlineEnvs
from roll.rollout.source import TaskSource, check_environments
from roll.types import Spec, Task

SIZE = "frozen_lake: size must be a whole number, from 2 to 64 (got 1); change it"


class Particular:
    """Can be made of some tasks only, and not at all with the wrong argument; remembers that it was closed."""

    closed = 0

    def __init__(self, task: Task, *, depth: int = 1) -> None:
        if task.id == "weather":
            raise OSError("no room")
        if task.id == "odd" or depth > 5:
            raise ValueError(f"too deep for {task.id}")

    async def close(self) -> None:
        Particular.closed += 1


class Unnamed(Particular):
    """Has a tool that nobody could call."""

    tools = ({"description": "?"},)

    async def call(self, response: Any) -> Any: ...


def particular(**arguments: Any) -> Spec:
    return Spec(f"{__name__}:Particular", arguments)


def source(name: str, env: Spec, *ids: str) -> TaskSource:
    return TaskSource(name=name, tasks=[Task(id=id, domain=name) for id in ids or ("a",)], env=env, reward=None)


def refusal(*sources: TaskSource) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        asyncio.run(check_environments(InlineEnvs(), sources))
    return str(caught.value).splitlines()


def test_the_error_of_a_constructor_is_passed_on() -> None:
    found = asyncio.run(unusable_reason(Spec("frozen_lake", {"size": 1}), Task(id="t", domain="d")))
    assert found == SIZE
    unknown = asyncio.run(unusable_reason(particular(height=3), Task(id="t", domain="d")))
    assert unknown.startswith("TypeError: ") and unknown.endswith("unexpected keyword argument 'height'")
    assert "no environment named 'lake'" in asyncio.run(unusable_reason(Spec("lake"), Task(id="t", domain="d")))


def test_tools_that_cannot_be_called_or_parsed_are_reported() -> None:
    task = Task(id="t", domain="d")
    assert asyncio.run(unusable_reason(Spec("calculator"), task)) == ""
    assert "has no way to call one" in asyncio.run(unusable_reason(Spec("calculator"), task, tools=False))
    assert asyncio.run(unusable_reason(Spec("frozen_lake"), task, tools=False)) == ""
    found = asyncio.run(unusable_reason(Spec(f"{__name__}:Unnamed"), task))
    assert found.startswith("tools: a function without a name (got {'description': '?'})")


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [("roll.envs.base", "Reply", "StepResult"), ("roll.data.tools", "Spoken", "ParsedResponse")],
)
def test_importing_an_old_name_gives_an_error_with_the_new_one(module: str, old: str, new: str) -> None:
    with pytest.raises(ImportError, match=f"it is called {new}"):
        exec(f"from {module} import {old}")
    reason = asyncio.run(unusable_reason(Spec(f"{module}:{old}"), Task(id="t", domain="d")))
    assert f"it is called {new}" in reason and "\n" not in reason
    with pytest.raises(ImportError, match="cannot import name 'Other'"):
        exec(f"from {module} import Other")


def test_a_usable_environment_is_closed_again() -> None:
    before = Particular.closed
    assert asyncio.run(unusable_reason(particular(), Task(id="t", domain="d"))) == ""
    assert Particular.closed == before + 1


def test_a_transient_error_rejects_nothing() -> None:
    assert asyncio.run(unusable_reason(particular(), Task(id="weather", domain="d"))) == ""


def test_all_unusable_sources_are_reported_at_once() -> None:
    line = Path(__file__).read_text().splitlines().index('            raise ValueError(f"too deep for {task.id}")') + 1
    assert refusal(
        source("lake", Spec("frozen_lake", {"size": 1})), source("fine", particular()), source("p", particular(depth=9))
    ) == [
        f"tasks: source 'lake': environment 'frozen_lake' cannot be used: {SIZE}; fix that first",
        f"tasks: source 'p': environment '{__name__}:Particular' cannot be used: ValueError: too deep for a "
        f"({__file__}:{line}); fix that first",
    ]


def test_a_single_task_that_does_not_fit_is_no_fault_of_the_arguments() -> None:
    asyncio.run(check_environments(InlineEnvs(), [source("p", particular(), "odd", "a", "b", "c")]))
    assert len(refusal(source("p", particular(), "odd", "odd", "odd"))) == 1


def test_a_run_with_bad_arguments_ends_before_its_first_attempt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = {
        "name": "bad",
        "model": {"shape": {"hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1, "mlp": 16}},
        "algorithm": "grpo",
        "tasks": [{"name": "lake", "env": {"kind": "frozen_lake", "size": 4, "holes": 1.5}}],
        "rollout": {"max_seq_len": 200, "max_new_tokens": 4},
        "threads": 1,
    }
    (tmp_path / "run.yaml").write_text(json.dumps(run))
    for command in ("train", "rollout"):
        with contextlib.chdir(tmp_path), pytest.raises(SystemExit) as ended:
            main([command, "run.yaml"])
        said = capsys.readouterr().err
        assert ended.value.code == 2, said
        assert said.startswith("tasks: source 'lake': environment 'frozen_lake' cannot be used: frozen_lake: holes")
    assert not (tmp_path / "runs" / "bad" / "journal.db").exists()
