"""An MCP server with tools that work, raise, hang and end it; the tests start it as a process."""

import os
import sys
import time
from typing import Any


def serve(how: str) -> None:
    import anyio
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError

    server: MCPServer[Any] = MCPServer("oddities", log_level="ERROR")
    heard: list[str] = []

    @server.tool()
    def add(a: int, b: int) -> str:
        """The sum of two numbers."""
        return str(a + b)

    @server.tool()
    def remember(word: str) -> str:
        """All words so far, in the order they were said."""
        heard.append(word)
        return " ".join(heard)

    @server.tool()
    def refuse() -> str:
        """Raises."""
        raise ToolError("not today")

    @server.tool()
    async def hang() -> str:
        """Never answers."""
        await anyio.sleep(3600)
        return "late"

    @server.tool()
    def die() -> str:
        """Ends the server."""
        os._exit(3)

    if how == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", host="127.0.0.1", port=int(how))


if __name__ == "__main__":
    if sys.argv[1] == "mute":
        time.sleep(3600)
    if sys.argv[1] == "broken":
        sys.exit("no such database")
    serve(sys.argv[1])
