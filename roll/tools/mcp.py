"""The tools of an MCP server: one that is started for the attempt and spoken to over its pipes, or one at an address.

| what the server does | what becomes of it |
|---|---|
| it cannot be started or reached, says nothing, or not what a server says | `EnvFailed`: the attempt is made again |
| it answers a call with an error, or does not know the tool | the fault `failed`, in its words |
| it does not answer a call within `timeout_s` | the fault `timed_out`; the call is given up, the server stays |
| it dies, or closes the connection | the fault `gone`, for this call and all that follow |

The client belongs to one task of its own, since whoever opens it has to close it: attempts may be carried on by several
tasks. This is the only module that imports `mcp`.
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
"""For a server to be gone; the client itself kills one that lingers, long before."""
_MOST_PAGES = 100
_SAID = 500
"""Characters of what a server wrote before it died."""


@dataclass(eq=False)
class Mcp:
    """A `ToolSet` with what an MCP server has; every attempt has a process, or a session, of its own."""

    command: Sequence[str] = ()
    """Starts a server that speaks over its standard input and output."""
    url: str = ""
    """Of a server that speaks streamable HTTP; this or `command`."""
    only: Sequence[str] = ()
    """Names of the tools that are shown; none: all of them."""
    variables: dict[str, str] = field(default_factory=dict[str, str])
    """Of the environment, for the process that `command` starts; it gets few others."""
    api_key_env: str = ""
    """The environment variable with a key that is sent to `url` as a bearer token."""
    timeout_s: float = 20.0
    """For one call."""
    start_timeout_s: float = 30.0
    """Until the server has listed its tools."""

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
            raise ConfigError("mcp: the package mcp is not installed; run `pip install 'roll[mcp]'`") from None
        self.tools: tuple[Tool, ...] = ()
        self._where = f"mcp server {self.url or ' '.join(self.command)!r}"
        self._client: Client | None = None
        self._life: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._closing = asyncio.Event()
        listed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._life = asyncio.create_task(self._live(listed))
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
            raise ToolFailed(_text(result))
        return _text(result)

    async def close(self) -> None:
        life, self._life = self._life, None
        if life is None:
            return
        self._closing.set()
        if self._client is None:
            life.cancel()  # it is still on its way, or over; once only, or the process would be left behind
        await asyncio.wait({life}, timeout=_GRACE_S)

    async def _live(self, listed: asyncio.Future[None]) -> None:
        """Hold the connection until the set is closed; whoever waits for the tools hears why there are none."""
        from mcp import Client

        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
            try:
                async with Client(self._transport(said)) as client:
                    self.tools = await self._listed(client)
                    self._client = client
                    if not listed.done():
                        listed.set_result(None)
                    await self._closing.wait()
            except Exception as error:  # noqa: BLE001 - of the client's many tasks, and told to whoever waits
                if not listed.done():
                    listed.set_exception(EnvFailed(f"{self._where}: {_first(error)}{_last_words(said)}"))
            finally:
                self._client = None

    def _transport(self, said: TextIO) -> Any:
        """What carries the messages; `said` gets what a process writes besides."""
        if self.command:
            from mcp import StdioServerParameters, stdio_client

            first, *rest = self.command
            return stdio_client(StdioServerParameters(command=first, args=rest, env=self.variables), said)
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        headers = {"Authorization": f"Bearer {os.environ[self.api_key_env]}"} if self.api_key_env else {}
        seconds = httpx2.Timeout(self.start_timeout_s, read=self.start_timeout_s + self.timeout_s)
        return streamable_http_client(self.url, http_client=httpx2.AsyncClient(headers=headers, timeout=seconds))

    async def _listed(self, client: Client) -> tuple[Tool, ...]:
        found: list[Tool] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            page = await client.list_tools(cursor=cursor)
            found += [Tool(each.name, each.description or "", each.input_schema) for each in page.tools]
            cursor = page.next_cursor
            if cursor is None:
                break
        missing = set(self.only) - {tool.name for tool in found}
        if missing:
            names = ", ".join(tool.name for tool in found)
            raise EnvFailed(f"it has no tool {', '.join(sorted(missing))!r} (it has {names}); change `only`")
        return tuple(tool for tool in found if not self.only or tool.name in self.only)


def _text(result: CallToolResult) -> str:
    """What a result says, one part a line; what is no text is named."""
    parts = [cast(str, getattr(block, "text", f"[{block.type}]")) for block in result.content]
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(parts)


def _first(error: BaseException) -> str:
    """The first of what went wrong at once."""
    while isinstance(error, BaseExceptionGroup):
        error = cast(BaseExceptionGroup[BaseException], error).exceptions[0]
    return str(error) if isinstance(error, EnvFailed) else f"{type(error).__name__}: {error}"


def _last_words(said: TextIO) -> str:
    said.seek(0)
    words = " ".join(said.read()[-_SAID:].split())
    return f" (it said: {words})" if words else ""
