"""Runs inside the sandbox, by the system's Python: calls a program once for each test, in a process of its own.

This file is sent there as text. It is told what to call with which arguments, and never what is expected; results are
compared outside. A test that uses up its processor time is killed by the system, and those after it are not run.
"""

# pyright: basic
# Values of any type pass through here; and it runs on Python 3.8, and has to start quickly.

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST = 100_000
"""Items that are taken from an iterator."""
LONGEST = 65_536
"""Characters of one result."""


def plain(value: Any) -> Any:
    """A result as JSON has it: what is iterated over is a list."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if not hasattr(value, "__next__"):
        raise TypeError(f"the result is an object of type {type(value).__name__!r}")
    items = []
    for item in value:
        items.append(plain(item))
        if len(items) > MOST:
            raise ValueError(f"the result has more than {MOST} items")
    return items


def called(work: dict[str, Any], arguments: list[Any]) -> str:
    """What the program gives, or how it fails, as JSON."""
    try:
        sys.dont_write_bytecode = True
        sys.path.insert(0, os.getcwd())
        with open(work["file"], encoding="utf-8") as file:
            source = file.read()
        module = types.ModuleType(work["entry"])
        sys.modules[work["entry"]] = module
        exec(compile(source, work["file"], "exec"), module.__dict__)
        text = json.dumps({"gave": plain(getattr(module, work["entry"])(*arguments))})
        if len(text) > LONGEST:
            raise ValueError(f"the result has more than {LONGEST} characters")
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is how the test ends
        text = json.dumps({"raised": described(error, work["file"])})
    return text


def described(error: BaseException, file: str) -> str:
    """An error in one line, with the line of the program that it came from."""
    try:
        text = error.msg if isinstance(error, SyntaxError) else error
        words = " ".join(f"{type(error).__name__}: {text}".split())[:300]
    except BaseException:  # noqa: BLE001 - its text is the program's too
        words = type(error).__name__
    line = error.lineno if isinstance(error, SyntaxError) else None
    trace = error.__traceback__
    while trace is not None and not isinstance(error, RecursionError):
        line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == file else line
        trace = trace.tb_next
    return words if line is None else f"{words} (line {line})"


def bound(cpu_s: float) -> None:
    """Let this process use so much of the processor; a program that stops the timer is ended by the system's limit."""
    whole = int(cpu_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (whole, whole))
    signal.setitimer(signal.ITIMER_PROF, cpu_s)


def run_apart(work: dict[str, Any], arguments: list[Any], out: int) -> dict[str, Any]:
    """How one test ends: whether by time, by which signal, and what it said."""
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            bound(work["cpu_s"])
            silence = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(silence, descriptor)
            for descriptor in (silence, source, out):
                os.close(descriptor)
            with os.fdopen(sink, "wb") as stream:
                stream.write(called(work, arguments).encode("ascii"))
        finally:
            os._exit(0)
    os.close(sink)
    with os.fdopen(source, "rb") as stream:
        said = stream.read(2 * LONGEST)
    _, status = os.waitpid(child, 0)
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    late = number in (signal.SIGPROF, signal.SIGXCPU, signal.SIGKILL)
    return {"late": late, "signal": number, "said": said.decode("ascii", "replace")}


def main() -> None:
    """Read the work, run the tests, tell how each ended."""
    work = json.loads(sys.stdin.buffer.read().decode("utf-8"))
    out = os.dup(1)
    os.write(out, b"ready\n")
    for arguments in work["arguments"]:
        found = run_apart(work, arguments, out)
        os.write(out, json.dumps(found).encode("ascii") + b"\n")
        if found["late"]:
            break


if __name__ == "__main__":
    main()
