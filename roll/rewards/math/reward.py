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
from roll.rewards.math import exact, worded
from roll.rewards.math.final_answer import candidates
from roll.rewards.math.pool import MathVerifyPool, Verdict
from roll.rewards.math.sentence import MAX_CHARS
from roll.types import Score, Task

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

    A comparison that does not end within `timeout_s` of CPU time scores 0 with the part `timed_out`: it is not shown
    to be equal. One that crashes its process twice scores 0 with the part `crashed`.

    Math-verify is loaded by `start`, in the background; without `start`, the first answer that needs it waits for it.
    If it cannot be loaded, only answers that need it have no score.
    """

    def __init__(self, *, timeout_s: float = 2.0) -> None:
        self.timeout_s = timeout_s
        self.pool = MathVerifyPool()

    def start(self) -> None:
        self.pool.warm()

    def stop(self) -> None:
        self.pool.stop()

    def score(self, task: Task, response: str) -> Score:
        """Raises `RewardFailed` if math-verify is needed and cannot run, or gets too little CPU time."""
        if task.answer is None:
            raise ConfigError(f"task {task.id!r}: no answer to compare with; give it one, or choose another reward")
        return score_answer(str(task.answer), response, partial(self.pool.compare, timeout_s=self.timeout_s))


def score_answer(gold: str, response: str, compare: Callable[[str, str], Verdict]) -> Score:
    """The score of `Math`; `compare` is called only if exact comparison cannot decide."""
    verdicts = [exact.decide(gold, answer) for answer in candidates(response)]
    if True in verdicts:
        return Score(1.0)
    if not gold[-1:].isdigit() and worded.states(gold, response):
        return Score(1.0)
    if not verdicts or isinstance(verdicts[0], bool) or not all(map(_may_be_math, verdicts[0])):
        return Score(0.0)
    verdict = compare(*map(_to_latex, verdicts[0]))
    failed = verdict in (Verdict.TIMED_OUT, Verdict.CRASHED)
    return Score(float(verdict is Verdict.SAME), {verdict.value: 1.0} if failed else {})


def answer_of(response: str) -> str | None:
    """The final answer of a response, numbers in canonical notation; None if it gives none."""
    answers = candidates(response)
    answer = _FRACTION.sub(r"\1/\2", exact.normalise(answers[0])) if answers else ""
    return (str(Fraction(answer)) if _RATIONAL.fullmatch(answer) else answer) or None


def _may_be_math(answer: str) -> bool:
    """Whether math-verify could parse the answer."""
    if len(answer) > MAX_CHARS:
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
