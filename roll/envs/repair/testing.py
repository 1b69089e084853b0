"""Run the tests of a faulty program in the sandbox, and compare the results outside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec

from roll.envs.repair import harness
from roll.errors import EnvFailed
from roll.sandbox.base import ExitReason, Program, ResourceLimits
from roll.sandbox.level import SandboxLevel

_INTERPRETER = ("python3", "-I", "-S", "-c")
_HARNESS = Path(harness.__file__).read_text(encoding="utf-8")
_TOLERANCE = 1e-4
_MAX_SHOWN = 200
"""Most characters of a value that the policy sees."""


class ProgramTest(msgspec.Struct, frozen=True, kw_only=True):
    """One test: a call and its expected result. Tuples and other iterables are lists."""

    args: tuple[Any, ...]
    expected: Any


class FaultyProgram(msgspec.Struct, frozen=True, kw_only=True):
    """A faulty program, as in a task's row."""

    buggy_code: str
    entry_point: Annotated[str, msgspec.Meta(pattern="^[A-Za-z_][A-Za-z_0-9]*$")]
    """The function that the tests call; the file has the same name."""
    tests: Annotated[tuple[ProgramTest, ...], msgspec.Meta(min_length=1)]

    @property
    def file(self) -> str:
        return f"{self.entry_point}.py"

    def call(self, case: ProgramTest) -> str:
        """The source text of a test's call."""
        return f"{self.entry_point}({', '.join(_shorten(value) for value in case.args)})"


async def run_tests(
    program: FaultyProgram,
    files: Mapping[str, str],
    cases: Sequence[ProgramTest],
    level: SandboxLevel,
    *,
    test_s: float,
    timeout_s: float,
) -> list[str]:
    """Why each test fails; empty for a test that passes. After a timeout no further test runs.

    `test_s` is CPU time per test, `timeout_s` wall-clock time for all tests together.
    """
    arguments = [case.args for case in cases]
    work = {"file": program.file, "entry": program.entry_point, "cpu_s": test_s, "arguments": arguments}
    started = Program(
        argv=(*_INTERPRETER, _HARNESS),
        files={name: text.encode() for name, text in files.items()},
        stdin=json.dumps(work).encode(),
    )
    outcome = await level.run(
        started, ResourceLimits(wall_s=timeout_s, output_bytes=4 * harness.LONGEST * len(cases) + 4096)
    )
    ready, *lines = outcome.stdout.decode("ascii", "replace").split("\n")
    if ready != "ready":
        stderr = outcome.stderr.decode(errors="replace").strip()[-500:]
        raise EnvFailed(f"the tests of {program.file} did not start (python3 said {stderr!r}); see the sandbox")
    complete = zip(cases, lines[:-1], strict=False)  # a line without a newline is incomplete
    failures = [_failure(case, line, test_s) for case, line in complete]
    if outcome.reason is ExitReason.TIMED_OUT and len(failures) < len(cases):
        failures.append(f"did not end within {timeout_s:g} s")
    return failures + ["not run"] * (len(cases) - len(failures))


def _failure(case: ProgramTest, line: str, test_s: float) -> str:
    """Why a test failed. Every character of the report may come from the program."""
    report = _parse_object(line)
    if report.get("late"):
        return f"did not end within {test_s:g} s"
    if report.get("signal"):
        return f"was killed by signal {report['signal']}"
    output = _parse_object(str(report.get("output", "")))
    if "gave" in output:
        if values_equal(output["gave"], case.expected):
            return ""
        return f"gave {_shorten(output['gave'])}, not {_shorten(case.expected)}"
    return f"raised {output['raised']}" if isinstance(output.get("raised"), str) else "gave nothing"


def _parse_object(text: str) -> dict[str, Any]:
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def values_equal(actual: Any, expected: Any) -> bool:
    """Equality of JSON values, with a tolerance for floats; booleans are not numbers."""
    if isinstance(actual, bool) or isinstance(expected, bool):
        return actual is expected
    if isinstance(actual, int | float) and isinstance(expected, int | float):
        return actual == expected or (float in (type(actual), type(expected)) and _close(actual, expected))
    if isinstance(actual, list) and isinstance(expected, list):
        ours, theirs = cast(list[Any], actual), cast(list[Any], expected)
        return len(ours) == len(theirs) and all(values_equal(*pair) for pair in zip(ours, theirs, strict=True))
    if isinstance(actual, dict) and isinstance(expected, dict):
        one, other = cast(dict[str, Any], actual), cast(dict[str, Any], expected)
        return one.keys() == other.keys() and all(values_equal(one[key], other[key]) for key in one)
    return actual == expected if isinstance(expected, str) else actual is None and expected is None


def _close(one: float, other: float) -> bool:
    try:
        return abs(one - other) <= _TOLERANCE
    except OverflowError:  # an integer too large for a float
        return False


def _shorten(value: Any) -> str:
    try:
        text = repr(value)
    except RecursionError:
        text = "something very deep"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
