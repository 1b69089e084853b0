"""Programs that read standard input and print: one run per case, in any language, compared outside the sandbox."""

from __future__ import annotations

import asyncio
import math
import os
import shlex
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from roll.errors import ConfigError, RewardFailed
from roll.sandbox.base import ExitReason, Program, ProgramResult, ResourceLimits
from roll.sandbox.level import SandboxLevel
from roll.types import Task

WALL_FACTOR = 10.0
"""Wall time of a run per second of its CPU time limit. A program that computes gets this far only if at least
ten others compete with it for each core."""
_MAX_CONCURRENT = 4
_NEARLY = 0.8
"""Part of the CPU time limit from which a kill counts as its end; the system measures it in ticks."""
_ASLEEP_SHARE = 0.02
_ROOMY, _OVERRUN = 1.5, 25.0
"""Processes per core. Below the first, a program that waits is asleep. Below the second, so is one
that used less than `_ASLEEP_SHARE` of a core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """How a source file becomes a running program."""

    file: str
    command: str
    """Shell command; `{file}` is the source file."""
    memory_bytes: int = 512 * 2**20


LANGUAGES = {
    "python": Language(file="main.py", command="python3 -I {file}"),
    "javascript": Language(file="main.js", command="node {file}", memory_bytes=4 * 2**30),
    "bash": Language(file="main.sh", command="bash {file}"),
    "perl": Language(file="main.pl", command="perl {file}"),
    "ruby": Language(file="main.rb", command="ruby {file}"),
    "c": Language(file="main.c", command="gcc -O1 -o main {file} -lm && ./main"),
    "c++": Language(file="main.cpp", command="g++ -O1 -std=c++17 -o main {file} && ./main"),
}


def find_language(name: str) -> Language:
    """The language of this name, or a command with `{file}` in it."""
    if name in LANGUAGES:
        return LANGUAGES[name]
    if "{file}" in shlex.split(name):
        return Language(file="main", command=name)
    raise ConfigError(
        f"code: no language {name!r}; choose one of {', '.join(LANGUAGES)}, or write a command with {{file}} in it"
    )


async def run_cases(
    task: Task, code: str, language: Language, level: SandboxLevel, timeout_s: float
) -> tuple[int, int, int]:
    """Cases that pass, all cases, and those that ran. After a case that timed out, the later ones count as failed."""
    cases = read_cases(task)
    cpu_s = math.ceil(timeout_s)
    command = f"ulimit -t {cpu_s}; {language.command.replace('{file}', language.file)}"
    files = {language.file: code.encode(errors="surrogatepass")}
    limits = ResourceLimits(wall_s=WALL_FACTOR * timeout_s, memory_bytes=language.memory_bytes)
    gate, first_late = asyncio.Semaphore(num_concurrent()), len(cases)

    async def run(index: int) -> ProgramResult | None:
        nonlocal first_late
        async with gate:
            if index > first_late:
                return None
            program = Program(argv=("sh", "-c", command), files=files, stdin=cases[index][0].encode())
            result = await level.run(program, limits)
            if ran_out(result, timeout_s, f"task {task.id!r}: case {index}"):
                first_late = min(first_late, index)
            return result

    results = await asyncio.gather(*(run(index) for index in range(len(cases))), return_exceptions=True)
    passed = 0
    for result, (_, expected) in list(zip(results, cases, strict=True))[:first_late]:
        if isinstance(result, BaseException):
            raise result
        assert result is not None, "every case before the first late one ran"
        passed += result.succeeded and _lines(result.stdout.decode(errors="replace")) == _lines(expected)
    return passed, len(cases), min(first_late + 1, len(cases))


def num_concurrent() -> int:
    """Cases of one response that run at once."""
    return min(_MAX_CONCURRENT, len(os.sched_getaffinity(0)))


def ran_out(result: ProgramResult, timeout_s: float, where: str) -> bool:
    """Whether a program used up its time; raises if it ran out of wall time because the machine was busy."""
    if result.reason is not ExitReason.TIMED_OUT:
        killed = result.signal in (signal.SIGKILL, signal.SIGXCPU)
        return killed and result.cpu_s >= _NEARLY * math.ceil(timeout_s)
    if result.cpu_s < timeout_s and not _slept(result):
        raise RewardFailed(
            f"{where}: the machine was too busy (got {result.cpu_s:.1f} s of CPU time in {result.wall_s:.0f} s); "
            "run fewer processes on it"
        )
    return True


def _slept(result: ProgramResult) -> bool:
    """Whether a program that ran out of wall time was asleep, rather than waiting for a processor."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    return load < _ROOMY or (load < _OVERRUN and result.cpu_s < _ASLEEP_SHARE * result.wall_s)


def read_cases(task: Task) -> Sequence[tuple[str, str]]:
    """Input and expected output of every case; raises `ConfigError` if one has none."""
    cases = [_read_case(case, task) for case in check_list(task.metadata["cases"], f"task {task.id!r}: 'cases'")]
    if not any(expected.strip() for _, expected in cases):
        raise ConfigError(f"task {task.id!r}: no case expects output, so an empty program passes; add one that does")
    return cases


def _read_case(case: Any, task: Task) -> tuple[str, str]:
    where = f"task {task.id!r}: a case of 'cases'"
    if not isinstance(case, dict):
        raise ConfigError(f"{where} is not an object (got {case!r}); write {{stdin, stdout}}")
    fields = cast(dict[str, Any], case)
    stdin, expected = fields.get("stdin", ""), fields.get("stdout")
    if not isinstance(stdin, str) or not isinstance(expected, str):
        raise ConfigError(f"{where} needs 'stdin' and 'stdout' as text (got {fields!r}); write both")
    return stdin, expected


def check_list(value: Any, where: str) -> Sequence[Any]:
    """The value, if it is a list with something in it."""
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{where} is not a list with something in it (got {value!r}); give the task tests")
    return cast(list[Any], value)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]
