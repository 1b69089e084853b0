"""The tools of an MCP server: a process started for the attempt, or a server at a URL.

| server | outcome |
|---|---|
| cannot be started or reached, is silent, or breaks the protocol | `EnvFailed`: the attempt is retried |
| answers a call with an error, or has no such tool | the fault `failed`, with its message |
| does not answer a call within `timeout_s` | the fault `timed_out`; the server stays |
| dies, or closes the connection | the fault `gone`, for this call and all later ones |

A separate task owns the client, because the task that opens it must close it, while several tasks may run one attempt.
Only this module imports `mcp`.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO, cast

from roll.data.tools import Tool
from roll.errors import ConfigError, EnvFailed
from roll.tools.base import ToolFailed, ToolFault

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult

_GRACE_S = 10.0
"""Wait for a server to exit; the client kills one that lingers much earlier."""
_MOST_PAGES = 100
_STDERR_CHARS = 500
"""Characters of a dead server's stderr in the error message."""


@dataclass(eq=False)
class Mcp:
    """A `ToolSet` with the tools of an MCP server; every attempt has a separate process or session."""

    command: Sequence[str] = ()
    """Command of a server that communicates over its standard input and output."""
    url: str = ""
    """Address of a server with streamable HTTP; give this or `command`."""
    only: Sequence[str] = ()
    """Names of the tools to show; empty: all."""
    variables: dict[str, str] = field(default_factory=dict[str, str])
    """Environment variables of the process that `command` starts; it inherits few others."""
    api_key_env: str = ""
    """Name of the environment variable with a key, sent to `url` as a bearer token."""
    timeout_s: float = 20.0
    """Per call."""
    start_timeout_s: float = 30.0
    """Until the server lists its tools."""

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url) or isinstance(self.command, str):
            got = f"got command {self.command!r}, url {self.url!r}"
            raise ConfigError(f"mcp: needs a command, as a list of words, or a url ({got}); give one of them")
        if not (self.timeout_s > 0 and self.start_timeout_s > 0):
            raise ConfigError("mcp: timeout_s and start_timeout_s must be above 0; change them")
        if self.api_key_env and self.api_key_env not in os.environ:
            raise ConfigError(f"mcp: no environment variable {self.api_key_env!r}; set it, or drop api_key_env")
        try:
            import mcp  # noqa: F401 # pyright: ignore[reportUnusedImport]
        except ModuleNotFoundError:
            raise ConfigError("mcp: the package mcp is not installed; run `pip install 'roll-rl[mcp]'`") from None
        self.tools: tuple[Tool, ...] = ()
        self._where = f"mcp server {self.url or ' '.join(self.command)!r}"
        self._client: Client | None = None
        self._connection: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._closing = asyncio.Event()
        listed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connection = asyncio.create_task(self._hold_connection(listed))
        try:
            async with asyncio.timeout(self.start_timeout_s):
                await listed
        except TimeoutError:
            limit = f"{self.start_timeout_s:g} s"
            raise EnvFailed(f"{self._where}: did not list its tools within {limit}; see what it waits for") from None

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        if self._client is None:
            raise ToolFailed("the server is gone", ToolFault.GONE)
        limit = asyncio.timeout(self.timeout_s)
        try:
            async with limit:
                result = await self._client.call_tool(name, arguments)
        except MCPError as error:
            fault = ToolFault.GONE if error.code == CONNECTION_CLOSED else ToolFault.FAILED
            raise ToolFailed(f"{name}: {error}", fault) from error
        except TimeoutError:
            if not limit.expired():
                raise
            raise ToolFailed(f"{name} gave no answer within {self.timeout_s:g} s", ToolFault.TIMED_OUT) from None
        if result.is_error:
            raise ToolFailed(_result_text(result))
        return _result_text(result)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._closing.set()
        if self._client is None:
            connection.cancel()  # still starting, or over; only once, or the process would stay behind
        await asyncio.wait({connection}, timeout=_GRACE_S)

    async def _hold_connection(self, listed: asyncio.Future[None]) -> None:
        """Hold the connection until the set is closed; sets `listed` once the tools are known, or to the error."""
        from mcp import Client

        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as stderr:
            try:
                async with Client(self._transport(stderr)) as client:
                    self.tools = await self._list_tools(client)
                    self._client = client
                    if not listed.done():
                        listed.set_result(None)
                    await self._closing.wait()
            except Exception as error:  # noqa: BLE001 - from any of the client's tasks; passed on through `listed`
                if not listed.done():
                    listed.set_exception(EnvFailed(f"{self._where}: {_first_error(error)}{_stderr_tail(stderr)}"))
            finally:
                self._client = None

    def _transport(self, stderr: TextIO) -> Any:
        """The transport of the messages; `stderr` gets the stderr of a process."""
        if self.command:
            from mcp import StdioServerParameters, stdio_client

            first, *rest = self.command
            return stdio_client(StdioServerParameters(command=first, args=rest, env=self.variables), stderr)
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        headers = {"Authorization": f"Bearer {os.environ[self.api_key_env]}"} if self.api_key_env else {}
        seconds = httpx2.Timeout(self.start_timeout_s, read=self.start_timeout_s + self.timeout_s)
        return streamable_http_client(self.url, http_client=httpx2.AsyncClient(headers=headers, timeout=seconds))

    async def _list_tools(self, client: Client) -> tuple[Tool, ...]:
        tools: list[Tool] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            page = await client.list_tools(cursor=cursor)
            tools += [Tool(each.name, each.description or "", each.input_schema) for each in page.tools]
            cursor = page.next_cursor
            if cursor is None:
                break
        missing = set(self.only) - {tool.name for tool in tools}
        if missing:
            names = ", ".join(tool.name for tool in tools)
            raise EnvFailed(f"it has no tool {', '.join(sorted(missing))!r} (it has {names}); change `only`")
        return tuple(tool for tool in tools if not self.only or tool.name in self.only)


def _result_text(result: CallToolResult) -> str:
    """The text of a result, one part per line; other parts are named by type."""
    parts = [cast(str, getattr(block, "text", f"[{block.type}]")) for block in result.content]
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(parts)


def _first_error(error: BaseException) -> str:
    """The first error of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = cast(BaseExceptionGroup[BaseException], error).exceptions[0]
    return str(error) if isinstance(error, EnvFailed) else f"{type(error).__name__}: {error}"


def _stderr_tail(stderr: TextIO) -> str:
    stderr.seek(0)
    text = " ".join(stderr.read()[-_STDERR_CHARS:].split())
    return f" (stderr: {text})" if text else ""
