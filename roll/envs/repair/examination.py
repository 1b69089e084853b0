"""The tests of a faulty program: run in the sandbox, compared here."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec

from roll.envs.repair.harness import LONGEST
from roll.errors import EnvFailed
from roll.sandbox.base import Ended, Limits, Program
from roll.sandbox.level import Level

_INTERPRETER = ("python3", "-I", "-S", "-c")
_TOLERANCE = 1e-4
_SHOWN = 200
"""Characters of a value that a policy is shown."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One test: a call, and what it has to give. Tuples and whatever else is iterated over are lists."""

    args: tuple[Any, ...]
    expected: Any


class Broken(msgspec.Struct, frozen=True, kw_only=True):
    """A program with a fault in it, as a task's row has it."""

    buggy_code: str
    entry_point: Annotated[str, msgspec.Meta(pattern="^[A-Za-z_][A-Za-z_0-9]*$")]
    """The function that the tests call; its file has its name."""
    tests: Annotated[tuple[Case, ...], msgspec.Meta(min_length=1)]

    @property
    def file(self) -> str:
        return f"{self.entry_point}.py"

    def call(self, case: Case) -> str:
        """A test's call, as one would write it."""
        return f"{self.entry_point}({', '.join(_shown(value) for value in case.args)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What the tests of one program may take."""

    cpu_s: float
    """Of the processor, by one test."""
    wall_s: float
    """By all of them together."""


async def faults(
    program: Broken, files: Mapping[str, str], cases: Sequence[Case], bounds: Bounds, level: Level
) -> list[str]:
    """Why each test fails, in words; empty for one that passes. After one that does not end, no other is run."""
    work = {
        "file": program.file,
        "entry": program.entry_point,
        "cpu_s": bounds.cpu_s,
        "arguments": [case.args for case in cases],
    }
    started = Program(
        argv=(*_INTERPRETER, _harness()),
        files={name: text.encode() for name, text in files.items()},
        stdin=json.dumps(work).encode(),
    )
    limits = Limits(wall_s=bounds.wall_s, output_bytes=4 * LONGEST * len(cases) + 4096)
    outcome = await level.run(started, limits)
    ready, *lines = outcome.stdout.decode("ascii", "replace").split("\n")
    if ready != "ready":
        said = outcome.stderr.decode(errors="replace").strip()[-500:]
        raise EnvFailed(f"the tests of {program.file} did not start (python3 said {said!r}); see the sandbox")
    whole = zip(cases, lines[:-1], strict=False)  # what no newline ends was cut off
    told = [_fault(case, line, bounds) for case, line in whole]
    if outcome.ended is Ended.TIMED_OUT and len(told) < len(cases):
        told.append(f"did not end within {bounds.wall_s:g} s")
    return told + ["not run"] * (len(cases) - len(told))


def _fault(case: Case, line: str, bounds: Bounds) -> str:
    """What is wrong with how a test went, of which every letter may be the program's own."""
    found = _read(line)
    if found.get("late"):
        return f"did not end within {bounds.cpu_s:g} s"
    if found.get("signal"):
        return f"was killed by signal {found['signal']}"
    said = _read(str(found.get("said", "")))
    if "gave" in said:
        return "" if same(said["gave"], case.expected) else f"gave {_shown(said['gave'])}, not {_shown(case.expected)}"
    return f"raised {said['raised']}" if isinstance(said.get("raised"), str) else "gave nothing"


def _read(text: str) -> dict[str, Any]:
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return cast(dict[str, Any], found) if isinstance(found, dict) else {}


def same(found: Any, expected: Any) -> bool:
    """Equal as JSON has it, floats within a tolerance; truth values are not numbers."""
    if isinstance(found, bool) or isinstance(expected, bool):
        return found is expected
    if isinstance(found, int | float) and isinstance(expected, int | float):
        return found == expected or (float in (type(found), type(expected)) and _near(found, expected))
    if isinstance(found, list) and isinstance(expected, list):
        ours, theirs = cast(list[Any], found), cast(list[Any], expected)
        return len(ours) == len(theirs) and all(same(*pair) for pair in zip(ours, theirs, strict=True))
    if isinstance(found, dict) and isinstance(expected, dict):
        one, other = cast(dict[str, Any], found), cast(dict[str, Any], expected)
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return found == expected if isinstance(expected, str) else found is None and expected is None


def _near(one: float, other: float) -> bool:
    try:
        return abs(one - other) <= _TOLERANCE
    except OverflowError:  # a whole number beyond all floats
        return False


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except RecursionError:
        text = "something very deep"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


@functools.cache
def _harness() -> str:
    return Path(__file__).with_name("harness.py").read_text(encoding="utf-8")
