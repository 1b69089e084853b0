"""Tool sets by name, and every outcome of a call."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from roll.data.tools import ToolCall
from roll.errors import ConfigError
from roll.registry import TOOLS
from roll.sandbox.base import SandboxFailed
from roll.tools.base import ToolFault, ToolResult
from roll.tools.toolkit import Toolkit
from tests.tools.custom_tools import Diary

OWN = "tests.tools.custom_tools"


def used(named: Sequence[Any], *calls: ToolCall, **options: Any) -> list[ToolResult]:
    async def use() -> list[ToolResult]:
        kit = Toolkit(named, **options)
        await kit.start()
        try:
            return [await kit.run(call) for call in calls]
        finally:
            await kit.close()

    return asyncio.run(use())


def test_names_classes_and_functions_are_all_tools() -> None:
    named = ["calculator", {"kind": f"{OWN}:Diary", "owner": "Ada"}, {"kind": f"{OWN}:double", "times": 3}]
    assert [tool.name for tool in Toolkit(named).tools] == ["calculator", "note", "burn", "double"]
    calls = [
        ToolCall("double", {"number": 5}),
        ToolCall("note", {"line": "rain"}),
        ToolCall("calculator", {"expression": "2*3"}),
        ToolCall("burn"),
    ]
    assert used(named, *calls) == [
        ToolResult("40"),
        ToolResult("diary of Ada\nrain"),
        ToolResult("6"),
        ToolResult("error: ashes", ToolFault.GONE),
    ]


@pytest.mark.parametrize(
    ("tool", "arguments", "answer"),
    [
        ("raises", {"word": "key"}, ToolResult("error: KeyError: 'key'", ToolFault.FAILED)),
        ("hangs", {}, ToolResult("error: hangs gave no answer within 0.05 s", ToolFault.TIMED_OUT)),
        ("waits_in_vain", {}, ToolResult("error: TimeoutError: the other side", ToolFault.FAILED)),
        ("babbles", {}, ToolResult("?" + "a" * 49 + "\n[1101 characters left out]\n" + "b" * 50)),
    ],
)
def test_every_outcome_of_a_tool_is_returned_as_text(tool: str, arguments: dict[str, Any], answer: ToolResult) -> None:
    timeout_s = 0.05 if tool == "hangs" else 30
    assert used([f"{OWN}:{tool}"], ToolCall(tool, arguments), timeout_s=timeout_s, most_chars=100) == [answer]


def test_a_calculator_that_refuses_is_a_fault_of_the_tool() -> None:
    (found,) = used(["calculator"], ToolCall("calculator", {"expression": "1/0"}))
    assert found == ToolResult("error: division by zero", ToolFault.FAILED)


def test_a_sandbox_that_fails_is_nothing_to_tell_a_policy() -> None:
    with pytest.raises(SandboxFailed, match="no room"):
        used([f"{OWN}:breaks"], ToolCall("breaks"))


@pytest.mark.slow
def test_every_set_is_closed_once_even_where_another_cannot_start() -> None:
    async def use() -> None:
        kit = Toolkit([{"kind": f"{OWN}:Diary", "owner": "a"}, {"kind": "mcp", "command": ["/no/such/program"]}])
        try:
            await kit.start()
        finally:
            await kit.close()
            await kit.close()

    before = Diary.closed
    with pytest.raises(Exception, match="No such file"):
        asyncio.run(use())
    assert Diary.closed == before + 1


@pytest.mark.parametrize(
    ("named", "says"),
    [
        (["calculater"], "no set of tools named 'calculater'; did you mean 'calculator'?"),
        ([f"{OWN}:none"], "has no 'none'"),
        ([3], "tools.0: names no tools (got 3)"),
        ([{"path": "x"}], "tools.0: names no tools"),
        ([{"kind": "calculator", "precise": True}], "tools.0: 'calculator' cannot be built"),
        ([f"{OWN}:Diary"], "tools.0: 'tests.tools.custom_tools:Diary' cannot be built"),
        (["calculator", "calculator"], "tools: two of them share a name"),
    ],
)
def test_names_that_are_no_tools_are_refused(named: list[Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Toolkit(named).tools  # noqa: B018
    assert says in str(caught.value)


def test_every_set_of_the_table_has_a_line_about_itself() -> None:
    assert all(TOOLS.summaries().values())
    assert TOOLS.faults("retrieval", {"korpus": "x"}) != [] and TOOLS.faults("retrieval", {"corpus": "x"}) == []
    assert TOOLS.faults(f"{OWN}:double", {}) == [] and TOOLS.faults(f"{OWN}:double", {"time": 1}) != []
