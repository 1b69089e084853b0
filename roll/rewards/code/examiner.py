"""Runs in the sandbox, by the system's Python: applies tests to a response in another process.

`roll.rewards.code.reward` explains the design; this file is sent to the sandbox as text, after
`roll.rewards.code.protocol`. The examiner process has the tests and writes the verdicts. Before it reads the tests it
forks the candidate, which runs the response. The examiner requests operations, such as a call with arguments; the
candidate answers with plain data, or with handles for other objects.
"""

# pyright: basic
# Values of any type pass through here; strict checking would need a cast on every connection.

from __future__ import annotations

import builtins
import importlib
import os
import sys
import types

from roll.rewards.code.protocol import (  # removed in the sandbox
    Connection,
    Disconnected,
    RemoteObject,
    Unsupported,
    collect_items,
    read,
    refuse,
    request,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

BINARY = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift"),
    *("lt", "le", "gt", "ge"),
)
"""Operators between two handles only. With plain data on one side, an object that claims to exceed everything, or to
give 0 when subtracted, would pass tests that expect a number."""
OPERATIONS: dict[str, Callable[..., Any]] = {
    "getattr": getattr, "setattr": setattr, "iter": iter, "next": next, "repr": repr, "str": str, "hash": hash,
    "len": len, "bool": bool, "int": int, "float": float, "abs": abs, "round": round, "list": collect_items,
    "eq": lambda one, other: one == other, "isinstance": lambda kind, value: isinstance(value, kind),
    "getitem": lambda one, key: one[key], "neg": lambda one: -one,
}  # fmt: skip
"""Operations that a test may request on an object of the response."""
SPECIAL = ("next", "str", "len", "bool", "int", "float", "abs", "round", "getitem", "neg")
"""Operations that are double-underscore methods."""
METHODS = ("setitem", "delitem", "enter", "exit")
STRING_METHODS = frozenset(name for name in dir(str) if name.startswith("is") or name.endswith("swith"))
"""Predicates of `str`; an object of the response must not imitate a string."""


class Handle(RemoteObject):
    """An object of the response, as the tests see it: every operation on it is a request to the candidate.

    It never equals plain data, regardless of its `__eq__`; `in` iterates over it.
    """

    def __getattr__(self, name: str) -> Any:
        if name in STRING_METHODS:
            raise AttributeError(name)
        return request(self, "getattr", name)

    def __setattr__(self, name: str, value: Any) -> None:
        request(self, "setattr", name, value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and bool(request(self, "eq", other))

    def __hash__(self) -> int:
        return hash(request(self, "hash"))

    def __iter__(self) -> Any:
        stream = request(self, "iter")
        return stream if isinstance(stream, Handle) else iter(stream)

    def __repr__(self) -> str:
        return str(request(self, "repr"))

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, Handle) and bool(request(self, "isinstance", value))


def request_method(name: str) -> Callable[..., Any]:
    """A method that sends a request to the candidate; an operator of `BINARY` does so only with another handle."""

    def method(self: Handle, *arguments: Any) -> Any:
        if name in BINARY and not all(isinstance(argument, Handle) for argument in arguments):
            return NotImplemented
        return request(self, name, *arguments)

    return method


for _name in (*SPECIAL, *METHODS, *BINARY):
    setattr(Handle, f"__{_name}__", request_method(_name))


# ---- the candidate ----


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
    _, response = connection.receive()
    sys.path += [f"{sys.prefix}/lib/python3/dist-packages", *(f"{folder}/site-packages" for folder in sys.path)]
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    exec(compile(response, "solution.py", "exec"), module.__dict__)
    connection.send("names", connection.pack([[name, *describe(value)] for name, value in list(vars(module).items())]))
    while True:
        _, *request = connection.receive()
        connection.answer(*request)


def describe(value: Any) -> list[Any]:
    """The kind of a name that the response defines: a module, an exception class with its base, or a value."""
    if isinstance(value, types.ModuleType):
        return ["module", value.__name__]
    if isinstance(value, type) and issubclass(value, Exception):
        return ["error", next(base.__name__ for base in value.__mro__ if base.__module__ == "builtins")]
    return ["value", value]


# ---- the examiner ----


def examine(connection: Connection, work: dict[str, Any], report: Callable[..., None]) -> None:
    """Run every case against the candidate and report each verdict."""
    module = types.ModuleType("__main__")
    solution = types.ModuleType("solution")
    sys.modules.update(__main__=module, solution=solution)
    connection.send("load", work["code"])  # but not the tests
    definitions = connection.unpack(connection.receive()[1])
    bind(connection, solution.__dict__, definitions, work)
    module.__dict__.update({name: value for name, value in vars(solution).items() if not name.startswith("__")})
    names = module.__dict__
    ready = verdict(connection, lambda: run(work["setup"], names))
    report("setup", ready)
    if ready != "pass":
        return
    for index, case in enumerate(work["cases"]):
        report(index, verdict(connection, lambda case=case: run_case(case, names, work)))


def bind(connection: Connection, names: dict[str, Any], definitions: Any, work: dict[str, Any]) -> None:
    """Bind the response's definitions for the tests: never a builtin, nor a standard-library name."""
    library = getattr(sys, "stdlib_module_names", ())
    tests = repr([work["setup"], work["cases"]])
    for name, kind, value in definitions:
        used = name == work["entry"] or (name in tests and not hasattr(builtins, name))
        if not used or name.startswith("__"):
            continue
        if kind == "error":
            base = getattr(builtins, str(value), Exception)
            names[name] = connection.errors[name] = type(name, (base,), {})
        elif kind == "value" and name not in library:
            names[name] = value
        elif kind == "module" and str(value).partition(".")[0] in library:
            names[name] = importlib.import_module(str(value))


