"""The server process of `roll.rewards.math.pool`: loads math-verify and forks comparers.

The server runs no comparison without a time limit, so it always answers. A comparer serves one socket. The kernel kills
it by SIGPROF once a comparison has used up its CPU time, which does not depend on the load of the machine. Forks
inherit everything loaded and every parser table the server has built.
"""

from __future__ import annotations

import cmath
import contextlib
import dataclasses
import functools
import gc
import importlib
import json
import logging
import os
import re
import resource
import signal
import socket
import sys
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from roll.sandbox.forkserver_main import report_failure, serve

Compare = Callable[[str, str], bool]
"""Whether a gold answer and another one are equal."""

_MEMORY_BYTES = 2 * 2**30
_INTEGER = re.compile(r"\d{1,50}", re.ASCII)
_SUM = re.compile(r".[-+=<>]|\\[gl]eq?\b")
_TOLERANCE = 1e-4
"""Relative; math-verify itself rounds to six places."""
WARMUP_CASES = (
    r"\frac{1}{2}",
    r"-\dfrac{3\pi}{4}",
    r"2\sqrt{3} + 1",
    r"\frac{\sqrt{5} - 1}{2}",
    r"x^2 - 3xy + 2y",
    r"n(n-1)/2",
    r"\frac{n!}{k!(n-k)!}",
    r"\binom{n}{k}",
    r"e^{-2t} \cos(\omega t)",
    r"\ln 2 - \log_{10} x",
    r"\left(-\infty, \frac{1}{2}\right] \cup (1, 2)",
    r"(1, -2, 3)",
    r"\{1, 2, 3\}",
    r"x = 2, y = -1",
    r"f(x) = a^x + b",
    r"x \leq 5",
    r"1 < x < 2",
    r"x_1 + x_2^2",
    r"\arctan\left(\frac{x}{\sqrt{1-x^2}}\right)",
    r"\begin{pmatrix} 1 & 0 \\ 0 & 1 \end{pmatrix}",
    r"3 + 4i",
    r"|x - 1|",
    r"\sum_{k=1}^{n} k^2",
    r"\int_0^1 x^2 \, dx",
    r"2^{10} \cdot 3",
    r"\text{no solution}",
    "0.75",
)
"""Answers of many shapes: the parser builds its tables on demand, which is most of the cost of a first answer."""
_WARMUP_S = 1.0
"""CPU time; a longer warm-up case kills the server, since nothing else can interrupt a single long operation."""
_GRACE_S = 1.0
"""A comparer ends itself this long after its limit of wall time, in case the server has died."""


def main(load: Callable[[], Compare] | None = None, warmup_cases: Sequence[str] = WARMUP_CASES) -> None:
    """Load the comparison, then fork comparers; a message to the server is a warm-up case, `[gold, answer]`.

    While idle, the server compares warm-up cases, the newest first, whose parser tables later comparers inherit.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the owner
    control = socket.socket(fileno=int(sys.argv[-1]))
    try:
        compare = (load or math_verify)()
    except Exception as error:  # noqa: BLE001 - the owner raises it
        report_failure(control, error)
        return
    pending: list[Sequence[str]] = [(case, "1") for case in warmup_cases]

    def warm_up() -> bool:
        if pending:
            signal.setitimer(signal.ITIMER_PROF, _WARMUP_S)
            with contextlib.suppress(Exception):  # a case that fails is no reason to end
                compare(*pending.pop())
            signal.setitimer(signal.ITIMER_PROF, 0)
        return bool(pending)

    _, (descriptor,) = serve(control, on_notice=pending.append, idle=warm_up)
    try:
        _serve(compare, socket.socket(fileno=descriptor))
    finally:
        os._exit(1)


def _serve(compare: Compare, connection: socket.socket) -> None:
    """Comparisons, one at a time: a line `[gold, answer, cpu_s, wall_s]` of JSON in, `1` or `0` out."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    gc.set_threshold(100_000, 20, 100)  # parsing allocates many live objects
    for name in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(name, signal.SIG_DFL)  # the kernel kills even during a single long operation
    for line in connection.makefile("r", encoding="ascii"):  # closed by the exit, so that its status tells the cause
        gold, answer, cpu_s, wall_s = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        signal.setitimer(signal.ITIMER_REAL, wall_s + _GRACE_S)
        same = compare(gold, answer)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.sendall(b"1" if same else b"0")


