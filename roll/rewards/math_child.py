"""The far side of `roll.rewards.math_process`: one process that has loaded math-verify, and comparers forked off it.

The first process looks at no answer that may take long, so it always answers. A comparer does nothing else, and is
killed when it takes too long; the next one is a fork away, with everything loaded and everything that the first process
has learnt meanwhile. This file is run by its path and imports nothing of this package.

| message to the first process | its answer |
|---|---|
| (none) | on start: `ready`, or why comparing is not possible |
| `start`, with a socket | the number of the comparer that now serves the socket |
| `kill NUMBER` | `gone`, once it is |
| `[gold, said]` on a second socket | none: two answers to learn from, which a comparer was quick to compare |
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
import select
import signal
import socket
import sys
import zlib
from collections.abc import Callable, Sequence
from typing import Any

Compare = Callable[[str, str], bool]
"""Whether a gold answer and another one are the same."""

_MEMORY_BYTES = 2 * 2**30
_WHOLE = re.compile(r"\d{1,50}", re.ASCII)
_SUM = re.compile(r".[-+=<>]|\\[gl]eq?\b")
_FAR = 1e-4
"""In proportion; math-verify itself rounds to six places."""
LESSONS = (
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
"""Answers of many shapes: the parser builds its tables as it meets them, which is most of what a first answer costs."""
_LONGEST_LESSON = 2**16
"""Bytes."""
_LESSON_S = 1.0
"""Of processor time; a lesson that takes longer ends its process, for nothing else could end one long operation."""
_GRACE_S = 1.0
"""A comparer ends itself so long after its limit, in case whoever should have killed it is gone."""


def main(load: Callable[[], Compare], lessons: Sequence[str] = ()) -> None:
    """Load, say so, and start and kill comparers until the other side is gone.

    While it has nothing to do, it takes a lesson: what comparing an answer teaches, later comparers know from birth.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's to hear
    control, school = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    try:
        compare = load()
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller raises it
        control.sendall(f"{type(error).__name__}: {error}\n".encode())
        return
    gc.freeze()  # pages of what is loaded stay shared with the forks
    control.sendall(b"ready\n")
    comparers: set[int] = set()
    left = [(lesson, "1") for lesson in lessons]
    while True:
        _learn(compare, control, school, left)
        message, received, _, _ = socket.recv_fds(control, 64, 1)
        _forget_ended(comparers)
        if not message:
            break
        if message == b"start":
            comparers.add(_start(compare, control, received[0]))
        else:
            _kill(int(message.split()[1]), comparers)
            control.sendall(b"gone\n")
    for number in list(comparers):
        _kill(number, comparers)


def _learn(compare: Compare, control: socket.socket, school: socket.socket, left: list[tuple[str, str]]) -> None:
    """Take lessons, the newest first, until there is a message."""
    while True:
        ready, _, _ = select.select([control, school], [], [], 0 if left else None)
        if control in ready:
            return
        if school in ready:
            gold, said = json.loads(school.recv(_LONGEST_LESSON))
            left.append((gold, said))
            continue
        signal.setitimer(signal.ITIMER_PROF, _LESSON_S)
        with contextlib.suppress(Exception):  # a lesson that cannot be learned is no reason to end
            compare(*left.pop())
        signal.setitimer(signal.ITIMER_PROF, 0)


def _start(compare: Compare, control: socket.socket, wire: int) -> int:
    number = os.fork()
    if number == 0:
        control.close()
        try:
            _serve(compare, socket.socket(fileno=wire))
        finally:
            os._exit(1)
    os.close(wire)
    control.sendall(f"{number}\n".encode())
    return number


def _kill(number: int, comparers: set[int]) -> None:
    if number in comparers:  # else it has ended, and its number may be another's
        os.kill(number, signal.SIGKILL)
        os.waitpid(number, 0)
        comparers.discard(number)


def _forget_ended(comparers: set[int]) -> None:
    for number in list(comparers):
        if os.waitpid(number, os.WNOHANG)[0]:
            comparers.discard(number)


