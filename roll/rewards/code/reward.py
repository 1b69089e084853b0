"""Code: runs the code of a response against the task's tests, in the sandbox.

A task's metadata holds its tests in one of these forms:

| metadata | check | languages |
|---|---|---|
| `cases: [{stdin, stdout}]` | one run each; outputs are compared, ignoring trailing whitespace of lines | all |
| `tests: [str]` | statements, usually asserts; each is a case | Python |
| `tests: [{args, kwargs, expected}]`, `entry_point` | calls; floats may differ by `tolerance` | Python |
| `tests: str` | a script: asserts, `check(candidate)`, functions `test_*`, `unittest`; one case | Python |

`setup` (or `test_setup`) runs before `tests`.

Protection against forged passes. With `cases`, the expected output never enters the sandbox, so a program can only
print the right output. With `tests`, an examiner runs in the sandbox (`roll/rewards/code/examiner.py`), and the
response runs in a second process, forked before the examiner has read anything. The tests run in the examiner. The
functions that the response defines are handles there: calls go over a pipe, and results come back as plain data. So
the response sees the arguments of a call and nothing else: neither the tests nor the expected results. None of its code
runs in the examiner, so it cannot redefine `==`, `len` or `math.isclose` there, and an object of its class equals no
plain data, regardless of its `__eq__`. If it exits, kills or prints, there is no answer, which fails the test.
Verdicts go to a descriptor that the response does not have, and carry a random number that only the examiner and this
module have. Both processes run as one user, so the examiner makes its memory and descriptors unreadable to others. It
is process 1 of the sandbox, which no process inside can kill.

Remaining gaps: tests that take their means of comparison from the response, such as a class whose equality they test,
and answers that can be guessed. Restrictions on honest responses: no arithmetic or ordering between an object of their
class and plain data, and no `in` through `__contains__` alone. Objects of classes that the tests define cannot be
passed to a response; that is reported as a fault of the task.
"""

from __future__ import annotations

import functools
import re
import secrets
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from roll.errors import ConfigError, RewardFailed
from roll.rewards.code.protocol import refuse, write
from roll.sandbox.base import ExitReason, Program, ResourceLimits
from roll.sandbox.level import SandboxLevel, choose, run_coroutine
from roll.types import Score, Task

