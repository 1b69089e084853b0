"""The notation of an answer: LaTeX without markup, styles and units, and the value of a plainly written number.

Nothing is evaluated: answers are matched against fixed patterns of bounded size, so no answer is expensive.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from roll.rewards.math import number_words
from roll.rewards.math.units import SCALES, read_unit

MAX_CHARS = 200
"""Longer answers are compared verbatim; also bounds the size of every number."""

_FRACTIONS = {
    "½": "1/2",
    "⅓": "1/3",
    "⅔": "2/3",
    "¼": "1/4",
    "¾": "3/4",
    "⅕": "1/5",
    "⅛": "1/8",
    "⅜": "3/8",
    "⅝": "5/8",
}
_SIGNS = str.maketrans(
    {
        **{chr(code + 0xFEE0): chr(code) for code in range(0x21, 0x7F)},  # full-width ASCII
        **{sign: rf"\frac{{{value[0]}}}{{{value[2]}}}" for sign, value in _FRACTIONS.items()},
        **dict.fromkeys("\u2212\u2013\u2010\u2011\ufe63", "-"),
        **dict.fromkeys("\xa0\u2009\u202f\u2007\u200a\u3000", " "),
        **dict.fromkeys("\u200b\ufeff\u2060", ""),
        **{"π": r"\pi ", "∞": r"\infty ", "\xd7": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "±": r"\pm "},
        **{
            "≤": r"\le ",
            "≥": r"\ge ",
            "≠": r"\ne ",
            "∈": r"\in ",
            "\u222a": r"\cup ",
            "≈": r"\approx ",
        },
        **{"√": r"\sqrt ", "θ": r"\theta ", "∅": r"\emptyset ", "\u2019": "'"},
    }
)
_RAISED, _LOWERED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "₀₁₂₃₄₅₆₇₈₉₊₋ₙ"
_PLAIN_SCRIPTS = str.maketrans(_RAISED + _LOWERED, "0123456789+-n" * 2)
_ROOT = re.compile(r"√\s?(\d+(?:\.\d+)?)")
_SCRIPTS = re.compile(rf"[{_RAISED}]+|[{_LOWERED}]+")
_INNER = r"((?:[^{}]++|\{(?:[^{}]++|\{(?:[^{}]++|\{[^{}]*+\})*+\})*+\})*+)"
"""The content of braces, nested at most four deep."""
_Replacement = str | Callable[[re.Match[str]], str]


def _script(match: re.Match[str]) -> str:
    return f"{'^' if match[0][0] in _RAISED else '_'}{{{match[0].translate(_PLAIN_SCRIPTS)}}}"


def _colored(match: re.Match[str]) -> str:
    return match[1] or ""


_CLEANING: list[tuple[str, re.Pattern[str], _Replacement]] = [
    (sign, re.compile(pattern), replacement)
    for sign, pattern, replacement in (
        ("", r"\s+", " "),
        ("\\", r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (
            "\\",
            r"\\(?:bm|boldsymbol|emph|underline|(?:text|math)(?:bf|it|sf|tt|normal)|ensuremath)\s*\{" + _INNER + r"\}",
            r"\1",
        ),
        ("\\", r"\\(?:text)?color\s*\{[^{}]*\}\s*(?:\{" + _INNER + r"\})?", _colored),
        (
            "\\",
            r"\\(?:left|right|[bB]igg?[lr]?|(?:display|text)style|[lL]arge|LARGE|huge|normalsize|small|bf|it"
            r"|limits)(?![a-zA-Z])",
            "",
        ),
        ("\\", r"\\rm(?![a-zA-Z]) *([A-Za-z]+)", r"\\text{ \1}"),
        ("\\", r"\\(?:mbox|hbox|textrm|mathrm|operatorname\*?)(?= ?\{)", r"\\text"),
        ("\\", r"\\text ?\{([ie]|[^{}]*\d[^{}]*)\}", r"\1"),
        ("text", r"^\\text ?\{(?![^{}]*\b(?:not?|never)\b)[^{}]*(?:\b(?:is|are|equals)|[:=]) ?\}(?=.)", ""),
        ("all", r",? ?(?:\\text ?\{ ?,? ?for (?:all|any|every|each)\b|\\forall(?![a-z])).*$", ""),
        ("\\Omega", r"(?<=\d) ?(?:\\[,; ])? ?\\Omega$", r"\\text{ ohm}"),
        ("\\", r"(?<!\\)\\!", ""),
        ("", r"\s*(?:(?<!\\)\\[,;:> ]|\\q?quad(?![a-zA-Z])|\\(?:thin|med|thick)?space(?![a-zA-Z])|(?<!\\)~)\s*", " "),
        ("", r"(?<!\\)\\[()\[\]]|\\?[$€£¥]|^\*\*|\*\*(?=[.:]*$)", ""),
        ("*", r"\*\*", "^"),
        ("angle", r"\\langle(?![a-z])(.*)\\rangle(?![a-z])", r"(\1)"),
        ("\\", r"\\frac ?\{\\text\{([^{}]*)\}\} ?\{\\text\{([^{}]*)\}\}$", r"\\text{\1/\2}"),
        ("%", r"\\%", "%"),
        ("{", r"\{([.,])\}", r"\1"),
        ("\\", r"\\frac ?([0-9a-zA-Z]) ?([0-9a-zA-Z])", r"\\frac{\1}{\2}"),
        ("\\", r"\\frac ?([0-9a-zA-Z])(?= ?\{)", r"\\frac{\1}"),
        ("\\", r"(\\frac ?\{[^{}]*\}) ?([0-9a-zA-Z])", r"\1{\2}"),
        ("\\", r"\\sqrt ?([0-9a-zA-Z])", r"\\sqrt{\1}"),
        ("", r"(?<![\\A-Za-z{])(?<!\\text\{ )(log|ln|sin|cos|tan|exp|pi)(?![A-Za-z])", r"\\\1"),
        ("q", r"(?<![\\A-Za-z])sqrt ?\(([^()]*)\)", r"\\sqrt{\1}"),
        ("", r"(?<![\w.\\{])([-+]?\d+(?:\.\d+)?)[eE]([+-]?\d{1,3})$", r"\1 \\times 10^{\2}"),
        ("", r"^(?:\\text ?\{ ?(?:minus|negative) ?\}|(?:minus|negative)\b) ?(?=[\d\\])", "-"),
        ("inf", r"(?:\\text ?\{ ?)?(?<![A-Za-z\\])inf(?:inity)?\b ?(\})?", r"\\infty "),
        ("\\", r"^\\text ?\{([^{}]*)\}$", r"\1"),
        ("", r"^(?: *\\(?:approx|simeq|cong)(?![a-z]))+|^ *~", ""),
        ("", r"[\s.,;:]+$|^[\s:]+", ""),
        ("\\", r"\\varnothing(?![a-z])|^\\\{ ?\\\}$|^\\text ?\{ ?\\?\{ ?\\?\} ?\}$", r"\\emptyset"),
        ("", r"^(?:(?i:(?:the )?(?:empty set|no solutions?))|\{ ?\})$", r"\\emptyset"),
        ("cases", r"[,;.]\s*(?=&|\\\\|\\end)", ""),
        ("cases", r"&\s*(?:\\text ?\{ ?(?:if|when|for|where) ?\}|\b(?:if|when|for|where)\b)", "&"),
    )
]
"""(character, pattern, replacement): applied if the character occurs, which skips most patterns for plain answers."""
_COMPACTING = [
    (" ", re.compile(r" (?!\d)|(?<!\d) "), ""),  # a space between digits is significant
    ("{", re.compile(r"^\{([^{}\\]*)\}$"), r"\1"),
    ("\\", re.compile(r"\\text\{([^{}]*)\}"), r"\1"),
    ("{", re.compile(r"\^\{(\w)\}"), r"^\1"),
    ("(", re.compile(r"^\(([-+]?[\d./]+)\)$"), r"\1"),
]
_PERCENT = re.compile(r" ?(?:\\text ?\{ ?per ?cent ?\}|per ?cent\b)(?: of [A-Za-z ]+)?[. ]*$", re.IGNORECASE)
_DEGREES = re.compile(
    r" ?(?:\^ ?(?:\\circ|\{ ?\\circ ?\})|°|\\degree|\\text ?\{ ?degrees? ?\}|degrees?\b)"
    r"(?: ?(?:\\text ?\{ ?)?[FC](?![A-Za-z]) ?\}?)?[. ]*"
)
_UNIT = re.compile(
    r"(?:(?<=[\d})!%\]])|(?<=\\pi)) ?((?:(?:/|\\cdot|\\times)? ?\\text ?\{[^{}\d]*\}(?: ?\^ ?(?:\{ ?-?\d ?\}|\d))?)+"
    r"|[A-Za-z][A-Za-z./()' -]*(?: ?\^ ?(?:\{ ?-?\d ?\}|\d))?)[. ]*$"
)
_SCALE = re.compile(rf"(?<=[\d}}]) ?(?:\\text ?\{{ ?)?({'|'.join(SCALES)})\b(?: ?\}})?", re.IGNORECASE)
_SIMPLE = re.compile(
    r"(?P<dollars>\\?\$)?(?P<number>-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)"
    r"(?: ?\\text\{(?P<text> ?[a-z]{3,})\}| (?P<words>[a-z]{3,}))?"
)
"""Most answers: a number, perhaps of dollars or with a unit of one word."""
_WORDS = re.compile(r"[A-Za-z]{3,}(?:(?:-| and | )[A-Za-z]{3,}){0,8}")
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:(?:,\d{3})+|(?: \d{3})+)(?:\.\d*)?%?")
_DECIMAL = r"\d+(?:\.\d*)?|\.\d+"
_VALUE = re.compile(
    r"(?P<sign>[+-]?)(?:"
    r"(?P<start>\d*\.\d*)\\(?:overline|bar|dot)\{(?P<repeat>\d+)\}"
    rf"|(?:(?P<mixed>\d+) (?=\d+/))?(?P<top>{_DECIMAL})(?:/(?P<bottom>\d+))?"
    rf"|(?P<whole>\d*)\\frac\{{(?P<inner>[+-]?)(?P<over>{_DECIMAL})\}}\{{(?P<under>{_DECIMAL})\}}"
    rf")(?:\*(?P<scale>{'|'.join(SCALES)}))?(?P<percent>%?)"
)


@dataclass(frozen=True, slots=True)
class Number:
    """The value of a plainly written number."""

    value: Fraction
    percent: bool = False
    fraction: bool = False
    """Not written as a decimal."""

    @property
    def readings(self) -> tuple[Fraction, ...]:
        """The values that it may mean: 50% is 50 or 1/2, but a fraction or less than 1% is only its hundredth."""
        if not self.percent:
            return (self.value,)
        return (self.value / 100,) if self.fraction or abs(self.value) < 1 else (self.value, self.value / 100)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as text and, if it is one, as a number."""

    latex: str
    """One line of LaTeX without markup, styles and unit."""
    compact: str
    """Without spaces: equal texts are equal answers."""
    unit: str = ""
    """The canonical unit, if it has a known one."""


