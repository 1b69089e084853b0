"""The options of a task: their letters, their texts, and which option a text equals."""

from __future__ import annotations

import functools
import re
import string
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from roll.errors import ConfigError
from roll.rewards.choice.surface import plain
from roll.types import Task

_DEFAULT_LETTERS = "ABCDEFGHIJ"
"""Letters of the options if the task does not list them."""
_LABEL = re.compile(r"\s*[(\[]?([A-Za-z])[)\].:]\s*")
_TIGHT = re.compile(r"\s*([,;:()\[\]{}=+*/^<>≤≥≠±|-])\s*")
_THOUSANDS = re.compile(r"(?<=\d)[, ](?=\d{3}(?!\d))")
_ACCENT = re.compile("[\u0300-\u036f]")
_POSSESSIVE = re.compile(r"(?<=[^\W\d_]{2})'(?=s(?!\w))")
_UNIT_GAP = re.compile(r"(?<=\d)\s+(?=%|[^\W\d_]{1,4}(?![^\W\d_]))")
_ARTICLE = re.compile(r"(?:the|an|a) ")
_TOKEN = re.compile(r"\d+|[^\W\d_]+|\S")
_MAX_TEXT_CHARS = 400
_NUMBER_START = re.compile(r"[\d.√(\[]")
_DASHED_LABEL = re.compile(r"(?<![A-Za-z0-9])[(\[]?[A-Z][)\].]? - $")
_OPERATOR_BEFORE = re.compile(r"[-+*/<^.,]$|[-+*/<^] $|(?<![-=])> ?$")
_OPERATOR_AFTER = re.compile(r"\s?[-+*/=^<>]\s?(?:[\d(√.-]|[A-Za-z]\b)")
_PART_BEFORE = re.compile(r"[\w^√\\'+-]$")
_PART_AFTER = re.compile(r"\w|'\w|[-/^]\w|[.,]\d")
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
_POSITION = re.compile(
    rf"(?<![A-Za-z])the ({'|'.join(_ORDINALS)}|last) (?:(?:option|choice|alternative|answer choice)(?![A-Za-z])"
    r"|(?:one|answer)(?=\s*(?:[.,;!]|$)))",
    re.IGNORECASE,
)
_SLASHED = re.compile(r"(?<![\w/(])\(?([A-Z])\)?\s?/\s?(?=\S)")
_AFTER_TEXT = re.compile(
    r"\s*$|\s*[.,;:!?)\]](?!\d)|\s*⟧|\s*\(|\s+-\s|\s+[✓✗]|\s*/\s*[A-Z]\b"
    r"|\s+(?:because|since|as|which|is|isn't|was|wasn't|are|aren't|seems|must|would|should|can|cannot|can't|does"
    r"|doesn't"
    r"|and|or|nor|but|not|for|given|due|by|when|if|rather|instead|it|fits|works|wins|remains|fails|over|then|so|who|unless|while|whereas|though|although"
    r"|therefore)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class TextSpan:
    """A place in a text where the text of one option is written."""

    start: int
    end: int
    letter: str


class OptionTexts:
    """Letters with their texts in plain spelling; texts are empty if the task does not list them."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = {letter: _tidy(text) for letter, text in texts.items()}
        self._stages = [self._index(key) for key in _KEYS]
        alternatives = sorted({text for text in self.texts.values() if self._is_text(text)}, key=len, reverse=True)
        pattern = "|".join(_flexible(text) for text in alternatives)
        self._pattern = re.compile(pattern, re.IGNORECASE) if pattern else None

    def match(self, text: str) -> str | None:
        """The letter of the only option with this text; a single letter is not a text."""
        target = _tidy(text[: 2 * _MAX_TEXT_CHARS])
        if not self._is_text(target):
            return None
        for key, index in zip(_KEYS, self._stages, strict=True):
            letters = index.get(key(target), "")
            if letters:
                return letters if len(letters) == 1 else None
        return None

    def spans(self, text: str) -> Iterator[TextSpan]:
        """The places where an option's whole text is written; "5" is not in "-5", "5.2", "5 m" or "(5, 7)"."""
        if self._pattern is None:
            return
        for match in self._pattern.finditer(text):
            alone = _stands_alone(text, match.start(), match.end())
            letter = self.match(match[0]) if alone else None
            if letter is not None:
                yield TextSpan(match.start(), match.end(), letter)

    def written(self, text: str) -> Iterator[TextSpan]:
        """The places where an option's whole text is written, whatever word follows; not within a number or a word."""
        for match in self._pattern.finditer(text) if self._pattern is not None else ():
            numeric = _NUMBER_START.match(text, match.start()) is not None
            part = _PART_BEFORE.search(text[max(0, match.start() - 2) : match.start()]) or _PART_AFTER.match(
                text, match.end()
            )
            operated = numeric and (_operated_before(text, match.start()) or _OPERATOR_AFTER.match(text, match.end()))
            letter = None if part or operated else self.match(match[0])
            if letter is not None:
                yield TextSpan(match.start(), match.end(), letter)

    def _is_text(self, text: str) -> bool:
        return bool(text) and not (len(text) == 1 and text.upper() in self.texts)

    def _index(self, key: Callable[[str], str]) -> dict[str, str]:
        index: dict[str, str] = {}
        for letter, text in self.texts.items():
            if self._is_text(text):
                index[key(text)] = index.get(key(text), "") + letter
        return index


def parse_options(task: Task, options: Any) -> OptionTexts:
    """The options of a task; letters A to J without texts if they are not listed."""
    if options is None:
        return UNLISTED
    if isinstance(options, Mapping):
        entries = cast(Mapping[Any, Any], options).items()
        pairs = [(str(letter).strip().upper(), str(text)) for letter, text in entries]
    elif isinstance(options, Sequence) and not isinstance(options, str):
        pairs = _split_letters([str(text) for text in cast(Sequence[Any], options)])
    else:
        pairs = []
    letters = [letter for letter, _ in pairs]
    if not 2 <= len(pairs) <= 26 or len(set(letters)) < len(pairs) or not set(letters) <= set(string.ascii_uppercase):
        raise ConfigError(
            f"task {task.id!r}: options are not 2 to 26 texts (got {options!r}); list them, or map letters to them"
        )
    return _build(tuple(pairs))


@functools.lru_cache(maxsize=256)
def _build(pairs: tuple[tuple[str, str], ...]) -> OptionTexts:
    return OptionTexts(dict(pairs))


def with_letters(text: str, options: OptionTexts) -> str:
    """The text with "option B" in place of "the second option", and "B) red" in place of "B/red"."""
    letters = list(options.texts) if any(options.texts.values()) else []

    def letter(position: re.Match[str]) -> str:
        ordinal = position[1].lower()
        index = len(letters) - 1 if ordinal == "last" else _ORDINALS.index(ordinal)
        return f"option {letters[index]}" if index < len(letters) else position[0]

    def labelled(slash: re.Match[str]) -> str:
        named = options.texts.get(slash[1], "")
        following = text[slash.end() : slash.end() + len(named)]
        return f"{slash[1]}) " if named and following.casefold() == named.casefold() else slash[0]

    text = _POSITION.sub(letter, text) if letters else text
    return _SLASHED.sub(labelled, text) if letters else text


def gold_letter(task: Task, options: OptionTexts) -> str:
    """The letter of the task's answer, which is a letter or an option's text."""
    answer = str(task.answer).strip()
    letter = plain(answer).strip("()[].: ").upper()
    gold = letter if letter in options.texts else options.match(answer)
    if task.answer is None or gold is None:
        raise ConfigError(
            f"task {task.id!r}: the answer is none of its options (got {task.answer!r}); write one of them"
        )
    return gold


def _split_letters(texts: list[str]) -> list[tuple[str, str]]:
    labels = [_LABEL.match(text) for text in texts]
    if [label and label[1].upper() for label in labels] == list(string.ascii_uppercase[: len(texts)]):
        texts = [_LABEL.sub("", text, count=1) for text in texts]
    return list(zip(string.ascii_uppercase, texts, strict=False)) if len(texts) <= 26 else []


def _tidy(text: str) -> str:
    return " ".join(plain(text).split()).rstrip(" .,;:!").lstrip(" ,;:!")


def _exact(text: str) -> str:
    return _UNIT_GAP.sub("", _THOUSANDS.sub("", _TIGHT.sub(r"\1", text)))


def _folded(text: str) -> str:
    folded = _POSSESSIVE.sub("", _exact(text)).casefold()
    return folded if folded.isascii() else _ACCENT.sub("", unicodedata.normalize("NFD", folded))


def _without_article(text: str) -> str:
    return _ARTICLE.sub("", _folded(text), count=1) if _ARTICLE.match(_folded(text)) else _folded(text)


_KEYS = (_exact, _folded, _without_article)
"""Spellings that are compared, the strictest first: case decides only where two options differ in nothing else."""


def _flexible(text: str) -> str:
    """A pattern of an option's text with free spaces around signs and free commas in thousands."""
    pattern, before = "", ""
    for token in _TOKEN.findall(text[:_MAX_TEXT_CHARS]):
        words = before[-1:].isalnum() and token[0].isalnum()
        unit = before.isdigit() and token.isalpha() and len(token) <= 4
        space = r"\s*" if not words or unit else r"\s+" if _spaced(text, before, token) else ""
        if pattern in (r"\-", r"\+"):
            space = ""
        pattern += (space if before else "") + _digits(token)
        before = token
    return pattern + (r"(?!\d)" if before[-1:].isdigit() else "")


def _spaced(text: str, before: str, token: str) -> bool:
    return f"{before} {token}" in text


def _digits(token: str) -> str:
    if token in ",'":
        return f"{token}?"
    if not token.isdigit() or len(token) < 4:
        return re.escape(token)
    head = len(token) % 3
    groups = [token[:head]] * bool(head) + [token[at : at + 3] for at in range(head, len(token), 3)]
    return ",?".join(groups)


def _stands_alone(text: str, start: int, end: int) -> bool:
    """Whether a text is not a part of a longer word, number or formula."""
    before, numeric = text[max(0, start - 2) : start], _NUMBER_START.match(text, start) is not None
    last = before[-1:]
    if (last.isalnum() and last.isascii() and text[start].isalnum()) or (last and last in "_^√\\'-+"):
        return False
    if numeric and (_operated_before(text, start) or _OPERATOR_AFTER.match(text, end)):
        return False
    if last and last in "([{":
        closed = text[end : end + 1] == {"(": ")", "[": "]", "{": "}"}[last]
        return closed and not text[max(0, start - 2) : start - 1].isalnum()
    return _AFTER_TEXT.match(text, end) is not None


def _operated_before(text: str, start: int) -> bool:
    """Whether a sign or an operator precedes a number; the dash of "B - 12" is neither."""
    operator = _OPERATOR_BEFORE.search(text[max(0, start - 3) : start]) is not None
    return operator and _DASHED_LABEL.search(text[max(0, start - 6) : start]) is None


UNLISTED = OptionTexts(dict.fromkeys(_DEFAULT_LETTERS, ""))
"""Options of a task that does not list them: ten letters without texts."""
