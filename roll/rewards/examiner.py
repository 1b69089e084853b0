"""Runs inside the sandbox, by the system's Python: puts tests to a reply that it does not share memory with.

`roll.rewards.code` explains the design; this file is sent there as text, after `roll.rewards.wire`. One process is the
examiner: it knows the tests and writes the verdicts. It forks another, the candidate, before it reads the tests. The
candidate runs the reply. The examiner asks it for operations (call this with these arguments); it answers with plain
data, or with handles of what is not.
"""

# pyright: basic
# Values of any type pass through here, so that strict checking would have a cast in every line.

from __future__ import annotations

import builtins
import importlib
import os
import sys
import types

from roll.rewards.wire import Foreign, Gone, Line, Unsupported, ask, listed, read, write  # left out in the sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

BINARY = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift"),
    *("lt", "le", "gt", "ge"),
)
"""Operators between handles alone. With plain data on one side, an object that claims to be greater than everything, or
to leave nothing when a number is taken from it, would pass tests that expect a number."""
QUESTIONS: dict[str, Callable[..., Any]] = {
    "getattr": getattr, "setattr": setattr, "iter": iter, "next": next, "repr": repr, "str": str, "hash": hash,
    "len": len, "bool": bool, "int": int, "float": float, "abs": abs, "round": round, "list": listed,
    "eq": lambda one, other: one == other, "isinstance": lambda kind, value: isinstance(value, kind),
    "getitem": lambda one, key: one[key], "neg": lambda one: -one,
}  # fmt: skip
"""What a test may ask of an object of the reply."""
SPECIAL = ("next", "str", "len", "bool", "int", "float", "abs", "round", "getitem", "neg")
"""Questions that are methods with underscores."""
METHODS = ("setitem", "delitem", "enter", "exit")
TEXTUAL = frozenset(name for name in dir(str) if name.startswith("is") or name.endswith("swith"))
"""What tests ask of texts; an object that answers such questions is no text."""


class Handle(Foreign):
    """An object of the reply, as the tests see it: every operation on it is a question to the candidate.

    It never equals plain data, whatever its class thinks of that, and contains what is found by going through it.
    """

    def __getattr__(self, name: str) -> Any:
        if name in TEXTUAL:
            raise AttributeError(name)
        return ask(self, "getattr", name)

    def __setattr__(self, name: str, value: Any) -> None:
        ask(self, "setattr", name, value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and bool(ask(self, "eq", other))

    def __hash__(self) -> int:
        return hash(ask(self, "hash"))

    def __iter__(self) -> Any:
        stream = ask(self, "iter")
        return stream if isinstance(stream, Handle) else iter(stream)

    def __repr__(self) -> str:
        return str(ask(self, "repr"))

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, Handle) and bool(ask(self, "isinstance", value))


def question(name: str) -> Callable[..., Any]:
    """A method that asks the candidate."""

    def method(self: Handle, *arguments: Any) -> Any:
        return ask(self, name, *arguments)

    return method


def operator_of(name: str) -> Callable[..., Any]:
    """A method that asks the candidate if the other operand is its as well."""

    def method(self: Handle, other: Any) -> Any:
        return ask(self, name, other) if isinstance(other, Handle) else NotImplemented

    return method


for _name in (*SPECIAL, *METHODS):
    setattr(Handle, f"__{_name}__", question(_name))
for _name in BINARY:
    setattr(Handle, f"__{_name}__", operator_of(_name))


# ---- the candidate ----


