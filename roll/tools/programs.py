"""Tools that run the policy's code in the sandbox: Python and a shell.

Every call runs a new program, so variables are lost. Files persist: the current directory belongs to the attempt and
starts empty. There is no network. A sandbox keeps nothing after a program, so the directory is packed inside the
sandbox after one program and unpacked in the next. Outside it is opaque bytes. A directory larger than `_MOST_KEPT` is
not kept, and the result says so.
"""

from __future__ import annotations

import secrets
from typing import Any

from roll.data.tools import Tool
from roll.errors import ConfigError
from roll.sandbox.base import ExitReason, Program, ProgramResult, ResourceLimits
from roll.sandbox.level import choose
from roll.tools.base import ToolFailed, ToolFault, text_tool

_MEGABYTE = 2**20
_MOST_KEPT = 8 * _MEGABYTE
_MOST_SHOWN = 65536
_GRACE_S = 3.0
"""Extra time for packing and unpacking."""
_AROUND = """
mkdir work && cd work || exit 97
if [ -s ../state ]; then tar -xf ../state || exit 97; fi
rm ../state
PYTHONPATH=. timeout -k 1 {timeout_s} {command} > ../output 2>&1 < /dev/null
code=$?
printf '%s %s\\n' {nonce} $code >&2
head -c {most} ../output >&2
tar -cf - . 2> /dev/null
"""
_TIMED_OUT, _KILLED = 124, 137
"""Exit codes of `timeout`."""
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


class Workspace:
    """The directory of one attempt, and the limits of each program in it: the base of both `ToolSet`s."""

    def __init__(self, tool: Tool, *, timeout_s: float, memory_mb: int, sandbox: str) -> None:
        self.tools = (tool,)
        self._timeout_s, self._memory_mb, self._level, self._state = timeout_s, memory_mb, choose(sandbox), b""
        if not (timeout_s > 0 and memory_mb > 0):
            got = f"got {timeout_s}, {memory_mb}"
            raise ConfigError(f"tools: timeout_s and memory_mb must be above 0 ({got}); change them")

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def run(self, command: str, files: dict[str, bytes]) -> str:
        """The output of a command, stderr included, with a note if it failed.

        The directory is the current one; `files` are in its parent: `../main.py`.
        """
        limit_s, nonce = self._timeout_s, secrets.token_hex(8)
        script = _AROUND.format(timeout_s=limit_s, command=command, nonce=nonce, most=_MOST_SHOWN)
        program = Program(argv=("sh", "-c", script), files={"state": self._state, **files})
        limits = ResourceLimits(
            wall_s=limit_s + _GRACE_S,
            memory_bytes=self._memory_mb * _MEGABYTE,
            total_bytes=self._memory_mb * _MEGABYTE + 4 * _MOST_KEPT,
            output_bytes=_MOST_KEPT + _MEGABYTE,
            file_bytes=4 * _MOST_KEPT,
        )
        outcome = await self._level.run(program, limits)
        _, marker, rest = outcome.stderr.decode(errors="replace").partition(f"{nonce} ")
        code, _, output = rest.partition("\n")
        if not marker or not code.isdecimal():  # the command has killed the surrounding shell
            if outcome.reason is ExitReason.TIMED_OUT:
                raise ToolFailed(f"[ended after {limit_s:g} s]", ToolFault.TIMED_OUT)
            raise ToolFailed("the command ended its own shell; the directory is as it was before")
        late = int(code) in (_TIMED_OUT, _KILLED) and outcome.wall_s >= limit_s
        report = self._report(output, f"ended after {limit_s:g} s" if late else f"exit code {code}", outcome)
        if late:
            raise ToolFailed(report, ToolFault.TIMED_OUT)
        return report

    def _report(self, output: str, end: str, outcome: ProgramResult) -> str:
        """The output and notes for the policy; keeps the directory if possible."""
        notes = [] if end == "exit code 0" else [f"[{end}]"]
        if outcome.succeeded and len(outcome.stdout) <= _MOST_KEPT:
            self._state = outcome.stdout
        else:
            notes.append("[the files could not be kept: the directory is as it was before]")
        return "\n".join([*([output.rstrip("\n")] if output.strip() else []), *notes]) or "(no output)"


class Python(Workspace):
    """A `ToolSet` with one tool, `python`, that runs a program in the sandbox."""

    def __init__(self, *, timeout_s: float = 10.0, memory_mb: int = 512, sandbox: str = "auto") -> None:
        """`memory_mb` is for all processes together; `sandbox` is an option of `roll.sandbox.level`."""
        about = "Runs a Python program and gives what it prints, and the value of a last line that is an expression."
        tool = text_tool("python", f"{about} Variables are not kept between calls; files are.", "code")
        super().__init__(tool, timeout_s=timeout_s, memory_mb=memory_mb, sandbox=sandbox)

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        files = {"main.py": arguments["code"].encode(errors="surrogatepass"), "runner.py": _RUNNER}
        return await self.run("python3 -s ../runner.py", files)


class Shell(Workspace):
    """A `ToolSet` with one tool, `shell`, that runs a command in the sandbox."""

    def __init__(self, *, timeout_s: float = 10.0, memory_mb: int = 512, sandbox: str = "auto") -> None:
        """`memory_mb` is for all processes together; `sandbox` is an option of `roll.sandbox.level`."""
        about = "Runs a command of a POSIX shell and gives what it prints. Files in the current directory are kept."
        tool = text_tool("shell", about, "command")
        super().__init__(tool, timeout_s=timeout_s, memory_mb=memory_mb, sandbox=sandbox)

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        return await self.run("sh ../main.sh", {"main.sh": arguments["command"].encode(errors="surrogatepass")})
