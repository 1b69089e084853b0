"""Runs in the sandbox: the tests of one response, and the objects through which they see it.

This file is sent to the sandbox as text, between `roll.rewards.code.protocol` and `roll.rewards.code.examiner`.
Nothing that a response sends is executed or imported here: it chooses neither modules nor functions, and its objects
are handles.
"""

# pyright: basic
# Values of any type pass through here; strict checking would need a cast on every connection.

from __future__ import annotations

import _ast
import builtins
import importlib
import sys
import types

from roll.rewards.code.protocol import (  # removed in the sandbox
    Connection,
    RemoteObject,
    Unsupported,
    request,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ONLY_AST = 0x400
LITERALS = (
    *(_ast.Call, _ast.Name, _ast.Constant, _ast.Tuple, _ast.List, _ast.Set, _ast.Dict, _ast.keyword, _ast.Compare),
    *(_ast.UnaryOp, _ast.BinOp, _ast.unaryop, _ast.operator, _ast.cmpop, _ast.expr_context),
)
"""Nodes of expressions without attributes, subscripts, functions and names of other objects."""
BINARY = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift"),
    *("lt", "le", "gt", "ge"),
)
"""Operators between two handles only. With plain data on one side, an object that claims to exceed everything, or to
give 0 when subtracted, would pass tests that expect a number."""
SPECIAL = ("next", "str", "len", "bool", "int", "float", "abs", "round", "getitem", "neg")
"""Operations that are double-underscore methods."""
METHODS = ("setitem", "delitem", "enter")
PREDICATES = frozenset(
    name
    for kind in (str, set, float)
    for name in dir(kind)
    if name.startswith("is") or name.endswith(("swith", "difference"))
)
"""Predicates of plain data; an object of the response must not imitate a string or a set."""
ATTRIBUTES = ("__name__", "__qualname__", "__deepcopy__")
"""Attributes with double underscores that are read from the response. The standard library runs others as code, such as
`__annotations__`."""


class Handle(RemoteObject):
    """An object of the response, as the tests see it: every operation on it is a request to the candidate.

    It never equals plain data, regardless of its `__eq__`; `in` iterates over it.
    """

    def __getattr__(self, name: str) -> Any:
        if name in PREDICATES or (name.startswith("__") and name not in ATTRIBUTES):
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

    def __exit__(self, kind: Any, value: Any, trace: Any) -> bool:
        """Leave a `with` block; the response may suppress an error, but no failed assertion of the tests."""
        passed = isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, AssertionError)
        bases = [one for one in kind.__mro__ if one.__module__ == "builtins"] if passed else [None]
        return bool(request(self, "exit", bases[0], str(value) if passed else "")) and passed

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


