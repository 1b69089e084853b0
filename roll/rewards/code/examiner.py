"""Runs in the sandbox, by the system's Python: applies tests to a response in another process.

`roll.rewards.code.reward` explains the design; this file is sent to the sandbox as text, after
`roll.rewards.code.protocol` and `roll.rewards.code.examination`. The examiner process has the tests and writes the
verdicts. Before it reads the tests it forks the candidate, which runs the response. The examiner requests operations,
such as a call with arguments; the candidate answers with plain data, or with handles for other objects.
"""

# pyright: basic
# Values of any type pass through here; strict checking would need a cast on every connection.

from __future__ import annotations

import _signal  # pyright: ignore[reportMissingImports]
import _thread
import importlib
import os
import resource
import sys
import time
import types

from roll.rewards.code.examination import Examination, Handle  # removed in the sandbox
from roll.rewards.code.protocol import (  # removed in the sandbox
    Connection,
    Disconnected,
    LibraryFunction,
    RemoteObject,
    Unsupported,
    base_names,
    collect_items,
    read,
    refuse,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

OPERATIONS: dict[str, Callable[..., Any]] = {
    "getattr": getattr, "setattr": setattr, "iter": iter, "next": next, "repr": repr, "str": str, "hash": hash,
    "len": len, "bool": bool, "int": int, "float": float, "abs": abs, "round": round, "list": collect_items,
    "eq": lambda one, other: one == other, "isinstance": lambda kind, value: isinstance(value, kind),
    "getitem": lambda one, key: one[key], "neg": lambda one: -one,
    "exit": lambda one, kind, text: one.__exit__(kind, kind and kind(text), None),
}  # fmt: skip
"""Operations that a test may request on an object of the response."""
POLL_S = 0.25
"""Seconds between two looks at the time that the sandbox spent asleep."""


def operate(operation: str, target: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
    """Apply a requested operation to an object of the response."""
    if operation == "call":
        return target(*arguments, **keywords)
    if operation in OPERATIONS:
        return OPERATIONS[operation](target, *arguments)
    result = getattr(target, f"__{operation}__")(*arguments)
    if result is NotImplemented:
        raise TypeError(f"unsupported operand for {operation}")
    return result


def run_candidate(source: int, sink: int) -> None:
    """The candidate: run the response, send the names it defines, then serve requests."""
    connection = Connection(os.fdopen(source, "rb"), os.fdopen(sink, "wb"), operate, RemoteObject)
    connection.resolve = find_function
    _, response = connection.receive()
    sys.path += [f"{sys.prefix}/lib/python3/dist-packages", *(f"{folder}/site-packages" for folder in sys.path)]
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    exec(compile(response, "solution.py", "exec"), module.__dict__)
    connection.send("names", connection.pack([[name, *describe(value)] for name, value in list(vars(module).items())]))
    while True:
        _, *request = connection.receive()
        connection.answer(*request)


def find_function(path: str) -> Any:
    """The function of the standard library with this path, in this process."""
    module, *names = path.split(":")
    value: Any = importlib.import_module(module)
    for name in names:
        value = getattr(value, name)
    return value


def describe(value: Any) -> list[Any]:
    """The kind of a name that the response defines: a module, an exception class with its base, or a value."""
    if isinstance(value, types.ModuleType):
        return ["module", None]
    if isinstance(value, type) and issubclass(value, Exception):
        return ["error", base_names(value)]
    return ["value", value]


def call_back(operation: str, target: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
    """The only operation a response may request on the tests' objects: calling functions passed to it."""
    if operation != "call" or not isinstance(target, (types.FunctionType, types.BuiltinFunctionType)):
        raise TypeError(operation)
    return target(*arguments, **keywords)


def check_passable(value: Any) -> Any:
    """How an object of the tests is passed: their own functions as handles, those of the library by name.

    Methods of plain data, such as `results.append`, are handles too. Iterators and views become lists. Other
    objects cannot be passed.
    """
    if isinstance(value, types.FunctionType) and value.__globals__ is vars(sys.modules["__main__"]):
        return value
    if isinstance(value, types.BuiltinFunctionType) and type(value.__self__) in PLAIN:
        return value
    if isinstance(value, types.MethodDescriptorType) and value.__objclass__.__module__ == "builtins":
        return LibraryFunction(f"builtins:{value.__objclass__.__name__}:{value.__name__}")
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
        module = str(value.__module__)
        if getattr(sys.modules.get(module), value.__name__, None) is value:
            return LibraryFunction(f"{module}:{value.__name__}")
    if hasattr(value, "__next__") or isinstance(value, VIEWS):
        return collect_items(value)
    raise Unsupported(f"a test hands an object of type {type(value).__name__!r} to the response, which cannot be")


VIEWS = (type({}.keys()), type({}.values()), type({}.items()))
PLAIN = (list, tuple, dict, set, frozenset, str, bytes, bytearray, int, float)


def confine_imports() -> None:
    """Import from the interpreter's directories only, also if `sys.path` changes: a response can write files."""
    hooks, folders = list(sys.path_hooks), tuple(sys.path)

    def find(path: str) -> Any:
        if not any(path == folder or path.startswith(f"{folder}/") for folder in folders):
            raise ImportError(path)
        for hook in hooks:
            try:
                return hook(path)
            except ImportError:
                continue
        raise ImportError(path)

    sys.path_hooks[:] = [find]


def record_use(candidate: int, used_ns: dict[str, int]) -> None:
    """Update the time that each thread of the sandbox used or waited for a processor; threads that ended stay."""
    pids = ["self", str(candidate)]
    if os.getpid() == 1:  # all processes are ours
        pids = [name for name in os.listdir("/proc") if name.isdigit()]
    for pid in pids:
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
                    used_ns[thread] = sum(map(int, file.read().split()[:2]))
        except OSError:  # it has ended
            continue


def watch(candidate: int, limit_s: float, report: Callable[..., None]) -> None:
    """End this process when the sandbox has slept for longer than the limit: neither used nor awaited a processor."""
    began, used_ns = time.monotonic(), {}
    while time.monotonic() - began - sum(used_ns.values()) / 1e9 < limit_s:
        time.sleep(POLL_S)
        try:
            record_use(candidate, used_ns)
        except OSError:  # the response has limited our descriptors
            continue
    report("gone")
    os._exit(0)


def hide_from_others() -> None:
    """Make this process's memory and descriptors unreadable to other processes of the user."""
    import ctypes  # only one of the two processes needs it

    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(4, 0, 0, 0, 0) != 0 or library.prctl(3, 0, 0, 0, 0) != 0:  # set and get "dumpable"
        raise OSError(ctypes.get_errno(), "prctl")


def fork_candidate() -> tuple[int, int, int]:
    """Fork the candidate, which gets two pipes and no other descriptor; its process id, our read and write ends."""
    down, up = os.pipe(), os.pipe()
    candidate = os.fork()
    if candidate == 0:
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        for descriptor in (null, down[1], up[0]):
            os.close(descriptor)
        try:
            run_candidate(down[0], up[1])
        finally:
            os._exit(0)
    os.close(down[0])
    os.close(up[1])
    return candidate, up[0], down[1]


def main() -> None:
    """Read the work, run the tests, report the verdicts. The argument is the limit of CPU time of each process."""
    limit_s = int(sys.argv.pop())
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
    hide_from_others()
    candidate, source, sink = fork_candidate()
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)  # the only signal with a handler, so the only one that would arrive
    confine_imports()
    connection = Connection(os.fdopen(source, "rb"), os.fdopen(sink, "wb"), call_back, Handle)
    connection.before_handle = check_passable
    work: dict[str, Any] = read(sys.stdin.buffer.read().decode("utf-8", "surrogatepass"), refuse)
    out = os.dup(1)
    os.dup2(2, 1)  # output of the tests is not a verdict

    def report(*words: object) -> None:
        text = " ".join([work["nonce"], *map(str, words)]).replace("\n", " ")
        os.write(out, text.encode("utf-8", "replace") + b"\n")

    report("ready")
    if os.path.exists("/proc/self/schedstat"):
        _thread.start_new_thread(watch, (candidate, limit_s, report))
    try:
        Examination(connection, work).run(report)
    except Disconnected:
        report("gone")
    os._exit(0)


if __name__ == "__main__":
    main()
