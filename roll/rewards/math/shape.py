"""Shapes of answers: equations, lists, bases, intervals and numeric expressions; they limit what algebra compares."""

from __future__ import annotations

import re
from dataclasses import replace

from roll.rewards.math.notation import Answer
from roll.rewards.math.units import KNOWN

_BASES: dict[str, int] = {
    **{
        "two": 2,
        "three": 3,
        "four": 4,
        "five": 5,
        "six": 6,
        "seven": 7,
        "eight": 8,
        "nine": 9,
        "ten": 10,
        "eleven": 11,
    },
    **{"twelve": 12, "sixteen": 16},
}
_BASED = re.compile(
    r"\(?(?P<digits>[\dA-F.]+)\)?(?:_(?:\{?\(?(?:\\text\{)?(?P<index>\w+?)\}?\)?\}?)"
    r"|\(?(?:\\text\{)?\(?(?:in)?base\}?(?P<word>\w+?)\)?\}?)"
)
_NAME = r"(?:\\text\{[^{}]*\}|\\?[A-Za-z]++)++(?:_(?:\w|\{[^{}]*\}))?'*(?:\([^()]*\)|\[[^\[\]]*\]|\{[^{}]*\})?"
_NAMES = re.compile(rf"(?:{_NAME}|\|{_NAME}\||\((?:{_NAME},?)++\))(?:={_NAME})?")
_CONSTANT = re.compile(r"\d|\\(?:pi|sqrt|ln|log)(?![a-z])|^e$")
_VARIABLE = re.compile(r"\\[A-Za-z]+|[A-Za-z]")
_NOT_EQUATION = re.compile(r"[<>]|!=|\\(?:neq?|not|leq?|geq?|equiv|sim|to)(?![a-z])|\\not")
_SEPARATOR = re.compile(
    r"\s*(?:,?\s*\\text\s*\{\s*,?\s*(?:and|or)\s*,?\s*\}|,?\s*\b(?:and|or)\b|[,;]|\\(?:lor|vee)(?![a-z]))\s*"
)
_MEMBER = re.compile(r"^\s*[A-Za-z]\s*\\in\s*")
_BUILT = re.compile(
    r"\\?\{\s*\(?[a-zA-Z]\s*(?:\\in\s*(?:\\mathbb\s*(?:\{R\}|R)|\\R|R|\u211d)\s*)?\)?\s*"
    r"(?:\\(?:mid|vert|colon)(?![a-z])|\\?\||:)(?P<condition>[^{}|]*(?:\{[^{}|]*\}[^{}|]*)*)\\?\}"
)
_EQUAL_FORMS = re.compile(r"(?P<one>[^()]+?) \( ?(?:or |= ?|i\.e\.,? )?(?P<other>[^()]+)\)")
_SET = re.compile(r"\s*\\\{(.*)\\\}\s*", re.DOTALL)
_ASSIGNED = re.compile(r"\s*([A-Za-z](?:_\w|_\{\w+\})?)\s*=\s*(?=\S)(?!.*=)")
_LESS, _MORE = r"(?:\\leq?(?:slant)?|<)", r"(?:\\geq?(?:slant)?|>)"
_BOUNDED = re.compile(rf"(?P<low>[^<>=]+?)(?P<left>{_LESS})[a-zA-Z](?P<right>{_LESS})(?P<high>[^<>=]+)")
_HALF = re.compile(rf"[a-zA-Z](?:(?P<less>{_LESS})|(?P<more>{_MORE}))(?P<bound>[^<>=]+)")
_ABSOLUTE = re.compile(rf"\|[a-zA-Z]\|(?P<sign>{_LESS})(?P<bound>[\d./]+)")
_INTERVAL = re.compile(r"[(\[][^()\[\]]+,[^()\[\]]+[)\]]")
_TUPLE = re.compile(r"[(\[](?:[^()\[\]{},]|\{[^{}]*\})+(?:,(?:[^()\[\]{},]|\{[^{}]*\})+)+[)\]]")
_OR = re.compile(r"\s*(?:\\text ?\{ ?or ?\}|\bor\b|\\(?:lor|vee)(?![a-z]))\s*")
_APPROXIMATELY = re.compile(r"\s*\\(?:approx|simeq|cong)(?![a-z])\s*")
_INDEXED = re.compile(r"\\(?:sum|prod|int|lim|max|min|binom|operatorname|begin)(?![a-z])")
_COMMANDS = re.compile(
    r"\\(?:frac|sqrt|cdots?|times|div|over|pi|left|right|infty|choose|lfloor|rfloor|lceil|rceil|vert|lvert|rvert"
    r"|mid|ast"
    r"|log|ln|lg|exp|(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|[dt]?binom|overline|overset|ldots|dots|phi|circ|degree"
    r"|gcd|bar|dot"
    r"|lbrace|rbrace|text ?\{ ?\})(?![a-zA-Z])"
    r"|\b(?:pi|sqrt|log|ln|sin|cos|tan|exp)\b|(?<![A-Za-z\\])[ei](?![A-Za-z])"
)
_NOT_NUMERIC = re.compile(r"[A-Za-z_,;:=<>&]|\d\s+\d|\d\s*'|\d\s*\|\s*\d|\\[%\\]")
_SINGLE_UNIT = re.compile(r"(?<=\d) [A-Za-z]$")


