"""Runs inside the sandbox on the system's Python: calls a program once per test, each in a child process.

This file is sent there as text. It receives the arguments of the calls but never the expected results, which are
compared outside. The system kills a test that exceeds its CPU time, and later tests are not run.
"""

# pyright: basic
# Values of any type pass through here. It must run on Python 3.8 and start quickly.

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
"""Most items taken from an iterator."""
LONGEST = 65_536
"""Most characters per result."""


def to_json_value(value: Any) -> Any:
    """A result as a JSON value; iterators become lists."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [to_json_value(item) for item in value]
    if isinstance(value, dict):
        return {str(key): to_json_value(item) for key, item in value.items()}
    if not hasattr(value, "__next__"):
        raise TypeError(f"the result is an object of type {type(value).__name__!r}")
    items = []
    for item in value:
        items.append(to_json_value(item))
        if len(items) > MOST:
            raise ValueError(f"the result has more than {MOST} items")
    return items


def call_program(work: dict[str, Any], arguments: list[Any]) -> str:
    """The program's result or error, as JSON."""
    try:
        sys.dont_write_bytecode = True
        sys.path.insert(0, os.getcwd())
        with open(work["file"], encoding="utf-8") as file:
            source = file.read()
        module = types.ModuleType(work["entry"])
        sys.modules[work["entry"]] = module
        exec(compile(source, work["file"], "exec"), module.__dict__)
        text = json.dumps({"gave": to_json_value(getattr(module, work["entry"])(*arguments))})
        if len(text) > LONGEST:
            raise ValueError(f"the result has more than {LONGEST} characters")
    except BaseException as error:  # noqa: BLE001 - any error is the test's result
        text = json.dumps({"raised": describe_error(error, work["file"])})
    return text


def describe_error(error: BaseException, file: str) -> str:
    """An error in one line, with the program's line that raised it."""
    try:
        text = error.msg if isinstance(error, SyntaxError) else error
        words = " ".join(f"{type(error).__name__}: {text}".split())[:300]
    except BaseException:  # noqa: BLE001 - its text comes from the program, too
        words = type(error).__name__
    line = error.lineno if isinstance(error, SyntaxError) else None
    trace = error.__traceback__
    while trace is not None and not isinstance(error, RecursionError):
        line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == file else line
        trace = trace.tb_next
    return words if line is None else f"{words} (line {line})"


def limit_cpu(cpu_s: float) -> None:
    """Limit this process's CPU time; if a program stops the timer, the system's limit ends it."""
    whole = int(cpu_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (whole, whole))
    signal.setitimer(signal.ITIMER_PROF, cpu_s)


def run_in_child(work: dict[str, Any], arguments: list[Any], out: int) -> dict[str, Any]:
    """The outcome of one test: timeout, signal, and output."""
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            limit_cpu(work["cpu_s"])
            silence = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(silence, descriptor)
            for descriptor in (silence, source, out):
                os.close(descriptor)
            with os.fdopen(sink, "wb") as stream:
                stream.write(call_program(work, arguments).encode("ascii"))
        finally:
            os._exit(0)
    os.close(sink)
    with os.fdopen(source, "rb") as stream:
        output = stream.read(2 * LONGEST)
    _, status = os.waitpid(child, 0)
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    late = number in (signal.SIGPROF, signal.SIGXCPU, signal.SIGKILL)
    return {"late": late, "signal": number, "output": output.decode("ascii", "replace")}


def main() -> None:
    """Read the work, run the tests, and report each outcome."""
    work = json.loads(sys.stdin.buffer.read().decode("utf-8"))
    out = os.dup(1)
    os.write(out, b"ready\n")
    for arguments in work["arguments"]:
        outcome = run_in_child(work, arguments, out)
        os.write(out, json.dumps(outcome).encode("ascii") + b"\n")
        if outcome["late"]:
            break


if __name__ == "__main__":
    main()
