"""Mathematics: extracts the final answer of a response and compares it with the task's.

Most answers are compared exactly, here (`exact`). The rest go to the package math-verify, in a process that is killed
if it takes too long (`pool`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from functools import partial

from roll.errors import ConfigError
from roll.rewards.math import exact
from roll.rewards.math.pool import MathVerifyPool, Verdict
from roll.rewards.response import answer_text, find_boxes
from roll.types import Score, Task

_MAX_CHARS = 1024
"""Longer answers are not sent to math-verify."""
_MAX_BOX_DEPTH = 3

_STATEMENT = re.compile(r"####|\banswer(?:\s+is\s*:?|\s*[:=])", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\w.\\{^_])-?(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)(?:/\d+)?%?")
_CONTINUES = re.compile(r"[A-Za-z_\\{]|\s*[+*/^=({<>≤≥\\]|\s+-\s|\s+(?:or|and|to|[b-zB-Z])\b|-\d")
"""Text after a number that makes it part of a larger expression or a list."""
_DECORATION = re.compile(r"\\?\$|\*\*|[*_](?=\d)|(?<=\d)[*_](?!\d)")
_SYMBOLS = re.compile(r"[\\^=<>≤≥_{]")
_FORMULA = re.compile(r"\$\$?([^$]+)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]")
_SENTENCE = re.compile(r"\.(?:\s|$)")
_MARKUP = re.compile(r"\\[()\[\]]|(?<!\\)\$|\*\*|\s+")
_NOT_MATH = re.compile(
    r"""["#?@`]|\\boxed|(?i:answer)"""
    "|[\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0300-\u036f\u0590-\u1fff\u200b-\u202f\u2600-\u26ff\u2e80-\U0010ffff]",
)
"""Not mathematics: quotes, further answer cues, accents, scripts other than Latin and Greek."""
_PROSE = re.compile(r"(?=.*?(?:[A-Za-z]{6}|(?:[A-Za-z]{3,}\s+){3}))[\sA-Za-z,.;:!'-]*", re.DOTALL)
_FRACTION = re.compile(r"\\frac\{(\d{1,100})\}\{(\d{1,100})\}")
_RATIONAL = re.compile(r"[+-]?(?:\d{1,100}/0{0,99}[1-9]\d{0,99}|\d{1,100}(?:\.\d{0,100})?|\.\d{1,100})", re.ASCII)
_ESCAPED = re.compile(r"\\.", re.DOTALL)


class Math:
    """1 if the final answer of a response equals the task's, else 0.

    A comparison that does not end within `timeout_s` scores 0 with the part `timed_out`; one that kills its process
    scores 0 with the part `crashed`. Math-verify is loaded by `start`, in the background; without `start`, the first
    answer that needs it waits for it. If it cannot be loaded, only answers that need it have no score.
    """

    def __init__(self, *, timeout_s: float = 2.0) -> None:
        self.timeout_s = timeout_s
        self.pool = MathVerifyPool()

    def start(self) -> None:
        self.pool.warm()

    def stop(self) -> None:
        self.pool.stop()

    def score(self, task: Task, response: str) -> Score:
        """Raises `RewardFailed` if math-verify is needed and cannot run."""
        if task.answer is None:
            raise ConfigError(f"task {task.id!r}: no answer to compare with; give it one, or choose another reward")
        return score_answer(str(task.answer), response, partial(self.pool.compare, timeout_s=self.timeout_s))


def score_answer(gold: str, response: str, compare: Callable[[str, str], Verdict]) -> Score:
    """The score of `Math`; `compare` is called only if exact comparison cannot decide."""
    answers = candidates(response)
    verdicts = [exact.same(gold, answer) for answer in answers]
    if True in verdicts:
        return Score(1.0)
    if not answers or False in verdicts or not _may_be_math(gold) or not _may_be_math(answers[0]):
        return Score(0.0)
    verdict = compare(_to_latex(gold), _to_latex(answers[0]))
    failed = verdict in (Verdict.TIMED_OUT, Verdict.CRASHED)
    return Score(float(verdict is Verdict.SAME), {verdict.value: 1.0} if failed else {})


def candidates(response: str) -> list[str]:
    """The final answer of a response, in every way it may be read; empty if the thinking has not ended.

    The last boxed expression, else the text after "answer is" or "####", else after the last "=" of the last line, else
    its last formula or number, else the whole line.
    """
    text = answer_text(response)
    boxed = _last_boxed(text)
    if boxed is not None:
        return [boxed]
    cues = list(_STATEMENT.finditer(text))
    if cues:
        return _readings(_first_sentence(text[cues[-1].end() :]))
    line = text.strip().rpartition("\n")[2].strip()
    if not line:
        return []
    _, equals, after = line.rpartition("=")
    if equals and after.strip():
        return _readings(_first_sentence(after))
    formulas = _FORMULA.findall(line) if len(line) <= _MAX_CHARS else []
    if formulas:
        return ["".join(formulas[-1])]
    return _last_number(text) or [line]


def answer_of(response: str) -> str | None:
    """The final answer of a response, numbers in canonical notation; None if it gives none."""
    answers = candidates(response)
    answer = _FRACTION.sub(r"\1/\2", exact.normalise(answers[0])) if answers else ""
    return (str(Fraction(answer)) if _RATIONAL.fullmatch(answer) else answer) or None


def _last_boxed(text: str) -> str | None:
    """The content of the last complete box; of nested boxes, the innermost."""
    content = None
    for _ in range(_MAX_BOX_DEPTH):
        boxes = find_boxes(text)
        if not boxes:
            break
        content = text = boxes[-1].content
    return content


def _readings(statement: str) -> list[str]:
    """The statement, preceded by its first number if that is isolated among words."""
    statement = _DECORATION.sub("", statement)
    number = None if _SYMBOLS.search(statement) else _NUMBER.search(statement)
    if number is None or number[0] == statement or _CONTINUES.match(statement, number.end()):
        return [statement] if statement else []
    return [number[0], statement]


def _last_number(text: str) -> list[str]:
    last = list(_NUMBER.finditer(text))[-1:]
    return [number[0] for number in last if not _CONTINUES.match(text, number.end())]


def _first_sentence(text: str) -> str:
    line = text.strip().partition("\n")[0][: 8 * _MAX_CHARS]
    return _SENTENCE.split(line, maxsplit=1)[0].strip("* :")


def _may_be_math(answer: str) -> bool:
    """Whether math-verify could parse the answer."""
    if len(answer) > _MAX_CHARS:
        return False
    plain = _ESCAPED.sub("", answer)
    return (
        _to_latex(answer).isprintable()
        and any(map(str.isalnum, answer))
        and not _NOT_MATH.search(answer)
        and not _PROSE.fullmatch(answer)
        and plain.count("{") == plain.count("}")
        and sum(map(plain.count, "([")) == sum(map(plain.count, ")]"))  # half-open intervals mix them
    )


def _to_latex(answer: str) -> str:
    """An answer as one line of LaTeX without dollar signs."""
    return _MARKUP.sub(" ", answer).strip(" .")