def math_verify() -> Compare:
    """The comparison of the package math-verify, without its time limits, which use signals."""
    logging.disable(logging.CRITICAL)  # it warns about missing time limits
    package: Any = importlib.import_module("math_verify")
    _try_fast_prediction_first()
    with_units = package.LatexExtractionConfig()
    without_units = dataclasses.replace(
        with_units, normalization_config=dataclasses.replace(with_units.normalization_config, units=False)
    )
    strict = {"fallback_mode": "no_fallback", "extraction_mode": "first_match"}  # else it extracts any number
    sympy: Any = importlib.import_module("sympy")

    def parse(answer: str) -> list[Any]:
        if _INTEGER.fullmatch(answer):
            return [sympy.Integer(answer)]
        latex = without_units if _SUM.search(answer) else with_units  # the h of 1 + h is not hours
        parsed = package.parse(f"$ {answer} $", extraction_config=[latex], parsing_timeout=None, **strict)
        return list(map(_with_imaginary_unit, parsed))

    parse_cached = functools.lru_cache(maxsize=1024)(parse)  # siblings share the gold and often the answer

    def compare(gold: str, answer: str) -> bool:
        one, other = parse_cached(gold), parse_cached(answer)
        if "%" not in gold + answer and _far_apart(one, other):
            return False
        return bool(package.verify(one, other, timeout_seconds=None))

    compare(r"\frac{1}{2}", "0.5")  # triggers lazy imports
    return compare


def _with_imaginary_unit(expression: Any) -> Any:
    """The expression with `i` as the imaginary unit; the parser makes it a variable."""
    sympy: Any = sys.modules["sympy"]
    if not isinstance(expression, sympy.Expr):
        return expression
    units = {symbol: sympy.I for symbol in expression.free_symbols if symbol.name == "i"}
    return expression.xreplace(units) if units else expression


def _try_fast_prediction_first() -> None:
    """Make the LaTeX parser try ANTLR's SLL prediction, and fall back to full LL where that fails.

    SLL accepts less than LL, but parses what it accepts identically; nested parentheses parse about eight times as
    fast. The package has no option for it, so this process, which does nothing else, replaces the parser's entry rule.
    """
    modes: Any = importlib.import_module("antlr4.atn.PredictionMode").PredictionMode
    latex: Any = importlib.import_module("latex2sympy2_extended.latex2sympy2")
    parse_math = latex.PSParser.math

    def math(self: Any) -> Any:
        self._interp.predictionMode = modes.SLL
        try:
            return parse_math(self)
        except Exception:  # noqa: BLE001 - the parser's listener raises nothing more specific
            self.reset()
            self._interp.predictionMode = modes.LL
            return parse_math(self)

    latex.PSParser.math = math


def _far_apart(one: list[Any], other: list[Any]) -> bool:
    """Whether two expressions differ at a point by more than rounding, so that they cannot be equal.

    False for single symbols, which may be words, for relations and sets, and for expressions that are slow to evaluate.
    """
    if len(one) != 1 or len(other) != 1:
        return False
    left, right = _value(one[0]), _value(other[0])
    if left is None or right is None:
        return False
    return abs(left - right) > _TOLERANCE * max(1.0, abs(left), abs(right))


def _value(expression: Any) -> complex | None:
    """An expression at a fixed point; None if it has no value there, or is slow to evaluate."""
    sympy: Any = sys.modules["sympy"]
    slow = (sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit, sympy.Derivative)
    if not isinstance(expression, sympy.Expr) or expression.is_Symbol or expression.has(*slow):
        return None
    symbols = sorted(expression.free_symbols, key=str)
    point = {symbol: 1 + zlib.crc32(str(symbol).encode()) / 2**32 for symbol in symbols}
    try:
        value = complex(expression.evalf(15, subs=point))
    except (TypeError, ValueError, ArithmeticError, AttributeError):
        return None
    return value if cmath.isfinite(value) else None
