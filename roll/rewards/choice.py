"""Multiple choice: the option that a response commits to last, by letter or by text.

The later of a box and a statement ("the answer is (B)", "Answer: B") counts; without either, the lines at the end
("B", "B. 12 m", "So it must be C."). Two options claimed together are no answer.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from roll.errors import ConfigError
from roll.rewards.response import answer_text, find_boxes
from roll.types import Score, Task

_MAX_CLAIM_CHARS = 400
_MAX_CLAIMS = 20
"""Statements examined, from the last backwards, until one names an option."""
_DEFAULT_LETTERS = "ABCDEFGHIJ"
"""Letters of the options if the task does not list them."""

_STATEMENT = re.compile(
    r"\b(?:answer|option|choice)(?:\s{1,3}(?:is|was|would be|should be|must be)\b|[\s*_]{0,4}[:=])"
    r"|答案[\s*]{0,4}(?:是|为|為|[:])?|故选|故選",
    re.IGNORECASE,
)
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mathit|mathsf|operatorname)[ ]{0,3}\{([^{}]*)\}")
_TO_ASCII = {**{code + 0xFEE0: code for code in range(0x21, 0x7F)}, 0x2019: 0x27}
"""Full-width ASCII, as written between Chinese characters, and the typographic apostrophe."""
_MARKUP = re.compile(r"\\[()\[\]!,;: ]|[*$`\"“”]|</?answer>")
_WORD_CHARS = r"0-9A-Za-zÀ-ɏ'"
_LETTER = re.compile(rf"(?<![{_WORD_CHARS}\\])([(\[]?)([A-Za-z])([)\]]?)(?!-?[{_WORD_CHARS}])")
_SEPARATOR = re.compile(r"(?:[\s,;/&+、]|\band\b|\bor\b|和|或)+")
_DELIMITER = re.compile(r"\s*[.:,;)\]-]|\s*$")
_ARTICLE = re.compile(r"\s+(?!(?:or|and|is|was|fits)\b)[a-z]")
_SENTENCE = re.compile(r"[.!?](?:\s|$)|\u3002")
_LABEL = re.compile(r"\s*[(\[]?([A-Za-z])[)\].:]\s*")
_LEADING_CHARS = " \t\r\n:={_-"
"""Characters allowed between a statement and its option."""
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3})")


def score(task: Task, response: str, *, options: Any = None) -> Score:
    """1 if the only option that the response commits to is the task's answer, else 0.

    Options are a list of texts, with or without letters ("A) 12", "12"), or a mapping of letters to texts. They default
    to the task's field `options`. The task's answer is a letter or an option's text.
    """
    texts = _parse_options(task, task.metadata.get("options") if options is None else options)
    text = answer_text(response).translate(_TO_ASCII)
    claimed = _last_claim(text, texts) or _final_lines(text, texts)
    return Score(float(claimed == {_gold_letter(task, texts)}))


def answer_of(response: str) -> str | None:
    """The letter that a response commits to, A to J, else the text it gives instead; None if it gives neither.

    The task's options are unknown here, so a letter and its option's text count as different answers.
    """
    text, texts = answer_text(response).translate(_TO_ASCII), dict.fromkeys(_DEFAULT_LETTERS, "")
    claims = next(_claims(text), list[str]())
    letters = _last_claim(text, texts) if claims else _final_lines(text, texts)
    if letters:
        return letters.pop() if len(letters) == 1 else None
    claim = claims[-1] if claims else text.rstrip().rpartition("\n")[2][:_MAX_CLAIM_CHARS]
    line = _strip_markup(claim).lstrip(_LEADING_CHARS).partition("\n")[0]
    return _normalise(_SENTENCE.split(line, maxsplit=1)[0]) or None


def _parse_options(task: Task, options: Any) -> dict[str, str]:
    """Normalised option texts by letter; empty texts if the options are not listed."""
    if options is None:
        return dict.fromkeys(_DEFAULT_LETTERS, "")
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
    return {letter: _normalise(text) for letter, text in pairs}


def _split_letters(texts: list[str]) -> list[tuple[str, str]]:
    labels = [_LABEL.match(text) for text in texts]
    if [label and label[1].upper() for label in labels] == list(string.ascii_uppercase[: len(texts)]):
        texts = [_LABEL.sub("", text, count=1) for text in texts]
    return list(zip(string.ascii_uppercase, texts, strict=False)) if len(texts) <= 26 else []


def _gold_letter(task: Task, texts: dict[str, str]) -> str:
    answer = str(task.answer).strip()
    letter = answer.strip("()[].: ").upper()
    gold = letter if letter in texts else _letter_of_text(answer, texts)
    if task.answer is None or gold is None:
        raise ConfigError(
            f"task {task.id!r}: the answer is none of its options (got {task.answer!r}); write one of them"
        )
    return gold


def _last_claim(text: str, texts: dict[str, str]) -> set[str]:
    """Letters of the last box or statement that names any; several if it claims several."""
    for claims in _claims(text):
        letters = {letter for claim in claims for letter in _letters_of_claim(claim, texts)}
        if letters:
            return letters
    return set()


def _claims(text: str) -> Iterator[list[str]]:
    """Contents of boxes and texts after statements, from the last backwards; adjacent boxes are one claim."""
    grouped: list[tuple[int, int, list[str]]] = []
    for box in find_boxes(text)[-_MAX_CLAIMS:]:
        if grouped and not _SEPARATOR.sub("", _strip_markup(text[grouped[-1][1] : box.start][:_MAX_CLAIM_CHARS])):
            start, _, inside = grouped.pop()
            grouped.append((start, box.end, [*inside, box.content[:_MAX_CLAIM_CHARS]]))
        else:
            grouped.append((box.start, box.end, [box.content[:_MAX_CLAIM_CHARS]]))
    statements = [
        (cue.end(), cue.end(), [text[cue.end() : cue.end() + _MAX_CLAIM_CHARS]]) for cue in _STATEMENT.finditer(text)
    ]
    for _, _, claims in sorted(grouped + statements, key=lambda claim: claim[0], reverse=True)[:_MAX_CLAIMS]:
        yield claims


def _letters_of_claim(claim: str, texts: dict[str, str]) -> set[str]:
    """Letters of the option whose text the claim is, else those it begins with, else those in its first sentence."""
    line = _strip_markup(claim).lstrip(_LEADING_CHARS).partition("\n")[0]
    if line[:4].casefold() in ("not ", "not:"):
        return set()
    sentence = _SENTENCE.split(line, maxsplit=1)[0]
    letter = _letter_of_text(line, texts) or _letter_of_text(sentence, texts)
    if letter is not None:
        return {letter}
    head, rest = _leading_letters(line, texts)
    if head:
        other = _letter_of_text(rest, texts)
        return head if other is None else head | {other}
    return _isolated_letters(sentence, texts)


def _leading_letters(line: str, texts: dict[str, str]) -> tuple[set[str], str]:
    """The letters that a line begins with, and the rest of it."""
    letters: set[str] = set()
    at = end = 0
    while (letter := _LETTER.match(line, at)) and _is_letter(letter, line) and letter[2].upper() in texts:
        letters.add(letter[2].upper())
        between = _SEPARATOR.match(line, letter.end())
        at, end = between.end() if between else letter.end(), letter.end()
        if between is None:
            break
    return letters, line[end:]


def _is_letter(letter: re.Match[str], line: str) -> bool:
    """Whether a match is an option letter; "a" in "a bit" and "I" in "I think" are words."""
    marked = bool(letter[1] or letter[3]) or _DELIMITER.match(line, letter.end()) is not None
    return marked or (letter[2].isupper() and not (letter[2] == "I" and _ARTICLE.match(line, letter.end())))


def _isolated_letters(sentence: str, texts: dict[str, str]) -> set[str]:
    """Isolated capital letters of a sentence that are not negated; "A house" and "not B" have none."""
    letters: set[str] = set()
    for letter in _LETTER.finditer(sentence):
        word = letter[2] in "AI" and not (letter[1] or letter[3]) and _ARTICLE.match(sentence, letter.end())
        negated = sentence[: letter.start()][-8:].rstrip().casefold().endswith(("not", "n't"))
        if letter[2] in texts and not word and not negated:
            letters.add(letter[2])
    return letters


def _final_lines(text: str, texts: dict[str, str]) -> set[str]:
    """Letters claimed by the last lines: consecutive bare options together, else those of the last line."""
    lines = [_strip_markup(line).strip() for line in text[-4 * _MAX_CLAIM_CHARS :].rstrip().split("\n")]
    letters: set[str] = set()
    for line in reversed(lines):
        bare = _bare_options(line, texts)
        if not bare:
            break
        letters |= bare
    if letters or not lines:
        return letters
    label = _LABEL.match(lines[-1])
    if label is not None and label[1].isupper() and label[1] in texts:
        return {label[1]}
    return _isolated_letters(lines[-1], texts)


def _bare_options(line: str, texts: dict[str, str]) -> set[str]:
    """Letters of a line that holds only options; empty for any other line."""
    letter = _letter_of_text(line, texts)
    if letter is not None:
        return {letter}
    head, rest = _leading_letters(line, texts)
    other = _letter_of_text(rest, texts)
    if other is not None:
        return head | {other}
    return head if not _normalise(rest) else set()


def _letter_of_text(text: str, texts: dict[str, str]) -> str | None:
    """The letter of the only option with this text; a single letter is not a text."""
    target = _normalise(text[: 2 * _MAX_CLAIM_CHARS])
    if not target or (len(target) == 1 and target.upper() in texts):
        return None
    letters = [letter for letter, option in texts.items() if option == target]
    return letters[0] if len(letters) == 1 else None


def _strip_markup(text: str) -> str:
    return _MARKUP.sub("", _TEXT_COMMAND.sub(r"\1", text))


def _normalise(text: str) -> str:
    return _THOUSANDS.sub("", " ".join(_strip_markup(text).casefold().split())).strip(" .,:;)(][-")