class Examination:
    """The tests of one response: runs them against the candidate and counts the checks that ran."""

    def __init__(self, connection: Connection, work: dict[str, Any]) -> None:
        self.connection, self.work = connection, work
        self.names: dict[str, Any] = {}
        """Global names of the tests."""
        self.num_asserts = self.num_values = self.num_handles = 0
        self.awaits_assert = False
        """Whether the current case has an assertion that must run."""
        self.refuted = False
        """Whether an assertion of the tests failed in a function that the response called."""
        self.call_back, connection.serve = connection.serve, self.serve
        texts = [text for text in (work["setup"], *work["cases"]) if isinstance(text, str)]
        connection.may_stop = any("StopIteration" in text for text in texts)

    def run(self, report: Callable[..., None]) -> None:
        """Run every case and report each verdict, with the number of checks that ran."""
        module, solution = types.ModuleType("__main__"), types.ModuleType("solution")
        sys.modules.update(__main__=module, solution=solution)
        self.names = module.__dict__
        self.connection.send("load", self.work["code"])  # but not the tests
        self.bind(solution.__dict__, self.connection.unpack(self.connection.receive()[1]))
        self.names.update({name: value for name, value in vars(solution).items() if not name.startswith("__")})
        self.names.update(__builtins__=self.guarded_builtins(), __checked__=self.count_assert)
        ready = self.verdict(lambda: self.execute(self.work["setup"]), prepares=True)
        report("setup", ready)
        if not ready.startswith("pass"):
            return
        for index, case in enumerate(self.work["cases"]):
            report(index, self.verdict(lambda case=case: self.run_case(case), prepares=self.work["prepares"][index]))

    def bind(self, names: dict[str, Any], definitions: Any) -> None:
        """Bind the names that the tests take from the response, and the modules that the tests do not import."""
        for name in self.work["modules"]:
            isclose = name == "isclose"
            names[name] = importlib.import_module("math").isclose if isclose else importlib.import_module(name)
        for name, kind, value in definitions:
            if name not in self.work["names"]:
                continue
            if kind == "error" or (kind == "value" and catches_assertions(value)):
                errors = self.connection.errors
                known: list[Any] = [errors.get(one) or getattr(builtins, one, None) for one in str(value).split(",")]
                bases = [base for base in known if isinstance(base, type) and issubclass(base, Exception)]
                names[name] = errors[name] = type(name, (*bases[:1],) or (Exception,), {})
                self.num_handles += 1
            elif kind == "value":
                names[name] = value
                self.num_handles += isinstance(value, Handle)
                self.num_values += not isinstance(value, Handle)

    def count_assert(self) -> None:
        self.num_asserts += 1

    def serve(self, *operation: Any) -> Any:
        """Serve a request of the response; an assertion that fails in it counts, also if the response catches it."""
        before = self.num_asserts
        try:
            return self.call_back(*operation)
        except AssertionError as error:
            self.refuted |= self.num_asserts > before and not hasattr(error, "foreign")
            raise

    def verdict(self, case: Callable[[], Any], *, prepares: bool) -> str:
        """The result of a case: `pass` or `fail` with the number of checks, or `task` with a fault of the tests."""
        self.awaits_assert = self.refuted = False
        num_asserts, before = self.num_asserts, self.num_asserts + self.connection.num_requests
        failure = self.failure(case)
        num_checks = self.num_asserts + self.connection.num_requests - before
        if failure.startswith("task"):
            return failure
        if not failure and not num_checks and not prepares:  # no pass; whose fault depends on what the response defines
            missing = self.num_handles + self.num_values == 0
            return "fail 0" if missing or self.connection.broken else "task the tests run nothing"
        if self.refuted or (self.awaits_assert and not prepares and self.num_asserts == num_asserts):
            failure = "fail"
        return f"{failure or 'pass'} {num_checks}"

    def failure(self, case: Callable[[], Any]) -> str:
        """Why a case does not pass; empty if it does."""
        try:
            case()
        except Unsupported as error:
            return f"task {error}"
        except ModuleNotFoundError as error:
            ours = not hasattr(error, "foreign") and error.name != "solution"
            return f"task the tests import {error.name!r}, which is not there" if ours else "fail"
        except SystemExit as error:
            return "" if error.code in (None, 0) and not self.connection.broken else "fail"
        except BaseException:  # noqa: BLE001 - any error fails the test
            return "fail"
        return "fail" if self.connection.broken else ""

    def execute(self, source: str) -> None:
        """Execute source text of the tests, counting its assertions."""
        try:
            tree: Any = compile(source, "<tests>", "exec", ONLY_AST)
            self.awaits_assert |= mark_asserts(tree.body)
            code = compile(tree, "<tests>", "exec")
        except SyntaxError as error:
            raise Unsupported(f"the tests are not Python ({error})") from error
        exec(code, self.names)

    def run_case(self, case: Any) -> None:
        """Run one case; raises if the response fails it."""
        if isinstance(case, str):
            self.execute(case)
            if self.work["script"]:
                self.run_definitions()
            elif "unittest" in case:
                self.run_unittests()
            return
        result = self.entry()(*case["args"], **case.get("kwargs", {}))
        if isinstance(result, Handle):
            result = request(result, "list")
        if not same(result, case["expected"], self.work["tolerance"]):
            raise AssertionError

    def entry(self) -> Any:
        """The entry point: a name, or an expression of the task such as `Solution().f`."""
        return eval(self.work["entry"], self.names)

    def run_definitions(self) -> None:
        """Run the tests that a script only defines: `check(candidate)`, functions `test_*`, and `unittest` cases."""
        entry = self.work["entry"]
        functions = {name: value for name, value in self.names.items() if isinstance(value, types.FunctionType)}
        if "check" in functions and entry:
            functions["check"](self.entry())
        for name, function in functions.items():
            if name.startswith("test"):
                function()
        self.run_unittests()

    def run_unittests(self) -> None:
        """Run the `unittest` cases that the tests define. Tests that are all skipped are not passed."""
        if "unittest" not in sys.modules:
            return
        unittest: Any = sys.modules["unittest"]
        suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])
        result = unittest.TextTestRunner(stream=sys.stderr).run(suite)
        num_ran = suite.countTestCases() - len(result.skipped)
        if not result.wasSuccessful() or (result.skipped and num_ran <= 0):
            raise AssertionError
        if num_ran > 0:
            self.awaits_assert = False  # they check by their own methods
        if self.num_values:  # values are compared without a request
            self.num_asserts += max(num_ran, 0)

    def guarded_builtins(self) -> dict[str, Any]:
        """Builtins for the tests, whose `eval`, `exec` and `compile` refuse text that may come from the response."""

        def guard(function: Callable[..., Any]) -> Callable[..., Any]:
            def guarded(source: Any, *arguments: Any, **keywords: Any) -> Any:
                if not isinstance(source, types.CodeType) and not self.is_own(source):
                    if any(text and text in str(source) for text in self.connection.texts):
                        raise ValueError("text of the response is not executed")
                    raise Unsupported(f"a test calls {function.__name__!r} with text that is not part of the tests")
                if function is not compile and not arguments and not keywords:
                    frame = sys._getframe(1)
                    arguments = (frame.f_globals, frame.f_locals)
                return function(source, *arguments, **keywords)

            return guarded

        return {**vars(builtins), "eval": guard(eval), "exec": guard(exec), "compile": guard(compile)}

    def is_own(self, source: Any) -> bool:
        """Whether text is part of the tests, or only applies functions of the response to literals."""
        if type(source) is not str:
            return False
        if any(source in text for text in (self.work["setup"], *self.work["cases"]) if isinstance(text, str)):
            return True
        try:
            tree: Any = compile(source, "<tests>", "eval", ONLY_AST)
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            return False
        pending = [tree.body]
        while pending:
            node: Any = pending.pop()
            if not isinstance(node, LITERALS) or (isinstance(node, _ast.Name) and node.id not in self.work["names"]):
                return False
            for field in node._fields:
                value = getattr(node, field)
                pending += [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, _ast.AST)]
        return True