def _in_latex(text: str) -> str:
    """The text with LaTeX for other signs than ASCII."""
    return _SCRIPTS.sub(_script, _ROOT.sub(r"\\sqrt{\1}", text)).translate(_SIGNS)


def read(answer: str) -> Answer:
    """The answer without markup, styles, units and spaces."""
    if len(answer) > MAX_CHARS:
        answer = " ".join(answer.split())
        return Answer(answer, answer)
    if (simple := _SIMPLE.fullmatch(answer)) is not None:
        words = simple["text"] or simple["words"]
        unit = read_unit_cached(words) if words else ""
        if unit is not None:
            number = simple["number"].replace(",", "")
            return Answer(number, number, unit or ("dollar" if simple["dollars"] else ""))
    text = answer if answer.isascii() else _in_latex(answer)
    for sign, pattern, replacement in _CLEANING:
        if sign in text:
            text = pattern.sub(replacement, text)
    text, unit = _split_unit(text)
    unit = unit or ("dollar" if "\\$" in answer else "")
    compact = text
    for sign, pattern, replacement in _COMPACTING:
        if sign in compact:
            compact = pattern.sub(replacement, compact)
    if _WORDS.fullmatch(text) and (value := number_words.parse(text)) is not None:
        compact = text = value
    if ", " not in text and _GROUPED.fullmatch(compact):
        compact = text = compact.replace(",", "").replace(" ", "")
    return Answer(text, compact, unit)


