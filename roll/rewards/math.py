"""Mathematics: finds the answer a reply commits to, and compares it as text and as an exact number.

Nothing is evaluated: a reply is matched against fixed patterns of bounded size, so no reply can be expensive. Answers
that are equal only after algebra count as different.
"""

from __future__ import annotations

import re
from fractions import Fraction

from roll.errors import ConfigError
from roll.types import Score, Task

_LONGEST = 200
"""Characters of an answer beyond which it is compared as text only; also bounds the size of every number."""

_BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_STATED = re.compile(r"####|\banswer(?:\s+is\s*:?|\s*[:=])", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\w.])-?(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)(?:/\d+)?")

_REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\s+", " "),  # first: runs of spaces would make the patterns below slow
        (r"\\[dtc]frac\b", r"\\frac"),
        (r"\\(?:left|right|displaystyle)(?![a-z])|\\[!,;: ]|\\[()\[\]]|~|\\?\$", ""),
        (r"(?<=[\d}]) ?\\(?:text|mathrm)\{[^{}]*\}", ""),  # a unit
        (r"\\(?:text|textbf|mathrm|mathbf|mathit|operatorname)\{([^{}]*)\}", r"\1"),
        (r"\^ ?\{? ?\\circ ?\}?|°|(?<=\d) ?degrees?\b|\\?%", ""),
        (r"\{,\}", ","),
        (r" ", ""),
        (r"\\frac(\d)(\d)", r"\\frac{\1}{\2}"),
        (r"\\sqrt(\d)", r"\\sqrt{\1}"),
        (r"^[a-zA-Z]=(?=.)", ""),
    )
]
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d*)?")
_DECIMAL = r"\d+(?:\.\d*)?|\.\d+"
_VALUE = re.compile(
    rf"(?P<sign>[+-]?)(?:"
    rf"(?P<top>{_DECIMAL})(?:/(?P<bottom>\d+))?"
    rf"|(?P<whole>\d*)\\frac\{{(?P<inner>[+-]?)(?P<over>{_DECIMAL})\}}\{{(?P<under>{_DECIMAL})\}}"
    rf")"
)


def score(task: Task, reply: str) -> Score:
    """1 if the answer that `reply` commits to equals the task's, else 0."""
    if task.answer is None:
        raise ConfigError(f"task {task.id!r}: no answer to compare with; give it one, or choose another reward")
    gold = normalise(str(task.answer))
    return Score(float(any(equal(normalise(candidate), gold) for candidate in candidates(reply))))


def candidates(reply: str) -> list[str]:
    """The one answer a reply commits to, in the ways it may be read; empty while it is still thinking.

    The last boxed expression, else what stands after "answer is" or "####", else the last number, else all of it.
    """
    _, closed, text = reply.rpartition("</think>")
    if not closed and "<think>" in text:
        return []
    boxed = _last_boxed(text)
    if boxed is not None:
        return [boxed]
    cues = list(_STATED.finditer(text))
    if cues:
        said = _first_sentence(text[cues[-1].end() :])
        return [said, *_NUMBER.findall(said)[:1]]
    return _NUMBER.findall(text)[-1:] or [text]


def normalise(answer: str) -> str:
    """The answer without markup, units, spaces and the like; equal texts are equal answers."""
    for pattern, replacement in _REWRITES:
        answer = pattern.sub(replacement, answer)
    answer = answer.rstrip(".")
    return answer.replace(",", "") if _GROUPED.fullmatch(answer) else answer


def equal(one: str, other: str) -> bool:
    """Whether two normalised answers are the same text, word or number."""
    if one == other:
        return bool(one)
    if len(one) > 1 and one.isalpha() and one.casefold() == other.casefold():
        return True
    value = _value(one)
    return value is not None and value == _value(other)


def _value(answer: str) -> Fraction | None:
    """The exact number that an integer, decimal, fraction or mixed number stands for; None for anything else."""
    found = _VALUE.fullmatch(answer) if len(answer) <= _LONGEST else None
    if found is None:
        return None
    top, bottom = found["top"] or found["over"], found["bottom"] or found["under"] or "1"
    if not Fraction(bottom):
        return None
    value = Fraction(top) / Fraction(bottom)
    value = Fraction(found["whole"] or 0) + (-value if found["inner"] == "-" else value)
    return -value if found["sign"] == "-" else value


def _last_boxed(text: str) -> str | None:
    """What the last complete \\boxed{...} holds, braces and all, in one pass over the text."""
    open_braces: list[int | None] = []  # where a box begins; None for any other brace
    last, begin = None, -1
    for brace in _BRACES.finditer(text):
        if brace[0] == "}":
            start = open_braces.pop() if open_braces else None
            if start is not None and start > begin:
                begin, last = start, text[start : brace.start()]
        elif brace[0].endswith("{") and brace[0] != r"\{":
            open_braces.append(brace.end() if len(brace[0]) > 1 else None)
    return last


def _first_sentence(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return re.split(r"\.(?:\s|$)", line, maxsplit=1)[0].strip("* ")
