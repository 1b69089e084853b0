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

The response chooses nothing that the examiner imports or executes. Modules come from a list of ours and from the
interpreter's own directories, and only the names that the tests use are bound. Text that a response returns is not
evaluated: `eval`, `exec` and `compile` refuse it in tests, and so do the attributes through which the standard library
would evaluate it.

Verdicts go to a descriptor that the response does not have, and carry a random number that only the examiner and this
module have. Both processes run as one user, so the examiner makes its memory and descriptors unreadable to others. It
is process 1 of the sandbox, which no process inside can kill or interrupt.

A response does not end a loop of the tests or catch their failures: `StopIteration` from a call becomes a
`RuntimeError` unless the tests mention it, names of errors are new classes that catch no assertion, and its context
managers suppress none. An assertion that fails in a function that the response calls counts.

Tests that run nothing pass everything, so a verdict has the number of checks that ran: assertions, and requests to the
response. Without one it is no pass but a fault of the task. A case that has assertions outside of `try` passes only if
one of them runs. `roll.rewards.code.suite` finds tests that run nothing before a run.

Time is judged by the CPU time of a process, and by the time in which the sandbox slept. How busy the machine is
changes neither. A run that the machine starves until its wall time limit has no verdict and is retried.

Remaining gaps: tests that take their means of comparison from the response, such as a class whose equality they test;
expected results that tests compute from an argument after the call, which the response may have changed; tests that
catch their own failures; and answers that can be guessed. Restrictions on honest responses: no arithmetic or ordering
between an object of their class and plain data, no `in` through `__contains__` alone, no coroutines that tests await,
and no output that tests capture. Attributes that are plain data are copies. Objects of classes that the tests define
cannot be passed to a response; that is reported as a fault of the task.
"""

from __future__ import annotations

import functools
import math
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from roll.errors import ConfigError, RewardFailed
from roll.rewards.code.extraction import extract_code
from roll.rewards.code.programs import (
    WALL_FACTOR,
    check_list,
    find_language,
    num_concurrent,
    ran_out,
    read_cases,
    run_cases,
)
from roll.rewards.code.protocol import refuse, write
from roll.rewards.code.suite import Suite, read_suite
from roll.sandbox.base import Program, ResourceLimits
from roll.sandbox.level import SandboxLevel, choose, run_coroutine
from roll.types import Score, Task

_TOLERANCE = 1e-4
_START_S = 60.0
_INTERPRETER = ("python3", "-I", "-S", "-c")
_COMPILE = (
    "import binascii,marshal,sys;code=compile(sys.stdin.read(), '<examiner>', 'exec', optimize=2);"
    "print(binascii.b2a_base64(marshal.dumps(code)).decode())"
)
"""Without docstrings and in base64: an argument of a program has at most 128 KiB."""
_REMOVED_IMPORTS = re.compile(r"^from (?:__future__|roll\.\S+) import (?:\([^)]*\)|.*)", re.MULTILINE)
_SOURCES = ("protocol.py", "examination.py", "examiner.py")


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

    The part `checks` is the number of assertions, calls and cases that ran. `language` is a name from the table, or a
    command with `{file}` in it. `timeout_s` is CPU time per run: of one case of `cases`, or of all `tests` together.
    After a run that timed out, the remaining cases count as failed. `sandbox` is an option of `roll.sandbox.level`.
    Raises `ConfigError` for unusable tests, and a `RolloutError` if the sandbox fails.
    """
    level = choose(sandbox)
    check_task(task, language=language)
    if "cases" in task.metadata:
        reads_input = any(stdin for stdin, _ in read_cases(task))
        code = extract_code(response, language=language, reads_input=reads_input)
        passed, total, checks = await run_cases(task, code, find_language(language), level, timeout_s)
    else:
        passed, total, checks = await _run_tests(task, response, level, timeout_s)
    fraction = passed / total
    return Score(fraction if partial else float(passed == total), {"passed": fraction, "checks": float(checks)})


def check_task(task: Task, *, language: str = "python", **_: Any) -> None:
    """Raise `ConfigError` if no response to this task could be judged, as far as can be seen without running it."""
    if "cases" in task.metadata:
        find_language(language)
        read_cases(task)
    elif language != "python":
        raise ConfigError(f"task {task.id!r}: tests for {language!r} are stdin and stdout; give it 'cases'")
    else:
        _, suite = _build_work(task)
        if suite.fault:
            raise ConfigError(f"task {task.id!r}: {suite.fault}; change its tests")