def _serve(compare: Compare, wire: socket.socket) -> None:
    """One comparison after the other: a line of JSON in, `1` or `0` out. A line is `[gold, said, limit_s]`."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    gc.set_threshold(100_000, 20, 100)  # parsing makes much that is no rubbish
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the kernel's own kill: works in the midst of one long operation
    with wire, wire.makefile("r", encoding="ascii") as lines:
        for line in lines:
            gold, said, limit_s = json.loads(line)
            signal.setitimer(signal.ITIMER_REAL, limit_s + _GRACE_S)
            same = compare(gold, said)
            signal.setitimer(signal.ITIMER_REAL, 0)
            wire.sendall(b"1" if same else b"0")


def math_verify() -> Compare:
    """Comparing as the package math-verify does, without its own limits of time, which need signals."""
    logging.disable(logging.CRITICAL)  # it warns that it has no limits
    package: Any = importlib.import_module("math_verify")
    _hasten_reading()
    measured = package.LatexExtractionConfig()
    pure = dataclasses.replace(
        measured, normalization_config=dataclasses.replace(measured.normalization_config, units=False)
    )
    whole = {"fallback_mode": "no_fallback", "extraction_mode": "first_match"}  # else it picks a number out of rubbish

    sympy: Any = importlib.import_module("sympy")

    def parsed(answer: str) -> list[Any]:
        if _WHOLE.fullmatch(answer):
            return [sympy.Integer(answer)]
        latex = pure if _SUM.search(answer) else measured  # the h of 1 + h is no hour
        return package.parse(f"$ {answer} $", extraction_config=[latex], parsing_timeout=None, **whole)

    remembered = functools.lru_cache(maxsize=1024)(parsed)  # siblings have one gold, and often say the same

    def compare(gold: str, said: str) -> bool:
        one, other = remembered(gold), remembered(said)
        if "%" not in gold + said and _far_apart(one, other):
            return False
        return bool(package.verify(one, other, timeout_seconds=None))

    compare(r"\frac{1}{2}", "0.5")  # loads what is loaded late
    return compare


def _hasten_reading() -> None:
    """Let answers be parsed by the quick way of predicting, and by the thorough one only where that fails.

    What the quick way reads, it reads as the thorough one does: it is less able, never different.
    """
    modes: Any = importlib.import_module("antlr4.atn.PredictionMode").PredictionMode
    reader: Any = importlib.import_module("latex2sympy2_extended.latex2sympy2")

    read = reader.PSParser.math

    def math(self: Any) -> Any:
        self._interp.predictionMode = modes.SLL
        try:
            return read(self)
        except Exception:  # noqa: BLE001 - what its listener raises has no other type
            self.reset()
            self._interp.predictionMode = modes.LL
            return read(self)

    reader.PSParser.math = math


def _far_apart(one: list[Any], other: list[Any]) -> bool:
    """Whether two expressions differ at a point, by more than any rounding: then no algebra makes them one.

    Says nothing about letters, which may be words, nor about relations, sets and what is expensive at a point.
    """
    if len(one) != 1 or len(other) != 1:
        return False
    left, right = _value(one[0]), _value(other[0])
    if left is None or right is None:
        return False
    return abs(left - right) > _FAR * max(1.0, abs(left), abs(right))


def _value(found: Any) -> complex | None:
    """An expression at a point; None where it has no value there, or none that is cheap."""
    sympy: Any = sys.modules["sympy"]
    endless = (sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit, sympy.Derivative)
    if not isinstance(found, sympy.Expr) or found.is_Symbol or found.has(*endless):
        return None
    symbols = sorted(found.free_symbols, key=str)
    point = {symbol: 1 + zlib.crc32(str(symbol).encode()) / 2**32 for symbol in symbols}
    try:
        value = complex(found.evalf(15, subs=point))
    except (TypeError, ValueError, ArithmeticError, AttributeError):
        return None
    return value if cmath.isfinite(value) else None


if __name__ == "__main__":
    main(math_verify, LESSONS)
