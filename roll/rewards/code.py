"""Code: runs what a reply wrote against the task's tests, in the sandbox.

A task's metadata says how it is tested, in one of these forms:

| metadata | what is done | languages |
|---|---|---|
| `cases: [{stdin, stdout}]` | one run each; outputs are compared, spaces at the ends of lines aside | all |
| `tests: [str]` | statements, asserts as a rule; each is a case | Python |
| `tests: [{args, kwargs, expected}]`, `entry_point` | calls; floats may differ by `tolerance` | Python |
| `tests: str` | a whole script: asserts, `check(candidate)`, functions `test_*`, `unittest`; one case | Python |

`setup` (or `test_setup`) runs before `tests`.

How a pass is kept from being forged. With `cases`, the expected output never enters the sandbox: a program can only
print the right thing. With `tests`, an examiner runs in the sandbox (`roll/rewards/examiner.py`), and the reply in
another process, which was forked off before the examiner had read anything. The tests run at the examiner's; the
functions that the reply defined are there as handles, whose calls are carried over a pipe and whose results come back
as plain data. So the reply sees the arguments of a call and nothing else: not the tests, nor what they expect. It
cannot change what `==`, `len` or `math.isclose` mean at the examiner's, since none of its code runs there; an object
of its own equals no plain data, whatever its `__eq__` says. If it exits, kills or prints, there is no answer, which
fails the test. Verdicts go to an output that the reply has no descriptor of, and carry a number that only the
examiner and this module know. The two run as one user, so the examiner closes its memory and descriptors to others,
and is process 1 of the sandbox, which cannot be killed from within.

What remains: tests that take their own means of comparison from the reply, such as a class whose equality is what they
test; and answers that can be guessed. What honest replies cannot do: arithmetic and order between an object of a class
of theirs and plain data, and `in` for such an object by `__contains__` alone; objects of classes that the tests define
cannot be handed to a reply, which is said as a fault of the task.
"""

from __future__ import annotations

import functools
import secrets
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from roll.errors import ConfigError, RewardFailed
from roll.rewards.examiner import work_as_text
from roll.sandbox.base import Ended, Limits, Program
from roll.sandbox.level import Level, choose, wait_for
from roll.types import Score, Task

_TOLERANCE = 1e-4
_INTERPRETER = ("python3", "-I", "-S", "-c")
_COMPILE = "import marshal,sys;print(marshal.dumps(compile(sys.stdin.read(), 'examiner', 'exec')).hex())"
_LEFT_OUT = ("from __future__", "from roll.")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Language:
    """How a source file becomes a running program."""

    file: str
    command: str
    """`{file}` is the source; parts joined by ` && ` run one after the other, in a shell."""
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
    reply: str,
    *,
    language: str = "python",
    timeout_s: float = 5.0,
    partial: bool = False,
    sandbox: str = "auto",
) -> Score:
    """1 if the code in `reply` passes all tests, else 0; with `partial` the fraction of them. The part `passed` is it.

    `language` is one of the table's, or a command with `{file}` in it. `timeout_s` is for one run: of one case of
    `cases`, or of all `tests` together. After a run that timed out, what is left counts as failed. `sandbox` is an
    option of `roll.sandbox.level`. Raises `ConfigError` for tests that cannot be used, and a `RolloutError` when the
    sandbox fails.
    """
    level = choose(sandbox)
    code = code_in(reply)
    limits = Limits(wall_s=timeout_s)
    if "cases" in task.metadata:
        passed, total = await _cases(task, code, _language(language), level, limits)
    elif language == "python":
        passed, total = await _tests(task, code, level, limits)
    else:
        raise ConfigError(f"task {task.id!r}: tests for {language!r} are stdin and stdout; give it 'cases'")
    fraction = passed / total
    return Score(fraction if partial else float(passed == total), {"passed": fraction})


def code_in(reply: str) -> str:
    """The last fenced block of what was said after thinking, else all of that; a fence may stay open."""
    _, closed, text = reply.rpartition("</think>")
    if not closed and "<think>" in reply:
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