def longest_s(task: Task, *, timeout_s: float = 5.0, **_: Any) -> float:
    """The longest time that a score of this task can take on a machine that works."""
    cases: Any = task.metadata.get("cases")
    rounds = math.ceil(len(cast(list[Any], cases)) / num_concurrent()) if isinstance(cases, list) else 1
    return _START_S + (WALL_FACTOR * timeout_s + 2.0) * rounds


async def _run_tests(task: Task, response: str, level: SandboxLevel, timeout_s: float) -> tuple[int, int, int]:
    """Tests that pass, all tests, and the number of checks that ran."""
    nonce = secrets.token_hex(16)
    work, suite = _build_work(task)
    code = extract_code(response, needed=suite.needed)
    stdin = write({**work, "code": code, "nonce": nonce}, refuse).encode(errors="surrogatepass")
    argv = (*_INTERPRETER, _compile_examiner(level), str(math.ceil(timeout_s)))
    limits = ResourceLimits(wall_s=WALL_FACTOR * timeout_s, start_s=_START_S)
    result = await level.run(Program(argv=argv, stdin=stdin, ready=f"{nonce} ready".encode(), first=True), limits)
    lines = result.stdout.decode(errors="replace").split("\n")
    messages = [line.split(" ", 2)[1:] for line in lines if line.startswith(f"{nonce} ")]
    if ["ready"] not in messages:
        stderr = result.stderr.decode(errors="replace").strip()[-500:]
        raise RewardFailed(
            f"task {task.id!r}: the examiner did not start ({result.reason} after {result.wall_s:.0f} s, "
            f"it said {stderr!r}); see the sandbox"
        )
    verdicts = dict(message for message in messages if len(message) == 2)
    for fault in (verdict for verdict in verdicts.values() if verdict.startswith("task ")):
        raise ConfigError(f"task {task.id!r}: {fault.removeprefix('task ')}; change its tests")
    ran_out(result, timeout_s, f"task {task.id!r}")
    counted = [verdicts.get(str(index), "") for index, skip in enumerate(suite.prepares) if not skip]
    checks = sum(int(verdict.partition(" ")[2] or 0) for verdict in verdicts.values())
    return sum(verdict.startswith("pass ") for verdict in counted), len(counted), checks


def _build_work(task: Task) -> tuple[dict[str, Any], Suite]:
    """The examiner's input, and what was read from the tests."""
    tests: Any = task.metadata.get("tests")
    script = isinstance(tests, str)
    cases = check_list([tests] if script else tests, f"task {task.id!r}: 'tests'")
    entry = str(task.metadata.get("entry_point") or "")
    for case in cases:
        if isinstance(case, dict) and not ({"args", "expected"} <= case.keys() and entry):
            raise ConfigError(
                f"task {task.id!r}: a test that is an object needs 'args' and 'expected', "
                f"and the task an 'entry_point' (got {case!r}); add them"
            )
        if not isinstance(case, dict | str):
            raise ConfigError(f"task {task.id!r}: a test is neither text nor an object (got {case!r}); change it")
    setup = str(task.metadata.get("setup") or task.metadata.get("test_setup") or "").replace("\r\n", "\n")
    texts = [case.replace("\r\n", "\n") if isinstance(case, str) else case for case in cases]
    suite = _read_suite(setup, texts, entry, script)
    work = {
        "setup": setup,
        "cases": texts,
        "entry": entry,
        "script": script,
        "names": list(suite.names),
        "modules": list(suite.modules),
        "prepares": list(suite.prepares),
        "tolerance": float(task.metadata.get("tolerance", _TOLERANCE)),
    }
    return work, suite


def _read_suite(setup: str, cases: Sequence[Any], entry: str, script: bool) -> Suite:
    """The suite of the statements; a call with its expected result is a check."""
    texts = tuple(case if isinstance(case, str) else f"assert ({entry})()" for case in cases)
    return read_suite(setup, texts, entry, script)


@functools.cache
def _compile_examiner(level: SandboxLevel) -> str:
    """The examiner's program, compiled once by the interpreter that will run it."""
    parts = [Path(__file__).with_name(name).read_text(encoding="utf-8") for name in _SOURCES]
    source = _REMOVED_IMPORTS.sub("", "\n".join(parts))
    program = Program(argv=(*_INTERPRETER, _COMPILE), stdin=f"from __future__ import annotations\n{source}".encode())
    result = run_coroutine(level.run(program, ResourceLimits(wall_s=30.0)))
    if not result.succeeded:
        stderr = result.stderr.decode(errors="replace").strip()[-500:]
        raise RewardFailed(f"code: the system's python3 does not run (it said {stderr!r}); install it")
    text = result.stdout.decode().strip()
    return f"import binascii,marshal;exec(marshal.loads(binascii.a2b_base64('{text}')))"
