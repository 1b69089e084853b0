"""The value that a sentence states: its bold text, the text after its equals sign, its formula or its number."""

from __future__ import annotations

import re
from collections.abc import Sequence

from roll.rewards.math import number_words, prose, rejected
from roll.rewards.math.expression import last_symbolic, leading_symbolic
from roll.rewards.math.units import VALUE_WORDS
from roll.rewards.math.word_parts import WordParts

MAX_CHARS = 1024
"""Longer answers are not read."""

FORMULA = re.compile(r"\$\$(.+?)\$\$|\$((?:[^$\\]|\\.)+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_MAX_WORD = 80
BOLD = re.compile(r"\*\*(.+?)\*\*|__(.+?)__|(?<![\w*\\^{])\*(?!\s)([^*\n]+?)(?<!\s)\*(?![\w*])|`([^`\n]+)`")
_LABEL = re.compile(r"(?i:^.*\banswers?\b\s*(?:is|are|:|=)\s*)")
_NUMBER = re.compile(r"(?<![\w.\\{^_])[-+]?(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)(?:/\d+)?(?!\w)%?")
_CONTINUES = re.compile(
    r"[A-Za-z_\\{²³!']|\s*[+*/^=({<>≤≥±:π√\xd7\\]|\s+-\s+(?:\d|\w\b|\\)|[-.,:]?\d|\s+[b-zB-Z]\b|\s\d"
    r"|\s+and\s+(?:a|one|two|three)\b"
)
"""Text after a number that makes it part of a larger expression."""
_SYMBOLS = re.compile(r"[\\^=<>≤≥≠_{±√π\xd7]|\b[a-zA-Z]\s*[-+*/]\s*\w|\w\s*[-+*/]\s*[a-zA-Z]\b|\d[a-zA-Z]\b")
_SIGNS = re.compile(r"[≠±√<>≤≥]|!=|\\(?:neq?|not|pm)(?![a-z])")
_CURRENCY = re.compile(
    r"\d[\d,.]*(?:\s.*\s|\s|\s?[,;.]\s.*[A-Za-z]{2,}.*)|.*[A-Za-z]{2,} [A-Za-z]{2,}.*\s|\d[^$]*[-+*/=]\s*\(?\s*",
    re.DOTALL,
)
"""The text between the signs of two amounts in dollars."""
_INEQUALITY = re.compile(r"[<>!:]=|[<>≤≥]")
_LIST = re.compile(r"\s*(?:,?\s*(?:and|or|&)|,|;|\s)\s*(?:[A-Za-z]\w?\s*=\s*)?[$*(\[{]*\s*", re.IGNORECASE)
_OPERATOR = re.compile(
    r"\b(?:and|or|to|plus|minus|times|over|mod|modulo|out of|divided|less|base|choose|through)\b|^\s*in\s*$|[±:+*/^]"
)
_RANGE = re.compile(r"\s*(?:[-\u2013\u2014]|to|through|\.{2,3}|…)\s*")
_MINUS = re.compile(r"\u2212|(?<!\w)\u2013(?=\d)(?<!\d )")
_NEXT_WORD = re.compile(
    r"[\s-]?(?P<word>[A-Za-z]+)(?:(?:\^\{?)?(?P<power>[²³23])\}?(?!\w)|\s?(?:/|\bper\b)\s?(?P<per>[A-Za-z]+)\b|\b)"
    r"|\s?(?P<percent>%)"
)
_STATED_WORD = re.compile(
    r"(?:\b(?:is|are|was|be|on|equals)|['\u2019]s)\s+(?:(?:an?|the|indeed|therefore"
    r"|always)\s+)?([A-Za-z]+(?:-[A-Za-z]+)?)[\s.!*]*$"
)
_STATES_NUMBER = re.compile(r"[^.;]{0,80}?\b(?:is|are|equals?|gives?|yields?|has)\b\s+(?:\w+\s+){0,2}(?=[-(]?\d)")
_ARROW = re.compile(r"^\s*(?:[=-]>|[⇒→∴]|\\(?:Rightarrow|implies|therefore)(?![a-z]))")
_ARROW_STARTS = "=-⇒→∴\\"
_SOLVES = re.compile(r"[^.;]{0,80}?\b(?:gives?|yields?|so|means|then)\b\s+[a-z]\s*=\s*(?=[-\d])")
_EVALUATED = re.compile(
    r"(?:\d\s?[-+*/^\xd7·]\s?\(?\d|\\(?:cdot|times|binom)\b|[!²³])[^=,]{0,40},?\s+(?:which|that)\s+(?:is|equals"
    r"|gives|makes|comes to)\s+"
    r"(?:equal to\s+|about\s+)?([-$]{0,2}\d[\d,.]*\$?(?:\s+[a-z]+){0,3})$"
)
"""An expression, and the value that the sentence says it has."""
_RATIO = re.compile(r"\$?\b(\d+)\$?\s+to\s+\$?(\d+)\b\$?")
_GETS = re.compile(
    r"[^.;=]{0,80}?\b(?:gets?|obtains?|gives?|giving|yields?|yielding|makes?|leaves?)\s+(?:\w+\s+){0,2}"
    r"(-?\d[\d,.]*(?:/\d+)?(?:\s+[a-z]+){0,3})$"
)
_EITHER = re.compile(r"[a-z]\s*(?:[<>]=?|[≤≥])\s*[-\w./√π]+,?\s+or\s+[a-z]\s*(?:[<>]=?|[≤≥])\s*[-\w./√π]+$")
"""Two inequalities at the end of a text, one of which holds."""
_ABOUT = re.compile(r"[,(]\s*(?:(?:which|that)\s+is\s+|or\s+)?(?:about|approximately|roughly|around)\b")
_APPROXIMATES = re.compile(
    r"\s*(?:\(?\s*(?:≈|\\approx(?![a-z]))|[,(]\s*(?:(?:which|that)\s+is\s+|or\s+)?(?:about|approximately|roughly"
    r"|around)\b)[\s$]*(-?\d[\d,.]*%?)\$?(?:\s?[A-Za-z²³/]{1,15}){0,3}[)$.]*$"
)
"""An approximation at the end of a sentence."""
_ENDS_WITH_VALUE = re.compile(r"(?:[\d)}π$!²³%]|[\dπ] ?[a-z]{1,3})$")
_EXACT = re.compile(r"[/\\π√^!²³]|\be\b")
"""A sign of a value that is no decimal."""
_ALONE = re.compile(r"(?<![\w)}\]+*/^\xd7·-])(?<![-+*/^\xd7·]\s)[A-Za-z]\w*\s*=")
"""A variable alone on the left of an equation."""
_NEGATIVE = re.compile(r"\bnegative\s+(?=\d)|(?<=\bis )minus\s+(?=\d)", re.IGNORECASE)


_may_be_negative = WordParts(("negative", "minus"))
_may_approximate = WordParts(("about", "approx", "rough", "around", "≈"))


def values(sentence: str, *, stated: bool) -> list[str]:
    """The value of a sentence, in every way it may be read: of a statement the first one, else the last."""
    plain = _plain(sentence)
    if plain.isalpha():
        return [plain]
    if (rest := prose.after_wrong(plain)) is not None:
        return values(rest, stated=False) if any(map(str.isdigit, rest)) else []
    if (rest := rejected.after_rejection(plain)) is not None:
        return values(rest, stated=False) if any(map(str.isdigit, rest)) else []
    if not stated and (rest := _concluded(plain)):
        return values(rest, stated=False)
    if (approximate := _approximated(plain, stated=stated)) is not None:
        return approximate
    if (number := _worded(plain)) is not None:
        return [number]
    if ("which" in plain or "that" in plain) and (evaluated := _EVALUATED.search(plain)) is not None:
        return _plain_value(evaluated[1], stated=True)
    text = prose.without_explanation(plain, lead=stated)
    if not stated:
        spans = [_plain(span) for span in map(_content, BOLD.finditer(sentence)) if re.search(r"[\d$\\]", span)]
        if spans:
            return _bold(text, [span.strip(" :.") for span in spans])
    return [] if prose.changes_value(text) else _value(text, stated=stated)


def _concluded(text: str) -> str:
    """The text after the last sign for "therefore", if it has a number."""
    if "∴" not in text and "\\therefore" not in text:
        return ""
    rest = re.split(r"∴|\\therefore(?![a-z])", text)[-1].strip("$ ")
    rest = rest if "\\[" in rest or "\\(" in rest else rest.removesuffix("\\]").removesuffix("\\)")
    return rest if any(map(str.isdigit, rest)) else ""


def _approximated(text: str, *, stated: bool) -> list[str] | None:
    """The exact value and its approximation, of a sentence that ends with both: "p = 5/36 ≈ 0.139"; else None."""
    if not _may_approximate(text) or ("≈" not in text and "\\approx" not in text and not _ABOUT.search(text)):
        return None
    about = _APPROXIMATES.search(text, max(0, len(text) - _MAX_WORD))
    before = text[: about.start()].rstrip() if about else ""
    if about is None or not _ENDS_WITH_VALUE.search(before) or before.count("$") % 2:
        return None
    if "≈" in before or "\\approx" in before or _ABOUT.search(before):
        return None
    exact = values(before, stated=stated)
    if not exact:
        return [] if _EXACT.search(before) else None
    return [*exact, about[1]] if _EXACT.search(exact[0]) else None


def _worded(text: str) -> str | None:
    """The number in words that a sentence without digits and equations states."""
    if any(map(str.isdigit, text)) or "=" in text or "\\" in text:
        return None
    return number_words.stated(text)


def with_word(value: str, word: str | None) -> str:
    """The value with the word after it, if that is a unit or changes the value."""
    if not word:
        return value
    word = word.strip(" -")
    name = word if word.isalpha() else re.split(r"\W|\d| ", word.replace("²", " ").replace("³", " "), maxsplit=1)[0]
    if (name or word).lower() not in VALUE_WORDS:
        return value
    if name == word or not name:
        return f"{value} {word}"
    unit, power, exponent = word.partition("^")
    return rf"{value}\text{{ {unit}}}{power}{exponent}"


def _content(match: re.Match[str]) -> str:
    return next(filter(None, match.groups()))


def _plain(sentence: str) -> str:
    """The sentence without emphasis."""
    if "*" in sentence or "_" in sentence or "`" in sentence:
        sentence = BOLD.sub(_content, sentence)
        sentence = sentence.replace("**", "") if "**" in sentence and not re.search(r"\w\*\*\w", sentence) else sentence
    if "ratio" in sentence or "odds" in sentence:
        sentence = _RATIO.sub(r"\1:\2", sentence)
    sentence = _ARROW.sub("", sentence) if sentence.lstrip()[:1] in _ARROW_STARTS else sentence
    sentence = sentence.strip(" \t:#>.,;`")
    sentence = sentence if sentence.isascii() else _MINUS.sub("-", sentence)
    sentence = _NEGATIVE.sub("-", sentence) if _may_be_negative(sentence) else sentence
    return sentence.lstrip("* ").rstrip("* ") if not sentence.endswith("^*") else sentence


def _bold(text: str, spans: Sequence[str]) -> list[str]:
    """The value of the last bold text, or of all of them if they are a list."""
    span, start = spans[-1], text.rfind(spans[-1])
    before, after = prose.clause_before(text, start), text[start + len(span) :]
    if start < 0 or prose.changes_value(f"{before}{span}") or _denied(text, start, start + len(span)):
        return []
    if len(spans) > 1 and _LIST.fullmatch(text[text.rfind(spans[-2], 0, start) + len(spans[-2]) : start]):
        return [text]
    if re.match(r"\s*[\^*/+²³π!]|\s*-\s|\d", after):
        return []
    return _value(with_word(_LABEL.sub("", span) or span, _next_word(after)), stated=True)


def _denied(text: str, start: int, end: int) -> bool:
    return prose.negated_before(text, start) or prose.denied_after(text, end)


def _next_word(after: str) -> str:
    word = _NEXT_WORD.match(after)
    if word is None or word["percent"]:
        return "%" if word else ""
    if word["per"]:
        return f"{word['word']}/{word['per']}" if word["per"].lower() in VALUE_WORDS else word["word"]
    return f"{word['word']}^{'2' if word['power'] in '2²' else '3'}" if word["power"] else word["word"]


def _value(text: str, *, stated: bool) -> list[str]:
    formulas = [match for match in FORMULA.finditer(text) if not _CURRENCY.fullmatch(match[2] or "")]
    if formulas and len(text) <= MAX_CHARS:
        return _formula(text, formulas)
    text = text.replace("\\$", "").replace("$", "").strip()
    if "=" in text and not _INEQUALITY.search(text):
        right = _after_equals(text)
        if prose.negated_before(text, text.rfind("=") + 1):
            return []
        if "=" in right:
            return [right]
        return _plain_value(right, stated=stated) + ([text] if stated and right != text else [])
    return _plain_value(text, stated=stated)


def _plain_value(text: str, *, stated: bool) -> list[str]:
    """The value of text without formulas."""
    if not stated and (either := _EITHER.search(text[-_MAX_WORD:])):
        return [] if prose.negated_before(text, text.rfind(either[0])) else [either[0]]
    if not stated and (expression := last_symbolic(text)):
        denied = _denied(text, expression.start, expression.end)
        return [] if denied else [with_word(expression.value, _next_word(text[expression.end :]))]
    return _number(text, stated=stated)


def _number(text: str, *, stated: bool) -> list[str]:
    """The number of a text: of a statement the first one, else the last; the whole text if it may be more than that."""
    numbers = [
        match.span()
        for match in _NUMBER.finditer(text)
        if not (match[0][0] == "-" and text[: match.start()].rstrip()[-1:].isdigit())
    ]
    if not numbers or (stated and _SYMBOLS.search(text)) or _SIGNS.search(text):
        return _unnumbered(text, stated=stated)
    index = 0 if stated else len(numbers) - 1
    start, end = numbers[index]
    if text[start:end] == text:
        return [text]
    if prose.negated_before(text, start):
        return []
    listed = _list_around(text, numbers, index)
    if listed is not None:
        return [] if prose.negated_before(text, text.find(listed)) else [listed]
    if stated and len(numbers) > 1:
        between = text[end : numbers[1][0]]
        if not re.search(r"[A-Za-z]{2,}", between) or _OPERATOR.search(between):
            return [text]
    if _denied(text, start, end) or (not stated and _RANGE.fullmatch(text[numbers[index - 1][1] : start])):
        return []
    if _CONTINUES.match(text, end):
        return [text] if stated else []
    value = with_word(text[start:end], _next_word(text[end:]))
    return [value, text] if stated else [value]


def _unnumbered(text: str, *, stated: bool) -> list[str]:
    """Text that has no plain number, as a whole, and the expression or the word in it that may be its value."""
    expression = leading_symbolic(text) if stated else None
    after = text[expression.end :] if expression else ""
    if expression and re.match(r"\s+[A-Za-z]{2}", after) and not _OPERATOR.match(after.lstrip()):
        return [expression.value, text]
    return [text, *stated_word(text)] if text else []


def stated_word(text: str) -> list[str]:
    """The word at the end of a sentence that says what something is: "the number is even"."""
    word = _STATED_WORD.search(text[-_MAX_WORD:])
    if word is None or prose.has_negation(prose.clause_before(text, len(text) - len(word[0]))):
        return []
    return [word[1]]


def _list_around(text: str, numbers: Sequence[tuple[int, int]], index: int) -> str | None:
    """The list that a number belongs to, with its brackets; None if it is alone."""
    low = high = index
    while low > 0 and _LIST.fullmatch(text[numbers[low - 1][1] : numbers[low][0]]):
        low -= 1
    while high + 1 < len(numbers) and _LIST.fullmatch(text[numbers[high][1] : numbers[high + 1][0]]):
        high += 1
    if low == high:
        return None
    start, end = numbers[low][0], numbers[high][1]
    bracketed = text[start - 1 : start] in ("(", "[", "{") and text[end : end + 1] in (")", "]", "}")
    return text[start - 1 : end + 1] if bracketed else text[start:end]


def _after_equals(text: str) -> str:
    """The text after the last equals sign; the whole for a list of equations such as `x = 1 or x = 2`."""
    left, _, right = text.rpartition("=")
    if not right.strip():
        return text
    if "=" in left and (joined := re.search(r"(\bor|\band|,)\s*[A-Za-z]\w*\s*$", left)):
        start = _ALONE.search(left)
        return text[start.start() :] if start else text if joined[1] == "or" else right.strip()
    return right.strip()


def _formula(text: str, formulas: Sequence[re.Match[str]]) -> list[str]:
    """The last formula, or all that are joined as a list; with text around them that belongs to the value."""
    contents = [_content(match).strip() for match in formulas]
    if gets := _GETS.match(text, formulas[-1].end()):
        return _plain_value(gets[1], stated=True)
    pattern = _SOLVES if "=" in contents[-1] else _STATES_NUMBER
    if states := pattern.match(text, formulas[-1].end()):
        return _plain_value(text[states.end() :], stated=True)
    last, start = formulas[-1], len(formulas) - 1
    while start > 0 and _LIST.fullmatch(text[formulas[start - 1].end() : formulas[start].start()]):
        start -= 1
    if start == len(formulas) - 1 and _extends(text, last):
        return [FORMULA.sub(_content, text)]
    if _denied(text, formulas[start].start(), last.end()):
        return []
    if start < len(formulas) - 1:
        between = text[formulas[-2].end() : last.start()]
        return [(" or " if re.search(r"\bor\b", between) else ", ").join(contents[start:])]
    return [with_word(contents[-1], _next_word(text[last.end() :]))]


def _extends(text: str, formula: re.Match[str]) -> bool:
    """Whether a number or an operator next to the formula belongs to the value."""
    return bool(
        re.match(r"\s*(?:[-+*/^=<>±(]|(?:or|and|to|,)\s*[-\d])", text[formula.end() :])
        or re.search(r"(?:[-+*/^<>±√)=]|\d\s*(?:or|and|to|,))\s*$", text[: formula.start()])
    )
