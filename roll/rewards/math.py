"""Mathematics: finds the answer a reply commits to, and compares it with the task's.

Most answers are compared here, exactly (`math_exact`). What that cannot decide goes to the package math-verify, in a
process that is killed when it takes too long (`math_process`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from fractions import Fraction

from roll.errors import ConfigError
from roll.rewards import math_exact
from roll.rewards.math_process import COMPARERS, Verdict
from roll.rewards.reply import boxes, spoken
from roll.types import Score, Task

_LONGEST = 1024
"""Characters beyond which an answer is not looked at by algebra."""
_DEEPEST_BOX = 3

_STATED = re.compile(r"####|\banswer(?:\s+is\s*:?|\s*[:=])", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\w.\\{^_])-?(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)(?:/\d+)?%?")
_GOES_ON = re.compile(r"[A-Za-z_\\{]|\s*[+*/^=({<>≤≥\\]|\s+-\s|\s+(?:or|and|to|[b-zB-Z])\b|-\d")
"""After a number: it is part of a larger expression or of a list."""
_DECORATION = re.compile(r"\\?\$|\*\*|[*_](?=\d)|(?<=\d)[*_](?!\d)")
_SYMBOLS = re.compile(r"[\\^=<>≤≥_{]")
_FORMULA = re.compile(r"\$\$?([^$]+)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]")
_SENTENCE = re.compile(r"\.(?:\s|$)")
_MARKUP = re.compile(r"\\[()\[\]]|(?<!\\)\$|\*\*|\s+")
_FOREIGN = re.compile(
    r"""["#?@`]|\\boxed|(?i:answer)"""
    "|[\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0300-\u036f\u0590-\u1fff\u200b-\u202f\u2600-\u26ff\u2e80-\U0010ffff]",
)
"""No mathematics: quotes, cues to look for an answer in what follows, accents, scripts other than Latin and Greek."""
_PROSE = re.compile(r"(?=.*?(?:[A-Za-z]{6}|(?:[A-Za-z]{3,}\s+){3}))[\sA-Za-z,.;:!'-]*", re.DOTALL)
_FRACTION = re.compile(r"\\frac\{(\d{1,100})\}\{(\d{1,100})\}")
_RATIONAL = re.compile(r"[+-]?(?:\d{1,100}/0{0,99}[1-9]\d{0,99}|\d{1,100}(?:\.\d{0,100})?|\.\d{1,100})", re.ASCII)
_ESCAPED = re.compile(r"\\.", re.DOTALL)

Compare = Callable[[str, str], Verdict]


def score(task: Task, reply: str, *, timeout_s: float = 2.0) -> Score:
    """1 if the answer that `reply` commits to equals the task's, else 0.

    A comparison that does not end within `timeout_s` is a 0 with the part `timed_out`, one that ends its process a 0
    with the part `crashed`. Raises `RewardFailed` where comparing is not possible.
    """
    if task.answer is None:
        raise ConfigError(f"task {task.id!r}: no answer to compare with; give it one, or choose another reward")
    return compared(str(task.answer), reply, functools.partial(COMPARERS.same, timeout_s=timeout_s))


class Math:
    """1 if the answer that a reply commits to equals the task's, else 0.

    As `score`, in a process that is there to score: it has algebra loaded at once, and not when the first answer needs
    it and waits. Nothing depends on that: where it cannot be loaded, only what needs it has no score.
    """

    def __init__(self, *, timeout_s: float = 2.0) -> None:
        self.timeout_s = timeout_s

    def start(self) -> None:
        COMPARERS.warm()

    def stop(self) -> None:
        COMPARERS.stop()

    def score(self, task: Task, reply: str) -> Score:
        return score(task, reply, timeout_s=self.timeout_s)


def compared(gold: str, reply: str, compare: Compare) -> Score:
    """As `score` has it; `compare` is asked only what reading the two answers does not tell."""
    said = candidates(reply)
    found = [math_exact.same(gold, candidate) for candidate in said]
    if True in found:
        return Score(1.0)
    if not said or False in found or not _readable(gold) or not _readable(said[0]):
        return Score(0.0)
    verdict = compare(_bare(gold), _bare(said[0]))
    failed = verdict in (Verdict.TIMED_OUT, Verdict.CRASHED)
    return Score(float(verdict is Verdict.SAME), {verdict.value: 1.0} if failed else {})


def candidates(reply: str) -> list[str]:
    """The one answer a reply commits to, in the ways it may be read; empty while it is still thinking.

    The last boxed expression, else what stands after "answer is" or "####", else after the last "=" of the last line,
    else its last formula or number, else all of it.
    """
    text = spoken(reply)
    boxed = _last_boxed(text)
    if boxed is not None:
        return [boxed]
    cues = list(_STATED.finditer(text))
    if cues:
        return _readings(_first_sentence(text[cues[-1].end() :]))
    line = text.strip().rpartition("\n")[2].strip()
    if not line:
        return []
    _, equals, after = line.rpartition("=")
    if equals and after.strip():
        return _readings(_first_sentence(after))
    formulas = _FORMULA.findall(line) if len(line) <= _LONGEST else []
    if formulas:
        return ["".join(formulas[-1])]
    return _last_number(text) or [line]


def answer_of(reply: str) -> str | None:
    """The answer that a reply commits to, a number always in the same notation; None where it gives none."""
    said = candidates(reply)
    found = _FRACTION.sub(r"\1/\2", math_exact.normalised(said[0])) if said else ""
    return (str(Fraction(found)) if _RATIONAL.fullmatch(found) else found) or None


def _last_boxed(text: str) -> str | None:
    """What the last complete box holds; of boxes within boxes the innermost."""
    found = None
    for _ in range(_DEEPEST_BOX):
        inside = boxes(text)
        if not inside:
            break
        found = text = inside[-1].content
    return found


def _readings(said: str) -> list[str]:
    """What was said, and first of all its first number where that stands alone among words."""
    said = _DECORATION.sub("", said)
    number = None if _SYMBOLS.search(said) else _NUMBER.search(said)
    if number is None or number[0] == said or _GOES_ON.match(said, number.end()):
        return [said] if said else []
    return [number[0], said]


def _last_number(text: str) -> list[str]:
    found = list(_NUMBER.finditer(text))[-1:]
    return [number[0] for number in found if not _GOES_ON.match(text, number.end())]


def _first_sentence(text: str) -> str:
    line = text.strip().partition("\n")[0][: 8 * _LONGEST]
    return _SENTENCE.split(line, maxsplit=1)[0].strip("* :")


def _readable(answer: str) -> bool:
    """Whether an answer may be mathematics at all."""
    return (
        len(answer) <= _LONGEST
        and _bare(answer).isprintable()
        and any(map(str.isalnum, answer))
        and not _FOREIGN.search(answer)
        and not _PROSE.fullmatch(answer)
        and _balanced(answer)
    )


def _balanced(answer: str) -> bool:
    """Whether braces have partners, and brackets of any two kinds: half-open intervals mix them."""
    plain = _ESCAPED.sub("", answer)
    return plain.count("{") == plain.count("}") and sum(map(plain.count, "([")) == sum(map(plain.count, ")]"))


def _bare(answer: str) -> str:
    """An answer as one line of LaTeX, to be put between dollars."""
    return _MARKUP.sub(" ", answer).strip(" .")
