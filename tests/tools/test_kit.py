"""Sets of tools by name, and what becomes of everything that a tool can do."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from roll.data.tools import ToolCall
from roll.errors import ConfigError
from roll.registry import TOOLS
from roll.sandbox.base import SandboxFailed
from roll.tools.base import Answer, ToolFault
from roll.tools.kit import Kit
from tests.tools.own import Diary

OWN = "tests.tools.own"


def used(named: Sequence[Any], *calls: ToolCall, **options: Any) -> list[Answer]:
    async def use() -> list[Answer]:
        kit = Kit(named, **options)
        await kit.start()
        try:
            return [await kit.answer(call) for call in calls]
        finally:
            await kit.close()

    return asyncio.run(use())


def test_names_classes_and_functions_are_all_tools() -> None:
    named = ["calculator", {"kind": f"{OWN}:Diary", "owner": "Ada"}, {"kind": f"{OWN}:double", "times": 3}]
    assert [tool.name for tool in Kit(named).tools] == ["calculator", "note", "burn", "double"]
    calls = [
        ToolCall("double", {"number": 5}),
        ToolCall("note", {"line": "rain"}),
        ToolCall("calculator", {"expression": "2*3"}),
        ToolCall("burn"),
    ]
    assert used(named, *calls) == [
        Answer("40"),
        Answer("diary of Ada\nrain"),
        Answer("6"),
        Answer("error: ashes", ToolFault.GONE),
    ]


@pytest.mark.parametrize(
    ("tool", "arguments", "answer"),
    [
        ("raises", {"word": "key"}, Answer("error: KeyError: 'key'", ToolFault.FAILED)),
        ("hangs", {}, Answer("error: hangs gave no answer within 0.05 s", ToolFault.TIMED_OUT)),
        ("waits_in_vain", {}, Answer("error: TimeoutError: the other side", ToolFault.FAILED)),
        ("babbles", {}, Answer("?" + "a" * 49 + "\n[1101 characters left out]\n" + "b" * 50)),
    ],
)
def test_whatever_a_tool_does_comes_back_in_words(tool: str, arguments: dict[str, Any], answer: Answer) -> None:
    assert used([f"{OWN}:{tool}"], ToolCall(tool, arguments), timeout_s=0.05, most_chars=100) == [answer]


def test_a_calculator_that_refuses_is_a_fault_of_the_tool() -> None:
    (found,) = used(["calculator"], ToolCall("calculator", {"expression": "1/0"}))
    assert found == Answer("error: division by zero", ToolFault.FAILED)


def test_a_sandbox_that_fails_is_nothing_to_tell_a_policy() -> None:
    with pytest.raises(SandboxFailed, match="no room"):
        used([f"{OWN}:breaks"], ToolCall("breaks"))


def test_every_set_is_closed_once_even_where_another_cannot_start() -> None:
    async def use() -> None:
        kit = Kit([{"kind": f"{OWN}:Diary", "owner": "a"}, {"kind": "mcp", "command": ["/no/such/program"]}])
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
        ([{"kind": "calculator", "precise": True}], "tools.0: 'calculator' cannot be made"),
        ([f"{OWN}:Diary"], "tools.0: 'tests.tools.own:Diary' cannot be made"),
        (["calculator", "calculator"], "tools: two of them share a name"),
    ],
)
def test_names_that_are_no_tools_are_refused(named: list[Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Kit(named).tools  # noqa: B018
    assert says in str(caught.value)


def test_every_set_of_the_table_has_a_line_about_itself() -> None:
    assert all(TOOLS.summaries().values())
    assert TOOLS.faults("retrieval", {"korpus": "x"}) != [] and TOOLS.faults("retrieval", {"corpus": "x"}) == []
    assert TOOLS.faults(f"{OWN}:double", {}) == [] and TOOLS.faults(f"{OWN}:double", {"time": 1}) != []
