"""Multiple choice: the option a reply commits to last, by its letter or by its text.

Read are, the later of them first, a box and a statement ("the answer is (B)", "Answer: B"); without either, the lines
at the end ("B", "B. 12 m", "So it must be C."). Two options claimed in one breath are no answer.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from roll.errors import ConfigError
from roll.rewards.reply import boxes, spoken
from roll.types import Score, Task

_LONGEST = 400
"""Characters of a claim that are read."""
_MOST_CLAIMS = 20
"""Statements that are tried, from the last one back, until one names an option."""
_UNLISTED = "ABCDEFGHIJ"
"""The letters that may be claimed where the task does not list its options."""

_STATED = re.compile(
    r"\b(?:answer|option|choice)(?:\s{1,3}(?:is|was|would be|should be|must be)\b|[\s*_]{0,4}[:=])"
    r"|答案[\s*]{0,4}(?:是|为|為|[:])?|故选|故選",
    re.IGNORECASE,
)
_WRAPPED = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mathit|mathsf|operatorname)[ ]{0,3}\{([^{}]*)\}")
_NARROW = {**{code + 0xFEE0: code for code in range(0x21, 0x7F)}, 0x2019: 0x27}
"""Wide forms of ASCII, as written between Chinese characters, and the typographic apostrophe."""
_MARKUP = re.compile(r"\\[()\[\]!,;: ]|[*$`\"“”]|</?answer>")
_WORDY = r"0-9A-Za-zÀ-ɏ'"
_LETTER = re.compile(rf"(?<![{_WORDY}\\])([(\[]?)([A-Za-z])([)\]]?)(?!-?[{_WORDY}])")
_BETWEEN = re.compile(r"(?:[\s,;/&+、]|\band\b|\bor\b|和|或)+")
_DELIMITED = re.compile(r"\s*[.:,;)\]-]|\s*$")
_ARTICLE = re.compile(r"\s+(?!(?:or|and|is|was|fits)\b)[a-z]")
_SENTENCE = re.compile(r"[.!?](?:\s|$)|\u3002")
_LABEL = re.compile(r"\s*[(\[]?([A-Za-z])[)\].:]\s*")
_LEADING = " \t\r\n:={_-"
"""What may stand between a statement and what it states."""
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3})")


def score(task: Task, reply: str, *, options: Any = None) -> Score:
    """1 if the one option that the reply commits to is the task's answer, else 0.

    Options are a list of texts, each with its letter or without ("A) 12", "12"), or a mapping of letters to texts; the
    task's own, its field `options`, where none are given. The answer is a letter or an option's text.
    """
    texts = _texts(task, task.metadata.get("options") if options is None else options)
    text = spoken(reply).translate(_NARROW)
    claimed = _claimed(text, texts) or _at_the_end(text, texts)
    return Score(float(claimed == {_gold(task, texts)}))


def answer_of(reply: str) -> str | None:
    """The letter that a reply commits to, A to J, else the text it gives in place of one; None where it gives neither.

    The task's options are not known here, so that a letter and the text it stands for are two answers.
    """
    text, texts = spoken(reply).translate(_NARROW), dict.fromkeys(_UNLISTED, "")
    claims = next(_claims(text), list[str]())
    letters = _claimed(text, texts) if claims else _at_the_end(text, texts)
    if letters:
        return letters.pop() if len(letters) == 1 else None
    claim = claims[-1] if claims else text.rstrip().rpartition("\n")[2][:_LONGEST]
    line = _cleaned(claim).lstrip(_LEADING).partition("\n")[0]
    return _comparable(_SENTENCE.split(line, maxsplit=1)[0]) or None


def _texts(task: Task, options: Any) -> dict[str, str]:
    """By letter: the option's text, comparable; empty texts where the options are not listed."""
    if options is None:
        return dict.fromkeys(_UNLISTED, "")
    if isinstance(options, Mapping):
        given = cast(Mapping[Any, Any], options)
        pairs = [(str(letter).strip().upper(), str(text)) for letter, text in given.items()]
    elif isinstance(options, Sequence) and not isinstance(options, str):
        pairs = _lettered([str(text) for text in cast(Sequence[Any], options)])
    else:
        pairs = []
    letters = [letter for letter, _ in pairs]
    if not 2 <= len(pairs) <= 26 or len(set(letters)) < len(pairs) or not set(letters) <= set(string.ascii_uppercase):
        raise ConfigError(
            f"task {task.id!r}: options are not 2 to 26 texts (got {options!r}); list them, or map letters to them"
        )
    return {letter: _comparable(text) for letter, text in pairs}


def _lettered(texts: list[str]) -> list[tuple[str, str]]:
    labels = [_LABEL.match(text) for text in texts]
    stated = [label[1].upper() for label in labels if label is not None]
    if stated == list(string.ascii_uppercase[: len(texts)]):
        return [
            (letter, text[label.end() :])
            for letter, text, label in zip(stated, texts, labels, strict=True)
            if label is not None
        ]
    return list(zip(string.ascii_uppercase, texts, strict=False)) if len(texts) <= 26 else []