def _split_unit(text: str) -> tuple[str, str]:
    """The text without the unit at its end, and the unit; scales stay, as a factor."""
    if text[-1:].isdigit() and "^" not in text:
        return text, ""
    text, num_percents = _PERCENT.subn("%", text)
    if num_percents:
        return text, ""
    text, num_degrees = _DEGREES.subn("", text)
    if num_degrees:
        return text, "deg"
    text = _SCALE.sub(lambda match: f"*{match[1].lower()} ", text, count=1).rstrip()
    tail = _UNIT.search(text)
    if tail is None and (scale := text.rpartition("*")[2].partition(" ")) and scale[0] in SCALES and scale[2]:
        return (text.removesuffix(f" {scale[2]}"), "") if read_unit(scale[2]) is not None else (text, "")
    unit = None if tail is None else read_unit(tail[1])
    if tail is None or unit is None or _is_plain_short(tail[0], unit):
        return text, ""
    return text[: tail.start()].rstrip(), unit


def _is_plain_short(tail: str, unit: str) -> bool:
    """Whether the tail may be variables: letters next to the number, or one letter."""
    return "\\" not in tail and (len(tail.strip()) < 2 or (tail[0] != " " and not unit))


def read_number(text: str) -> Number | None:
    """The exact value of an integer, decimal, fraction or mixed number in compact notation; None for anything else."""
    match = _VALUE.fullmatch(text) if len(text) <= MAX_CHARS else None
    if match is None:
        return None
    if match["repeat"] is not None:
        value = _repeating(match["start"], match["repeat"])
        bottom = "9"
    else:
        top, bottom = match["top"] or match["over"], match["bottom"] or match["under"] or "1"
        if not Fraction(bottom):
            return None
        value = Fraction(top) / Fraction(bottom)
        value = Fraction(match["whole"] or match["mixed"] or 0) + (-value if match["inner"] == "-" else value)
    value = (-value if match["sign"] == "-" else value) * SCALES.get(match["scale"] or "", 1)
    return Number(value, bool(match["percent"]), fraction="." not in text and bottom != "1")


def _repeating(start: str, repeat: str) -> Fraction:
    """The value of a decimal whose last digits repeat: 0.1666... has the start "0.1" and the repeat "6"."""
    places = len(start.partition(".")[2])
    return Fraction(f"0{start}0") + Fraction(int(repeat), (10 ** len(repeat) - 1) * 10**places)


read_unit_cached = functools.lru_cache(maxsize=256)(read_unit)
read_cached = functools.lru_cache(maxsize=4096)(read)  # a group shares the gold answer, and often answers
read_number_cached = functools.lru_cache(maxsize=1024)(read_number)