def verdict(connection: Connection, case: Callable[[], Any]) -> str:
    """The result of a case: `pass`, `fail`, or `task` with the problem of the tests themselves."""
    try:
        case()
    except Unsupported as error:
        return f"task {error}"
    except ModuleNotFoundError as error:
        ours = not hasattr(error, "foreign") and error.name != "solution"
        return f"task the tests import {error.name!r}, which is not there" if ours else "fail"
    except SystemExit as error:
        return "pass" if error.code in (None, 0) and not connection.broken else "fail"
    except BaseException as error:  # noqa: BLE001 - any error fails the test
        return f"fail {type(error).__name__}"
    return "fail" if connection.broken else "pass"


def run(source: str, names: dict[str, Any]) -> None:
    """Execute source text of the tests."""
    try:
        code = compile(source, "tests.py", "exec")
    except SyntaxError as error:
        raise Unsupported(f"the tests are not Python ({error})") from error
    exec(code, names)


def run_case(case: Any, names: dict[str, Any], work: dict[str, Any]) -> None:
    """Run one case; raises if the response fails it."""
    if isinstance(case, str):
        run(case, names)
        if work["script"]:
            run_definitions(names, work["entry"])
        return
    result = names[work["entry"]](*case["args"], **case.get("kwargs", {}))
    if isinstance(result, Handle):
        result = request(result, "list")
    if not same(result, case["expected"], work["tolerance"]):
        raise AssertionError


def run_definitions(names: dict[str, Any], entry: str) -> None:
    """Run the tests that a script only defines: `check(candidate)`, functions `test_*`, and `unittest` cases."""
    functions = {name: value for name, value in names.items() if isinstance(value, types.FunctionType)}
    if "check" in functions and entry:
        functions["check"](names[entry])
    for name, function in functions.items():
        if name.startswith("test"):
            function()
    if "unittest" in sys.modules:
        unittest: Any = sys.modules["unittest"]
        suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])
        if not unittest.TextTestRunner(stream=sys.stderr).run(suite).wasSuccessful():
            raise AssertionError


def same(result: Any, expected: Any, tolerance: float) -> bool:
    """Equality of JSON values: tuples are lists, floats may differ by `tolerance`, booleans are not numbers."""
    if isinstance(result, bool) or isinstance(expected, bool):
        return result is expected
    if isinstance(result, (int, float)) and isinstance(expected, (int, float)):
        return result == expected or (float in (type(result), type(expected)) and abs(result - expected) <= tolerance)
    if isinstance(expected, list) and isinstance(result, (list, tuple)):
        pairs = zip(result, expected)  # noqa: B905 - Python 3.8
        return len(result) == len(expected) and all(same(one, other, tolerance) for one, other in pairs)
    if isinstance(expected, dict) and isinstance(result, dict):
        texts = {str(key): value for key, value in result.items()}
        return texts.keys() == expected.keys() and all(same(texts[key], expected[key], tolerance) for key in texts)
    return type(result) is type(expected) and bool(result == expected)


def call_back(operation: str, target: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
    """The only operation a response may request on the tests' objects: calling functions passed to it."""
    if operation != "call" or not isinstance(target, (types.FunctionType, types.BuiltinFunctionType)):
        raise TypeError(operation)
    return target(*arguments, **keywords)


def check_passable(value: Any) -> Any:
    """Functions of the tests are passed as handles, iterators as lists; other objects cannot be passed."""
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
        return value
    if hasattr(value, "__next__"):
        return collect_items(value)
    raise Unsupported(f"a test hands an object of type {type(value).__name__!r} to the response, which cannot be")


def hide_from_others() -> None:
    """Make this process's memory and descriptors unreadable to other processes of the user."""
    import ctypes  # only one of the two processes needs it

    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(4, 0, 0, 0, 0) != 0 or library.prctl(3, 0, 0, 0, 0) != 0:  # set and get "dumpable"
        raise OSError(ctypes.get_errno(), "prctl")


def fork_candidate() -> tuple[int, int]:
    """Fork the candidate, which gets two pipes and no other descriptor; returns our read and write ends."""
    down, up = os.pipe(), os.pipe()
    if os.fork() == 0:
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
    return up[0], down[1]


def main() -> None:
    """Read the work, run the tests, report the verdicts."""
    hide_from_others()
    source, sink = fork_candidate()
    connection = Connection(os.fdopen(source, "rb"), os.fdopen(sink, "wb"), call_back, Handle)
    connection.before_handle = check_passable
    work: dict[str, Any] = read(sys.stdin.buffer.read().decode("utf-8", "surrogatepass"), refuse)
    out = os.dup(1)
    os.dup2(2, 1)  # output of the tests is not a verdict

    def report(*words: object) -> None:
        text = " ".join([work["nonce"], *map(str, words)]).replace("\n", " ")
        os.write(out, text.encode("utf-8", "replace") + b"\n")

    report("ready")
    try:
        examine(connection, work, report)
    except Disconnected:
        report("gone")
    os._exit(0)


if __name__ == "__main__":
    main()
