"""Programs in the sandbox, one after the other, in a directory that is kept for the attempt.

Nothing of the sandbox outlives a program. So the directory travels: it is packed inside of the sandbox when a program
has ended, and unpacked inside of the next one. Here it is a heap of bytes that nobody looks into. Directories that grow
beyond `_MOST_KEPT` are not taken over, which is said.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from roll.errors import ConfigError
from roll.sandbox.base import Ended, Limits, Outcome, Program
from roll.sandbox.level import choose
from roll.tools.base import ToolFailed, ToolFault

_MEGABYTE = 2**20
_MOST_KEPT = 8 * _MEGABYTE
_MOST_SHOWN = 65536
_GRACE_S = 3.0
"""For what is done around the program."""
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
"""What `timeout` exits with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What one program may use."""

    timeout_s: float
    memory_mb: int
    sandbox: str

    def __post_init__(self) -> None:
        if not (self.timeout_s > 0 and self.memory_mb > 0):
            got = f"got {self.timeout_s}, {self.memory_mb}"
            raise ConfigError(f"tools: timeout_s and memory_mb must be above 0 ({got}); change them")


@dataclass(slots=True)
class Scratch:
    """The directory of one attempt."""

    allowance: Allowance
    _state: bytes = field(default=b"", init=False)

    async def run(self, command: str, files: dict[str, bytes]) -> str:
        """What a command printed, errors included, and how it ended where that was not well.

        `files` lie beside the directory, which is the current one: `../main.py`.
        """
        limit_s, nonce = self.allowance.timeout_s, secrets.token_hex(8)
        script = _AROUND.format(timeout_s=limit_s, command=command, nonce=nonce, most=_MOST_SHOWN)
        program = Program(argv=("sh", "-c", script), files={"state": self._state, **files})
        limits = Limits(
            wall_s=limit_s + _GRACE_S,
            memory_bytes=self.allowance.memory_mb * _MEGABYTE,
            output_bytes=_MOST_KEPT + _MEGABYTE,
            file_bytes=4 * _MOST_KEPT,
        )
        outcome = await choose(self.allowance.sandbox).run(program, limits)
        _, told, rest = outcome.stderr.decode(errors="replace").partition(f"{nonce} ")
        code, _, output = rest.partition("\n")
        if not told or not code.isdecimal():
            raise _ended(outcome, limit_s)
        late = int(code) in (_TIMED_OUT, _KILLED) and outcome.wall_s >= limit_s
        said = self._said(output, f"ended after {limit_s:g} s" if late else f"exit code {code}", outcome)
        if late:
            raise ToolFailed(said, ToolFault.TIMED_OUT)
        return said

    def _said(self, output: str, end: str, outcome: Outcome) -> str:
        """All that there is to say; the directory is taken over, if that can be."""
        notes = [] if end == "exit code 0" else [f"[{end}]"]
        if outcome.succeeded and len(outcome.stdout) <= _MOST_KEPT:
            self._state = outcome.stdout
        else:
            notes.append("[the files could not be kept: the directory is as it was before]")
        return "\n".join([*([output.rstrip("\n")] if output.strip() else []), *notes]) or "(no output)"


def _ended(outcome: Outcome, limit_s: float) -> ToolFailed:
    """The command has ended even what was around it."""
    if outcome.ended is Ended.TIMED_OUT:
        return ToolFailed(f"[ended after {limit_s:g} s]", ToolFault.TIMED_OUT)
    return ToolFailed("the command ended its own shell; the directory is as it was before")