def operate(operation: str, target: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
    """Do to an object of the reply what the tests asked for."""
    if operation == "call":
        return target(*arguments, **keywords)
    if operation in QUESTIONS:
        return QUESTIONS[operation](target, *arguments)
    found = getattr(target, f"__{operation}__")(*arguments)
    if found is NotImplemented:
        raise TypeError(f"unsupported operand for {operation}")
    return found


def answer_tests(source: int, sink: int) -> None:
    """The candidate's life: run the reply, name what it defines, then serve."""
    line = Line(os.fdopen(source, "rb"), os.fdopen(sink, "wb"), operate, Foreign)
    _, reply = line.receive()
    sys.path += [f"{sys.prefix}/lib/python3/dist-packages", *(f"{place}/site-packages" for place in sys.path)]
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    exec(compile(reply, "solution.py", "exec"), module.__dict__)
    line.send("names", line.pack([[name, *described(value)] for name, value in list(vars(module).items())]))
    while True:
        _, *request = line.receive()
        line.answer(*request)


def described(value: Any) -> list[Any]:
    """What a name of the reply stands for: a module and its name, an error and its base, or a value."""
    if isinstance(value, types.ModuleType):
        return ["module", value.__name__]
    if isinstance(value, type) and issubclass(value, Exception):
        return ["error", next(base.__name__ for base in value.__mro__ if base.__module__ == "builtins")]
    return ["value", value]


# ---- the examiner ----


def examine(line: Line, work: dict[str, Any], tell: Callable[..., None]) -> None:
    """Put every case to the candidate and tell the verdicts, as they come."""
    module = types.ModuleType("__main__")
    solution = types.ModuleType("solution")
    sys.modules.update(__main__=module, solution=solution)
    line.send("load", work["code"])  # and nothing of the tests
    offered = line.unpack(line.receive()[1])
    bind(line, solution.__dict__, offered, work)
    module.__dict__.update({name: value for name, value in vars(solution).items() if not name.startswith("__")})
    names = module.__dict__
    ready = verdict(line, lambda: run(work["setup"], names))
    tell("setup", ready)
    if ready != "pass":
        return
    for index, case in enumerate(work["cases"]):
        tell(index, verdict(line, lambda case=case: put(case, names, work)))


def bind(line: Line, names: dict[str, Any], offered: Any, work: dict[str, Any]) -> None:
    """Give the tests what the reply defined: never a builtin, nor the standard library under its own name."""
    library = getattr(sys, "stdlib_module_names", ())
    tests = repr([work["setup"], work["cases"]])
    for name, kind, value in offered:
        wanted = name == work["entry"] or (name in tests and not hasattr(builtins, name))
        if not wanted or name.startswith("__"):
            continue
        if kind == "error":
            base = getattr(builtins, str(value), Exception)
            names[name] = line.errors[name] = type(name, (base,), {})
        elif kind == "value" and name not in library:
            names[name] = value
        elif kind == "module" and str(value).partition(".")[0] in library:
            names[name] = importlib.import_module(str(value))


def verdict(line: Line, case: Callable[[], Any]) -> str:
    """How a case went: `pass`, `fail`, or `task` and what is wrong with the tests themselves."""
    try:
        case()
    except Unsupported as error:
        return f"task {error}"
    except ModuleNotFoundError as error:
        ours = not hasattr(error, "foreign") and error.name != "solution"
        return f"task the tests import {error.name!r}, which is not there" if ours else "fail"
    except SystemExit as error:
        return "pass" if error.code in (None, 0) and not line.broken else "fail"
    except BaseException as error:  # noqa: BLE001 - whatever it is, the test did not go through
        return f"fail {type(error).__name__}"
    return "fail" if line.broken else "pass"


def run(source: str, names: dict[str, Any]) -> None:
    """Run text of the tests."""
    try:
        code = compile(source, "tests.py", "exec")
    except SyntaxError as error:
        raise Unsupported(f"the tests are not Python ({error})") from error
    exec(code, names)


def put(case: Any, names: dict[str, Any], work: dict[str, Any]) -> None:
    """Put one case; raises if the reply does not pass."""
    if isinstance(case, str):
        run(case, names)
        if work["script"]:
            follow_up(names, work["entry"])
        return
    found = names[work["entry"]](*case["args"], **case.get("kwargs", {}))
    if isinstance(found, Handle):
        found = ask(found, "list")
    if not same(found, case["expected"], work["tolerance"]):
        raise AssertionError


def follow_up(names: dict[str, Any], entry: str) -> None:
    """Run what a script defines and leaves to a runner: `check(candidate)`, functions `test_*`, and test cases."""
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


def same(found: Any, expected: Any, tolerance: float) -> bool:
    """Equal as JSON has it: tuples are lists, floats are near; truth values are not numbers."""
    if isinstance(found, bool) or isinstance(expected, bool):
        return found is expected
    if isinstance(found, (int, float)) and isinstance(expected, (int, float)):
        return found == expected or (float in (type(found), type(expected)) and abs(found - expected) <= tolerance)
    if isinstance(expected, list) and isinstance(found, (list, tuple)):
        return len(found) == len(expected) and all_same(list(found), list(expected), tolerance)
    if isinstance(expected, dict) and isinstance(found, dict):
        texts = {str(key): value for key, value in found.items()}
        return texts.keys() == expected.keys() and all_same(
            list(texts.values()), [expected[key] for key in texts], tolerance
        )
    return type(found) is type(expected) and bool(found == expected)


def all_same(found: list[Any], expected: list[Any], tolerance: float) -> bool:
    """The same, item by item."""
    return all(same(found[index], expected[index], tolerance) for index in range(len(found)))


def call_back(operation: str, target: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
    """All that a reply may do to objects of the tests: call the functions that it was given."""
    if operation != "call" or not isinstance(target, (types.FunctionType, types.BuiltinFunctionType)):
        raise TypeError(operation)
    return target(*arguments, **keywords)


def handed_to_candidate(value: Any) -> Any:
    """Functions of the tests cross as handles and iterators as lists; objects of other classes do not cross."""
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
        return value
    if hasattr(value, "__next__"):
        return listed(value)
    raise Unsupported(f"a test hands an object of type {type(value).__name__!r} to the reply, which cannot be")


def close_to_others() -> None:
    """Make this process's memory and descriptors unreadable to every other of the same user."""
    import ctypes  # here, since only one of the two processes needs it

    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(4, 0, 0, 0, 0) != 0 or library.prctl(3, 0, 0, 0, 0) != 0:  # sets and gets "dumpable"
        raise OSError(ctypes.get_errno(), "prctl")


def fork_candidate() -> tuple[int, int]:
    """Start the candidate, who gets two pipes and nothing else of ours; our ends of them, to read and to write."""
    down, up = os.pipe(), os.pipe()
    if os.fork() == 0:
        silence = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(silence, descriptor)
        for descriptor in (silence, down[1], up[0]):
            os.close(descriptor)
        try:
            answer_tests(down[0], up[1])
        finally:
            os._exit(0)
    os.close(down[0])
    os.close(up[1])
    return up[0], down[1]


def refuse(*found: Any) -> Any:
    """There are no handles in the work that is given to the examiner."""
    raise TypeError(found)


def main() -> None:
    """Read the work, put the tests, tell the verdicts."""
    close_to_others()
    source, sink = fork_candidate()
    line = Line(os.fdopen(source, "rb"), os.fdopen(sink, "wb"), call_back, Handle)
    line.handed = handed_to_candidate
    work: dict[str, Any] = read(sys.stdin.buffer.read().decode("utf-8", "surrogatepass"), refuse)
    out = os.dup(1)
    os.dup2(2, 1)  # what the tests print is not a verdict

    def tell(*words: object) -> None:
        text = " ".join([work["nonce"], *map(str, words)]).replace("\n", " ")
        os.write(out, text.encode("utf-8", "replace") + b"\n")

    tell("ready")
    try:
        examine(line, work, tell)
    except Gone:
        tell("gone")
    os._exit(0)


def work_as_text(work: dict[str, Any]) -> str:
    """What `main` reads."""
    return write(work, refuse)


if __name__ == "__main__":
    main()
