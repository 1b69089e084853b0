"""Tools that run the policy's code in the sandbox: Python and a shell.

Every call runs a new program, so variables are lost. Files persist: the current directory belongs to the attempt and
starts empty. There is no network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from roll.data.tools import Tool
from roll.tools.workspace import Workspace

_RUNNER = b"""\
import ast, sys
sys.path[0] = "."
text = open("../main.py", encoding="utf-8", errors="surrogateescape").read()
names = {"__name__": "__main__"}
try:
    tree = ast.parse(text, "main.py")
    last = ast.Expression(tree.body.pop().value) if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "main.py", "exec"), names)
    value = None if last is None else eval(compile(last, "main.py", "eval"), names)
    if value is not None:
        print(repr(value))
except Exception as error:
    import traceback

    lines = traceback.format_exception(error)
    print("".join(line for line in lines if "runner.py" not in line), file=sys.stderr)
    sys.exit(1)
"""
"""Runs a program and prints the value of its last line, as an interactive interpreter does."""


@dataclass(eq=False)
class Python:
    """A `ToolSet` with one tool, `python`, that runs a program in the sandbox."""

    timeout_s: float = 10.0
    memory_mb: int = 512
    """Per process."""
    sandbox: str = "auto"
    """An option of `roll.sandbox.level`."""

    def __post_init__(self) -> None:
        self._workspace = Workspace(timeout_s=self.timeout_s, memory_mb=self.memory_mb, sandbox=self.sandbox)
        about = "Runs a Python program and gives what it prints, and the value of a last line that is an expression."
        self.tools = (
            Tool("python", f"{about} Variables are not kept between calls; files are.", _string_parameter("code")),
        )

    async def start(self) -> None: ...

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        files = {"main.py": _bytes(arguments["code"]), "runner.py": _RUNNER}
        return await self._workspace.run("python3 -s ../runner.py", files)

    async def close(self) -> None: ...


@dataclass(eq=False)
class Shell:
    """A `ToolSet` with one tool, `shell`, that runs a command in the sandbox."""

    timeout_s: float = 10.0
    memory_mb: int = 512
    """Per process."""
    sandbox: str = "auto"
    """An option of `roll.sandbox.level`."""

    def __post_init__(self) -> None:
        self._workspace = Workspace(timeout_s=self.timeout_s, memory_mb=self.memory_mb, sandbox=self.sandbox)
        about = "Runs a command of a POSIX shell and gives what it prints. Files in the current directory are kept."
        self.tools = (Tool("shell", about, _string_parameter("command")),)

    async def start(self) -> None: ...

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        return await self._workspace.run("sh ../main.sh", {"main.sh": _bytes(arguments["command"])})

    async def close(self) -> None: ...


def _string_parameter(name: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")