async def _cases(task: Task, code: str, language: _Language, level: Level, limits: Limits) -> tuple[int, int]:
    cases = [_case(case, task) for case in _some(task.metadata["cases"], f"task {task.id!r}: 'cases'")]
    argv = ("sh", "-c", language.command.replace("{file}", language.file))
    files = {language.file: code.encode(errors="surrogatepass")}
    limits = Limits(wall_s=limits.wall_s, memory_bytes=language.memory_bytes)
    passed = 0
    for given, expected in cases:
        outcome = await level.run(Program(argv=argv, files=files, stdin=given.encode()), limits)
        if outcome.ended is Ended.TIMED_OUT:
            break
        printed = outcome.stdout.decode(errors="replace")
        passed += outcome.succeeded and _lines(printed) == _lines(expected)
    return passed, len(cases)


def _case(case: Any, task: Task) -> tuple[str, str]:
    place = f"task {task.id!r}: a case of 'cases'"
    if not isinstance(case, dict):
        raise ConfigError(f"{place} is not an object (got {case!r}); write {{stdin, stdout}}")
    fields = cast(dict[str, Any], case)
    given, expected = fields.get("stdin", ""), fields.get("stdout")
    if not isinstance(given, str) or not isinstance(expected, str):
        raise ConfigError(f"{place} needs 'stdin' and 'stdout' as text (got {fields!r}); write both")
    return given, expected


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


async def _tests(task: Task, code: str, level: Level, limits: Limits) -> tuple[int, int]:
    nonce = secrets.token_hex(16)
    work = _work(task)
    total = len(work["cases"])
    stdin = work_as_text({**work, "code": code, "nonce": nonce}).encode(errors="surrogatepass")
    outcome = await level.run(Program(argv=(*_INTERPRETER, _examiner(level)), stdin=stdin, first=True), limits)
    lines = outcome.stdout.decode(errors="replace").split("\n")
    told = [line.split(" ", 2)[1:] for line in lines if line.startswith(f"{nonce} ")]
    if ["ready"] not in told:
        said = outcome.stderr.decode(errors="replace").strip()[-500:]
        raise RewardFailed(f"task {task.id!r}: the examiner did not start (it said {said!r}); see the sandbox")
    verdicts = dict(line for line in told if len(line) == 2)
    for fault in (words for words in verdicts.values() if words.startswith("task ")):
        raise ConfigError(f"task {task.id!r}: {fault.removeprefix('task ')}; change its tests")
    return sum(verdicts.get(str(index)) == "pass" for index in range(total)), total


def _work(task: Task) -> dict[str, Any]:
    """What the examiner is to do."""
    tests: Any = task.metadata.get("tests")
    script = isinstance(tests, str)
    cases = _some([tests] if script else tests, f"task {task.id!r}: 'tests'")
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
        "setup": _newlines(str(task.metadata.get("setup") or task.metadata.get("test_setup") or "")),
        "cases": [_newlines(case) if isinstance(case, str) else case for case in cases],
        "entry": entry,
        "script": script,
        "tolerance": float(task.metadata.get("tolerance", _TOLERANCE)),
    }


def _newlines(text: str) -> str:
    return text.replace("\r\n", "\n")


def _some(found: Any, place: str) -> Sequence[Any]:
    if not isinstance(found, list) or not found:
        raise ConfigError(f"{place} is not a list with something in it (got {found!r}); give the task tests")
    return cast(list[Any], found)


def _language(name: str) -> _Language:
    if name in _LANGUAGES:
        return _LANGUAGES[name]
    if "{file}" in shlex.split(name):
        return _Language(file="main", command=name)
    raise ConfigError(
        f"code: no language {name!r}; choose one of {', '.join(_LANGUAGES)}, or write a command with {{file}} in it"
    )


@functools.cache
def _examiner(level: Level) -> str:
    """The examiner, compiled by the interpreter that will run it, which would else do so for each reply."""
    parts = [Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("wire.py", "examiner.py")]
    source = "\n".join(line for part in parts for line in part.split("\n") if not line.startswith(_LEFT_OUT))
    program = Program(argv=(*_INTERPRETER, _COMPILE), stdin=f"from __future__ import annotations\n{source}".encode())
    outcome = wait_for(level.run(program, Limits(wall_s=30.0)))
    if not outcome.succeeded:
        said = outcome.stderr.decode(errors="replace").strip()[-500:]
        raise RewardFailed(f"code: the system's python3 does not run (it said {said!r}); install it")
    return f"import marshal;exec(marshal.loads(bytes.fromhex('{outcome.stdout.decode().strip()}')))"