def same_base(gold: str, answer: str) -> bool | None:
    """Whether numbers with a base are equal; None if neither has one. A gold base may be left out, others may not.

    Of an equation such as `60_7 = 52_8`, the right side counts.
    """
    answer = answer if _NOT_EQUATION.search(answer) else answer.rpartition("=")[2]
    digits, base = _read_base(gold)
    other_digits, other_base = _read_base(answer)
    if base is None and other_base is None:
        return None
    if base is None and other_base != "10":
        return False
    return digits.lstrip("0") == other_digits.lstrip("0") and (other_base is None or base is None or base == other_base)


def _read_base(text: str) -> tuple[str, str | None]:
    match = _BASED.fullmatch(text)
    if match is None:
        return text, None
    base = (match["index"] or match["word"]).lower()
    return match["digits"], str(_BASES.get(base, base))


def right_sides(gold: Answer, answer: Answer) -> tuple[Answer, Answer | None]:
    """Both answers without the left sides of equations that only name the value; None if the answer is unsolved."""
    name, value = _split_equation(gold)
    other_name, other_value = _split_equation(answer)
    if name is None and other_name is None:
        return gold, answer
    if name is None and other_name is not None:
        return gold, other_value if _names_value(other_name, other_value.compact) else None
    if other_name is None:
        return (value, answer) if _NAMES.fullmatch(name or "") else (gold, answer)
    return (value, other_value) if name == other_name else (gold, answer)


def _split_equation(answer: Answer) -> tuple[str | None, Answer]:
    """The left side of the last equals sign, None without one, and the rest."""
    if "=" not in answer.compact or _NOT_EQUATION.search(answer.latex) or len(split_list(answer)) > 1:
        return None, answer
    left, _, right = answer.compact.rpartition("=")
    if left.count("{") != left.count("}") or left.count("(") != left.count(")") or not right:
        return None, answer
    return left, replace(answer, compact=right, latex=answer.latex.rpartition("=")[2].strip())


def _names_value(left: str, right: str) -> bool:
    """Whether the left side of an equation is the quantity asked for, not an equation that is still to be solved."""
    if _NAMES.fullmatch(left):
        return True
    if re.fullmatch(r"[-+]?[\d.]+", left):
        return left == right
    first, chained, _ = left.partition("=")
    if chained and _NAMES.fullmatch(first):
        return True
    variables = _variables(left)
    return len(variables) != 1 or variables <= _variables(right)  # (x - 1)(x + 1) = x^2 - 1 is no equation to solve


def _variables(text: str) -> set[str]:
    return {match[0] for match in _VARIABLE.finditer(_COMMANDS.sub(" ", text))}


def approximation(answer: Answer) -> tuple[Answer | None, Answer] | None:
    """The two sides of `1/3 \\approx 0.333`, the first one None if it only names the value; None for other answers."""
    parts = _APPROXIMATELY.split(answer.latex) if "\\" in answer.latex else []
    if len(parts) != 2 or not all(parts):
        return None
    left, right = (replace(answer, latex=part, compact=part.replace(" ", "")) for part in parts)
    return (None if _NAMES.fullmatch(left.compact) and not _CONSTANT.search(left.compact) else left), right


def same_form(gold: Answer, answer: Answer) -> tuple[Answer, Answer]:
    """Both answers as tuples where one is a tuple and the other `x = 1, y = 2`; as unions likewise."""
    return _in_form_of(answer, gold), _in_form_of(gold, answer)


def _in_form_of(model: Answer, answer: Answer) -> Answer:
    text = answer.latex
    if "=" in text and _TUPLE.fullmatch(model.compact):
        parts = [part.replace(" ", "") for part in _SEPARATOR.split(text) if part.strip()]
        matches = [_ASSIGNED.match(part) for part in parts]
        names = [match[1] for match in matches if match]
        if len(set(names)) == len(parts) > 1:
            by_name = sorted(
                (match[1], part[match.end() :]) for part, match in zip(parts, matches, strict=True) if match
            )
            values = [value for _, value in by_name]
            text = f"({','.join(values)})"
    elif r"\cup" in model.compact and _OR.search(text):
        parts = [replace(answer, latex=part, compact=part.replace(" ", "")) for part in _OR.split(text)]
        text = r" \cup ".join(_as_interval(part).latex for part in parts)
    return answer if text is answer.latex else replace(answer, latex=text, compact=text.replace(" ", ""))