def catches_assertions(value: Any) -> bool:
    """Whether `except value` would catch a failed assertion of the tests."""
    if isinstance(value, tuple):
        return any(map(catches_assertions, value))
    return isinstance(value, type) and issubclass(AssertionError, value) and value is not object


def mark_asserts(body: list[Any]) -> bool:
    """Insert a call of `__checked__` before every assertion, except of a constant; whether one must run.

    One in the body of a `try` may be skipped by an error that the test expects.
    """
    awaited = False
    for index, node in reversed(list(enumerate(body))):
        blocks = [getattr(node, field, None) for field in ("body", "orelse", "finalbody")]
        blocks += [one.body for field in ("handlers", "cases") for one in getattr(node, field, ())]
        for number, block in enumerate(blocks):
            if isinstance(block, list):
                awaited |= mark_asserts(block) and not (number == 0 and getattr(node, "handlers", ()))
        if isinstance(node, _ast.Assert) and not isinstance(node.test, _ast.Constant):
            place = {name: getattr(node, name) for name in node._attributes}
            call = _ast.Call(_ast.Name("__checked__", _ast.Load(), **place), [], [], **place)
            body.insert(index, _ast.Expr(call, **place))
            awaited = True
    return awaited


def same(result: Any, expected: Any, tolerance: float) -> bool:
    """Equality of JSON values: tuples are lists, floats may differ by `tolerance`, booleans are not numbers.

    The tolerance of a small number is half of it, so that 0 does not equal it.
    """
    if isinstance(result, Handle) and isinstance(expected, list):
        return same(request(result, "list"), expected, tolerance)
    if isinstance(result, bool) or isinstance(expected, bool):
        return result is expected
    if isinstance(result, (int, float)) and isinstance(expected, (int, float)):
        allowed = min(tolerance, abs(expected) / 2) if expected else tolerance
        close = float in (type(result), type(expected)) and abs(result - expected) <= allowed
        return result == expected or close or (result != result and expected != expected)
    if isinstance(expected, list) and (isinstance(result, (list, tuple, range)) or type(result).__name__ == "deque"):
        items: Any = result
        pairs = zip(items, expected)  # noqa: B905 - Python 3.8
        return len(items) == len(expected) and all(same(one, other, tolerance) for one, other in pairs)
    if isinstance(expected, dict) and isinstance(result, dict):
        texts = {str(key): value for key, value in result.items()}
        return texts.keys() == expected.keys() and all(same(texts[key], expected[key], tolerance) for key in texts)
    return type(result) is type(expected) and bool(result == expected)