_TOLERANCE = 1e-4
_INTERPRETER = ("python3", "-I", "-S", "-c")
_COMPILE = "import marshal,sys;print(marshal.dumps(compile(sys.stdin.read(), 'examiner', 'exec')).hex())"
_REMOVED_IMPORTS = re.compile(r"^from (?:__future__|roll\.\S+) import (?:\([^)]*\)|.*)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Language:
    """How a source file becomes a running program."""

    file: str
    command: str
    """Shell command; `{file}` is the source file."""
    memory_bytes: int = 512 * 2**20


_LANGUAGES = {
    "python": _Language(file="main.py", command="python3 -I {file}"),
    "javascript": _Language(file="main.js", command="node {file}", memory_bytes=4 * 2**30),
    "bash": _Language(file="main.sh", command="bash {file}"),
    "perl": _Language(file="main.pl", command="perl {file}"),
    "ruby": _Language(file="main.rb", command="ruby {file}"),
    "c": _Language(file="main.c", command="gcc -O1 -o main {file} -lm && ./main"),
    "c++": _Language(file="main.cpp", command="g++ -O1 -std=c++17 -o main {file} && ./main"),
}


async def score(
    task: Task,
    response: str,
    *,
    language: str = "python",
    timeout_s: float = 5.0,
    partial: bool = False,
    sandbox: str = "auto",
) -> Score:
    """1 if the code in `response` passes all tests, else 0; with `partial`, the fraction, which is the part `passed`.

    `language` is a name from the table, or a command with `{file}` in it. `timeout_s` is per run: of one case of
    `cases`, or of all `tests` together. After a run that timed out, the remaining cases count as failed. `sandbox` is
    an option of `roll.sandbox.level`. Raises `ConfigError` for unusable tests, and a `RolloutError` if the sandbox
    fails.
    """
    level = choose(sandbox)
    code = extract_code(response)
    limits = ResourceLimits(wall_s=timeout_s)
    if "cases" in task.metadata:
        passed, total = await _run_cases(task, code, _find_language(language), level, limits)
    elif language == "python":
        passed, total = await _run_tests(task, code, level, limits)
    else:
        raise ConfigError(f"task {task.id!r}: tests for {language!r} are stdin and stdout; give it 'cases'")
    fraction = passed / total
    return Score(fraction if partial else float(passed == total), {"passed": fraction})


def extract_code(response: str) -> str:
    """The last fenced block after the thinking, else all text after it; the last fence may be unclosed."""
    _, closed, text = response.rpartition("</think>")
    if not closed and "<think>" in response:
        return ""
    blocks: list[list[str]] = []
    inside = False
    for line in text.split("\n"):
        if line.lstrip().startswith("```"):
            inside = not inside
            if inside:
                blocks.append([])
        elif inside:
            blocks[-1].append(line)
    return "\n".join(blocks[-1]) if blocks else text


async def _run_cases(
    task: Task, code: str, language: _Language, level: SandboxLevel, limits: ResourceLimits
) -> tuple[int, int]:
    cases = [_parse_case(case, task) for case in _check_list(task.metadata["cases"], f"task {task.id!r}: 'cases'")]
    argv = ("sh", "-c", language.command.replace("{file}", language.file))
    files = {language.file: code.encode(errors="surrogatepass")}
    limits = ResourceLimits(wall_s=limits.wall_s, memory_bytes=language.memory_bytes)
    passed = 0
    for stdin, expected in cases:
        result = await level.run(Program(argv=argv, files=files, stdin=stdin.encode()), limits)
        if result.reason is ExitReason.TIMED_OUT:
            break
        printed = result.stdout.decode(errors="replace")
        passed += result.succeeded and _lines(printed) == _lines(expected)
    return passed, len(cases)


def _parse_case(case: Any, task: Task) -> tuple[str, str]:
    where = f"task {task.id!r}: a case of 'cases'"
    if not isinstance(case, dict):
        raise ConfigError(f"{where} is not an object (got {case!r}); write {{stdin, stdout}}")
    fields = cast(dict[str, Any], case)
    stdin, expected = fields.get("stdin", ""), fields.get("stdout")
    if not isinstance(stdin, str) or not isinstance(expected, str):
        raise ConfigError(f"{where} needs 'stdin' and 'stdout' as text (got {fields!r}); write both")
    return stdin, expected


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


async def _run_tests(task: Task, code: str, level: SandboxLevel, limits: ResourceLimits) -> tuple[int, int]:
    nonce = secrets.token_hex(16)
    work = _build_work(task)
    total = len(work["cases"])
    stdin = write({**work, "code": code, "nonce": nonce}, refuse).encode(errors="surrogatepass")
    result = await level.run(Program(argv=(*_INTERPRETER, _compile_examiner(level)), stdin=stdin, first=True), limits)
    lines = result.stdout.decode(errors="replace").split("\n")
    messages = [line.split(" ", 2)[1:] for line in lines if line.startswith(f"{nonce} ")]
    if ["ready"] not in messages:
        stderr = result.stderr.decode(errors="replace").strip()[-500:]
        raise RewardFailed(f"task {task.id!r}: the examiner did not start (it said {stderr!r}); see the sandbox")
    verdicts = dict(message for message in messages if len(message) == 2)
    for fault in (verdict for verdict in verdicts.values() if verdict.startswith("task ")):
        raise ConfigError(f"task {task.id!r}: {fault.removeprefix('task ')}; change its tests")
    return sum(verdicts.get(str(index)) == "pass" for index in range(total)), total


def _build_work(task: Task) -> dict[str, Any]:
    """The examiner's input."""
    tests: Any = task.metadata.get("tests")
    script = isinstance(tests, str)
    cases = _check_list([tests] if script else tests, f"task {task.id!r}: 'tests'")
    entry = str(task.metadata.get("entry_point") or "")
    for case in cases:
        if isinstance(case, dict) and not ({"args", "expected"} <= case.keys() and entry):
            raise ConfigError(
                f"task {task.id!r}: a test that is an object needs 'args' and 'expected', "
                f"and the task an 'entry_point' (got {case!r}); add them"
            )
        if not isinstance(case, dict | str):
            raise ConfigError(f"task {task.id!r}: a test is neither text nor an object (got {case!r}); change it")
    return {
        "setup": str(task.metadata.get("setup") or task.metadata.get("test_setup") or "").replace("\r\n", "\n"),
        "cases": [case.replace("\r\n", "\n") if isinstance(case, str) else case for case in cases],
        "entry": entry,
        "script": script,
        "tolerance": float(task.metadata.get("tolerance", _TOLERANCE)),
    }


def _check_list(value: Any, where: str) -> Sequence[Any]:
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{where} is not a list with something in it (got {value!r}); give the task tests")
    return cast(list[Any], value)


def _find_language(name: str) -> _Language:
    if name in _LANGUAGES:
        return _LANGUAGES[name]
    if "{file}" in shlex.split(name):
        return _Language(file="main", command=name)
    raise ConfigError(
        f"code: no language {name!r}; choose one of {', '.join(_LANGUAGES)}, or write a command with {{file}} in it"
    )


@functools.cache
def _compile_examiner(level: SandboxLevel) -> str:
    """The examiner's program, compiled once by the interpreter that will run it."""
    parts = [Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("protocol.py", "examiner.py")]
    source = _REMOVED_IMPORTS.sub("", "\n".join(parts))
    program = Program(argv=(*_INTERPRETER, _COMPILE), stdin=f"from __future__ import annotations\n{source}".encode())
    result = run_coroutine(level.run(program, ResourceLimits(wall_s=30.0)))
    if not result.succeeded:
        stderr = result.stderr.decode(errors="replace").strip()[-500:]
        raise RewardFailed(f"code: the system's python3 does not run (it said {stderr!r}); install it")
    return f"import marshal;exec(marshal.loads(bytes.fromhex('{result.stdout.decode().strip()}')))"