def alternatives(answer: Answer) -> list[str]:
    """The forms of one value: `1/2 or 0.5`, `1/2 (0.5)`; else empty."""
    latex = re.sub(r"\\text ?\{ ?(\(?(?:or)?) ?\}", r" \1 ", answer.latex) if "\\text" in answer.latex else answer.latex
    forms = _EQUAL_FORMS.fullmatch(re.sub(r"\s+", " ", latex))
    parts = list(forms.groups()) if forms else _OR.split(latex)
    return [part.strip(" ,") for part in parts] if len(parts) > 1 and all(part.strip(" ,") for part in parts) else []


def _unbuilt(answer: Answer) -> Answer:
    """The condition of a set such as `{x | x < 2}`."""
    built = _BUILT.fullmatch(answer.latex) if "{" in answer.latex else None
    if built is None:
        return answer
    condition = built["condition"].removesuffix("\\").strip()
    return replace(answer, latex=condition, compact=condition.replace(" ", ""))


def same_relation(gold: Answer, answer: Answer) -> tuple[Answer, Answer]:
    """Both answers as intervals where one is an interval and the other an inequality."""
    gold, answer = _unbuilt(gold), _unbuilt(answer)
    gold, answer = (
        replace(each, compact=_MEMBER.sub("", each.latex).replace(" ", ""), latex=_MEMBER.sub("", each.latex))
        if r"\in" in each.latex and _MEMBER.match(each.latex)
        else each
        for each in (gold, answer)
    )
    if _INTERVAL.fullmatch(gold.compact):
        return gold, _as_interval(answer)
    if _INTERVAL.fullmatch(answer.compact):
        return _as_interval(gold), answer
    return gold, answer


def _as_interval(answer: Answer) -> Answer:
    if match := _BOUNDED.fullmatch(answer.compact):
        low, high = match["low"], match["high"]
        text = f"{'(' if match['left'] == '<' else '['}{low},{high}{')' if match['right'] == '<' else ']'}"
    elif match := _ABSOLUTE.fullmatch(answer.compact):
        opening, closing = ("(", ")") if match["sign"] == "<" else ("[", "]")
        text = f"{opening}-{match['bound']},{match['bound']}{closing}"
    elif match := _HALF.fullmatch(answer.compact):
        sign, bound = match["less"] or match["more"], match["bound"]
        strict = sign in ("<", ">")
        ends = rf"(-\infty,{bound}" if match["less"] else rf"{bound},\infty)"
        text = ends + (")" if strict else "]") if match["less"] else ("(" if strict else "[") + ends
    else:
        return answer
    return replace(answer, latex=text, compact=text)


def split_list(answer: Answer) -> list[str]:
    """The parts of a list or set of values, compact and without a variable that all are assigned to; else one part."""
    text = answer.latex
    inner = _SET.fullmatch(text)
    body = inner[1] if inner else _strip_assignment(text)
    if not _SEPARATOR.search(body):
        return [answer.compact]
    parts = [part.replace(" ", "") for part in _SEPARATOR.split(body) if part.strip()]
    if any(_unbalanced(part) for part in parts):
        return [answer.compact]
    names = {match[1] for part in parts if (match := _ASSIGNED.match(part))}
    return [_ASSIGNED.sub("", part) for part in parts] if len(names) == 1 else parts


def _strip_assignment(text: str) -> str:
    """The text after `x =`, if the rest is no further equation, so that `x = 1, 2` is a list of two."""
    match = _ASSIGNED.match(text)
    return text[match.end() :] if match else text


def _unbalanced(text: str) -> bool:
    return (
        sum(map(text.count, "([{")) != sum(map(text.count, ")]}"))
        or text.count(r"\begin") != text.count(r"\end")
        or text.count("|") % 2 == 1
    )


def is_set(latex: str) -> bool:
    """Whether the answer is written as a set."""
    return _SET.fullmatch(latex) is not None


def same_brackets(one: str, other: str) -> bool:
    """Whether two tuples or intervals have the same brackets; True for anything else."""
    if not (_INTERVAL.fullmatch(one) and _INTERVAL.fullmatch(other)):
        return True
    return one[0] + one[-1] == other[0] + other[-1]


def as_set(parts: list[str]) -> str:
    """The parts as a set in LaTeX."""
    return rf"\{{{', '.join(parts)}\}}"


def is_numeric(latex: str) -> bool:
    """Whether an answer can equal a number: no variables, words, lists, joined digits or subscripts."""
    if _INDEXED.search(latex):
        return True
    unit = _SINGLE_UNIT.search(latex)
    if unit and unit[0].strip() in KNOWN:
        latex = latex[: unit.start()]
    text = re.sub(r"(\\log)\s*_\s*(?:\{[^{}A-Za-z]*\}|\d)", r"\1", latex)
    return _NOT_NUMERIC.search(_COMMANDS.sub(" @ ", text)) is None


def is_word(latex: str) -> bool:
    """Whether an answer is words only."""
    return re.fullmatch(r"\\text ?\{[A-Za-z ]{3,}\}|[A-Za-z]{3,}(?: [A-Za-z]+)*", latex) is not None
