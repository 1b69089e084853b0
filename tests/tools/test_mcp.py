"""The tools of real MCP servers, written with the package's server, over pipes and over HTTP."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from roll.data.tools import ToolCall
from roll.errors import ConfigError, EnvFailed
from roll.tools.base import ToolFailed, ToolFault, ToolResult
from roll.tools.mcp import Mcp
from roll.tools.toolkit import Toolkit

pytestmark = pytest.mark.slow

SERVER = str(Path(__file__).with_name("server.py"))
COMMAND = [sys.executable, SERVER]
STDIO = [*COMMAND, "stdio"]


def children() -> set[str]:
    """Processes of this one that live."""
    own = str(os.getpid())
    found: set[str] = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2] if entry.name.isdigit() else ""
            if parent == own and state != "Z":
                found.add(entry.name)
    return found


def used(tools: Mcp, *calls: tuple[str, dict[str, object]]) -> list[ToolResult]:
    """What came of calls, one after the other; afterwards no process of the set is left."""

    async def use() -> list[ToolResult]:
        kit = Toolkit([])
        kit._sets.append(tools)
        try:
            await kit.start()
            return [await kit.run(ToolCall(name, arguments)) for name, arguments in calls]
        finally:
            await kit.close()

    before = children()
    found = asyncio.run(use())
    assert children() <= before
    return found


def test_its_tools_are_listed_and_called_and_every_outcome_is_a_result() -> None:
    tools = Mcp(command=STDIO, timeout_s=0.5)
    add, so, far, refused, hung, on, died, gone = used(
        tools,
        ("add", {"a": 2, "b": 40}),
        ("remember", {"word": "so"}),
        ("remember", {"word": "far"}),
        ("refuse", {}),
        ("hang", {}),
        ("add", {"a": 1, "b": 1}),
        ("die", {}),
        ("add", {"a": 1, "b": 1}),
    )
    assert [tool.name for tool in tools.tools] == ["add", "remember", "refuse", "hang", "die"]
    first = tools.tools[0]
    assert first.description == "The sum of two numbers."
    assert first.parameters["required"] == ["a", "b"] and first.parameters["properties"]["a"]["type"] == "integer"
    assert [answer.text for answer in (add, so, far)] == ["42", "so", "so far"]
    assert refused.fault is ToolFault.FAILED and "not today" in refused.text
    assert hung == ToolResult("error: hang gave no answer within 0.5 s", ToolFault.TIMED_OUT)
    assert on == ToolResult("2"), "the server goes on"
    assert died.fault is gone.fault is ToolFault.GONE


def test_an_attempt_has_a_separate_server_and_an_unknown_tool_is_a_fault() -> None:
    async def use() -> list[str]:
        several = [Mcp(command=STDIO, only=["remember"]) for _ in range(2)]
        try:
            await asyncio.gather(*(tools.start() for tools in several))
            assert [tool.name for tool in several[0].tools] == ["remember"]
            with pytest.raises(ToolFailed, match="fly") as caught:
                await several[0].call("fly", {})
            assert caught.value.fault is ToolFault.FAILED
            return [await tools.call("remember", {"word": "so"}) for tools in several]
        finally:
            await asyncio.gather(*(tools.close() for tools in several))

    assert asyncio.run(use()) == ["so", "so"]


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        (Mcp(command=[*COMMAND, "broken"]), "stderr: no such database"),
        (Mcp(command=[*COMMAND, "mute"], start_timeout_s=0.5), "did not list its tools within 0.5 s"),
        (Mcp(command=["/no/such/program"]), "No such file"),
        (Mcp(url="http://127.0.0.1:9/mcp"), "mcp server 'http://127.0.0.1:9/mcp': ConnectError"),
    ],
)
def test_a_server_that_cannot_be_used_costs_the_attempt_and_says_why(tools: Mcp, says: str) -> None:
    before = children()
    with pytest.raises(EnvFailed) as caught:
        used(tools)
    assert says in str(caught.value) and children() <= before


@pytest.mark.parametrize(
    "arguments", [{}, {"command": "server"}, {"command": ["a"], "url": "b"}, {"url": "b", "api_key_env": "NO_KEY"}]
)
def test_arguments_that_name_no_server_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"^mcp: "):
        Mcp(**arguments)  # pyright: ignore[reportArgumentType]


@contextlib.contextmanager
def serving() -> Generator[tuple[str, subprocess.Popen[bytes]]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([*COMMAND, str(port)], stderr=subprocess.DEVNULL)
    try:
        for _ in range(1200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp", process
    finally:
        process.kill()
        process.wait()


def test_over_http_it_is_the_same_and_a_server_that_dies_is_gone() -> None:
    with serving() as (url, process):
        with pytest.raises(EnvFailed, match=r"it has no tool 'fly' \(it has add, remember, refuse, hang, die\)"):
            used(Mcp(url=url, only=["add", "fly"]))

        async def use() -> list[ToolResult]:
            kit = Toolkit([{"kind": "mcp", "url": url, "timeout_s": 0.5}])
            await kit.start()
            try:
                found = [await kit.run(ToolCall(name, {})) for name in ("hang", "refuse")]
                found += [await kit.run(ToolCall("add", {"a": 2, "b": 40}))]
                process.kill()
                process.wait()
                return [*found, await kit.run(ToolCall("add", {"a": 2, "b": 40}))]
            finally:
                await kit.close()

        hung, refused, works, gone = asyncio.run(use())
    assert (hung.fault, refused.fault, works) == (ToolFault.TIMED_OUT, ToolFault.FAILED, ToolResult("42"))
    assert gone.fault is ToolFault.GONE
