"""Sandboxed programs that share a directory for the length of one attempt.

A sandbox keeps nothing after a program, so the directory is packed inside the sandbox after one program and unpacked in
the next. Outside it is opaque bytes. A directory larger than `_MOST_KEPT` is not kept, and the result says so.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from roll.errors import ConfigError
from roll.sandbox.base import ExitReason, Program, ProgramResult, ResourceLimits
from roll.sandbox.level import choose
from roll.tools.base import ToolFailed, ToolFault

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


@dataclass(slots=True, kw_only=True)
class Workspace:
    """The directory of one attempt, and the limits of each program in it."""

    timeout_s: float
    memory_mb: int
    """Per process."""
    sandbox: str
    """An option of `roll.sandbox.level`."""
    _state: bytes = field(default=b"", init=False)

    def __post_init__(self) -> None:
        choose(self.sandbox)
        if not (self.timeout_s > 0 and self.memory_mb > 0):
            got = f"got {self.timeout_s}, {self.memory_mb}"
            raise ConfigError(f"tools: timeout_s and memory_mb must be above 0 ({got}); change them")

    async def run(self, command: str, files: dict[str, bytes]) -> str:
        """The output of a command, stderr included, with a note if it failed.

        The directory is the current one; `files` are in its parent: `../main.py`.
        """
        limit_s, nonce = self.timeout_s, secrets.token_hex(8)
        script = _AROUND.format(timeout_s=limit_s, command=command, nonce=nonce, most=_MOST_SHOWN)
        program = Program(argv=("sh", "-c", script), files={"state": self._state, **files})
        limits = ResourceLimits(
            wall_s=limit_s + _GRACE_S,
            memory_bytes=self.memory_mb * _MEGABYTE,
            output_bytes=_MOST_KEPT + _MEGABYTE,
            file_bytes=4 * _MOST_KEPT,
        )
        outcome = await choose(self.sandbox).run(program, limits)
        _, marker, rest = outcome.stderr.decode(errors="replace").partition(f"{nonce} ")
        code, _, output = rest.partition("\n")
        if not marker or not code.isdecimal():
            raise _shell_failure(outcome, limit_s)
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


def _shell_failure(outcome: ProgramResult, limit_s: float) -> ToolFailed:
    """The error of a command that killed the surrounding shell."""
    if outcome.reason is ExitReason.TIMED_OUT:
        return ToolFailed(f"[ended after {limit_s:g} s]", ToolFault.TIMED_OUT)
    return ToolFailed("the command ended its own shell; the directory is as it was before")