def _gold(task: Task, texts: dict[str, str]) -> str:
    answer = str(task.answer).strip()
    letter = answer.strip("()[].: ").upper()
    found = letter if letter in texts else _owner(answer, texts)
    if task.answer is None or found is None:
        raise ConfigError(
            f"task {task.id!r}: the answer is none of its options (got {task.answer!r}); write one of them"
        )
    return found


def _claimed(text: str, texts: dict[str, str]) -> set[str]:
    """The letters of the last box or statement that has any; more than one where it claims several at once."""
    for claims in _claims(text):
        found = {letter for claim in claims for letter in _named(claim, texts)}
        if found:
            return found
    return set()


def _claims(text: str) -> Iterator[list[str]]:
    """What stands in boxes and after statements, from the last one back; boxes side by side are one claim."""
    grouped: list[tuple[int, int, list[str]]] = []
    for box in boxes(text)[-_MOST_CLAIMS:]:
        if grouped and not _BETWEEN.sub("", _cleaned(text[grouped[-1][1] : box.start][:_LONGEST])):
            start, _, inside = grouped.pop()
            grouped.append((start, box.end, [*inside, box.content[:_LONGEST]]))
        else:
            grouped.append((box.start, box.end, [box.content[:_LONGEST]]))
    stated = [(cue.end(), cue.end(), [text[cue.end() : cue.end() + _LONGEST]]) for cue in _STATED.finditer(text)]
    for _, _, claims in sorted(grouped + stated, key=lambda claim: claim[0], reverse=True)[:_MOST_CLAIMS]:
        yield claims


def _named(claim: str, texts: dict[str, str]) -> set[str]:
    """The letters of the options that a claim begins with, is the text of, or else has in its first sentence."""
    line = _cleaned(claim).lstrip(_LEADING).partition("\n")[0]
    if line[:4].casefold() in ("not ", "not:"):
        return set()
    sentence = _SENTENCE.split(line, maxsplit=1)[0]
    owner = _owner(line, texts) or _owner(sentence, texts)
    if owner is not None:
        return {owner}
    head, rest = _head(line, texts)
    if head:
        other = _owner(rest, texts)
        return head if other is None else head | {other}
    return _alone(sentence, texts)


def _head(line: str, texts: dict[str, str]) -> tuple[set[str], str]:
    """The letters that a line begins with, and what follows them."""
    found: set[str] = set()
    at = end = 0
    while (letter := _LETTER.match(line, at)) and _stands(letter, line) and letter[2].upper() in texts:
        found.add(letter[2].upper())
        between = _BETWEEN.match(line, letter.end())
        at, end = between.end() if between else letter.end(), letter.end()
        if between is None:
            break
    return found, line[end:]


def _stands(letter: re.Match[str], line: str) -> bool:
    """Whether a letter is meant as a letter: "a bit" and "I think" are words."""
    marked = bool(letter[1] or letter[3]) or _DELIMITED.match(line, letter.end()) is not None
    return marked or (letter[2].isupper() and not (letter[2] == "I" and _ARTICLE.match(line, letter.end())))


def _alone(sentence: str, texts: dict[str, str]) -> set[str]:
    """Capital letters that stand alone in a sentence and are not denied; "A house" and "not B" have none."""
    found: set[str] = set()
    for letter in _LETTER.finditer(sentence):
        word = letter[2] in "AI" and not (letter[1] or letter[3]) and _ARTICLE.match(sentence, letter.end())
        denied = sentence[: letter.start()][-8:].rstrip().casefold().endswith(("not", "n't"))
        if letter[2] in texts and not word and not denied:
            found.add(letter[2])
    return found


def _at_the_end(text: str, texts: dict[str, str]) -> set[str]:
    """What the last lines claim: bare options one below the other together, else what the last line says."""
    lines = [_cleaned(line).strip() for line in text[-4 * _LONGEST :].rstrip().split("\n")]
    found: set[str] = set()
    for line in reversed(lines):
        bare = _bare(line, texts)
        if not bare:
            break
        found |= bare
    if found or not lines:
        return found
    label = _LABEL.match(lines[-1])
    if label is not None and label[1].isupper() and label[1] in texts:
        return {label[1]}
    return _alone(lines[-1], texts)


def _bare(line: str, texts: dict[str, str]) -> set[str]:
    """The options of a line that holds nothing but letters and their texts; empty for any other line."""
    owner = _owner(line, texts)
    if owner is not None:
        return {owner}
    head, rest = _head(line, texts)
    other = _owner(rest, texts)
    if other is not None:
        return head | {other}
    return head if not _comparable(rest) else set()


def _owner(text: str, texts: dict[str, str]) -> str | None:
    """The letter of the one option whose text this is; single letters are not texts."""
    wanted = _comparable(text[: 2 * _LONGEST])
    if not wanted or (len(wanted) == 1 and wanted.upper() in texts):
        return None
    owners = [letter for letter, option in texts.items() if option == wanted]
    return owners[0] if len(owners) == 1 else None


def _cleaned(text: str) -> str:
    return _MARKUP.sub("", _WRAPPED.sub(r"\1", text))


def _comparable(text: str) -> str:
    return _THOUSANDS.sub("", " ".join(_cleaned(text).casefold().split())).strip(" .,:;)(][-")
