"""The 25 kinds of verifiable instruction of IFEval (Zhou et al., 2023): for each, whether a reply follows it.

Written from the published descriptions. Where those leave room the usual reading is taken, so that scores compare:
keywords are found inside longer words, words are runs of letters and digits, only punctuation ends a sentence. It is
narrower where the usual reading can be had for nothing: brackets, quotation marks and postscripts need something in
them, JSON is an object or a list, and only one of the allowed answers may be given. Every check is linear in the reply.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Never, cast

from roll.rewards.languages import LANGUAGES, languages, script

_AT_LEAST, _LESS_THAN = "at least", "less than"
_ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")

_WORD = re.compile(r"\w+")
_JOINED = re.compile(r"\w+(?:['’.&-]\w+)*")  # noqa: RUF001
_FIRST_WORD = re.compile(r"\W*(\w+)")
_BLANK_LINE = re.compile(r"\n\s*\n")
_BRACKETS = re.compile(r"\[([^\[\]\n]*)\]")
_STARRED = re.compile(r"\*\*([^*\n]+)\*\*|\*([^*\n]+)\*")
_BULLET = re.compile(r"[ \t\"]*[*-][ \t]+\S")
_FENCE = re.compile(r"```(?:json)?", re.IGNORECASE)

_FULL_STOPS = re.compile(r"[。！？।॥۔؟]+")  # noqa: RUF001
_CLOSING = "\"'”’»)]}*_"  # noqa: RUF001
_ENDINGS = (".", "!", "?", "…", "。", "！", "？", "।", "॥", "۔", "؟")  # noqa: RUF001
_NEVER_LAST = {
    "mr.",
    "mrs.",
    "ms.",
    "dr.",
    "prof.",
    "st.",
    "vs.",
    "e.g.",
    "i.e.",
    "cf.",
    "gen.",
    "rev.",
    "p.s.",
    "p.p.s.",
}
_SOMETIMES_LAST = {"etc.", "a.m.", "p.m.", "u.s.", "u.k.", "inc.", "ltd.", "co.", "corp.", "al.", "jr.", "sr.", "ph.d."}
"""Last where no small letter follows."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a parameter of an instruction must be: in words, and as a test."""

    words: str
    met: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of instruction: `follows(reply, **parameters)`, and the parameters a task must give."""

    follows: Callable[..., bool]
    needs: Mapping[str, Need]


def existence(reply: str, *, keywords: list[str]) -> bool:
    """Every keyword occurs, in any case."""
    folded = reply.casefold()
    return all(keyword.casefold() in folded for keyword in keywords)


def frequency(reply: str, *, keyword: str, frequency: int, relation: str) -> bool:
    """The keyword occurs so many times, in any case."""
    return _related(reply.casefold().count(keyword.casefold()), relation, frequency)


def forbidden_words(reply: str, *, forbidden_words: list[str]) -> bool:
    """None of them occurs as a word of its own, in any case."""
    return not any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", reply, re.IGNORECASE) for word in forbidden_words)


def letter_frequency(reply: str, *, letter: str, let_frequency: int, let_relation: str) -> bool:
    """The letter, or sign, occurs so many times, in any case."""
    return _related(reply.lower().count(letter.lower()), let_relation, let_frequency)


def response_language(reply: str, *, language: str) -> bool:
    """The reply is in the language, as its letters and common words tell; a reply that does not tell is in none."""
    return language in languages(reply)


def number_sentences(reply: str, *, num_sentences: int, relation: str) -> bool:
    """The reply has so many sentences."""
    return _related(count_sentences(reply), relation, num_sentences)


def number_paragraphs(reply: str, *, num_paragraphs: int) -> bool:
    """Dividers `***` part the reply into exactly so many paragraphs, none of them empty."""
    return len(_parted(reply, "***")) == num_paragraphs


def number_words(reply: str, *, num_words: int, relation: str) -> bool:
    """The reply has so many words."""
    return _related(len(_WORD.findall(reply)), relation, num_words)


def nth_paragraph_first_word(reply: str, *, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """Blank lines part the reply into exactly so many paragraphs, and the n-th begins with the word, in any case."""
    paragraphs = [part for part in _BLANK_LINE.split(reply) if part.strip()]
    if len(paragraphs) != num_paragraphs or not 1 <= nth_paragraph <= num_paragraphs:
        return False
    found = _FIRST_WORD.match(paragraphs[nth_paragraph - 1])
    return found is not None and found[1].casefold() == first_word.casefold()


def number_placeholders(reply: str, *, num_placeholders: int) -> bool:
    """At least so many placeholders such as [address]."""
    return sum(1 for inside in _BRACKETS.findall(reply) if inside.strip()) >= num_placeholders


def postscript(reply: str, *, postscript_marker: str) -> bool:
    """Something is said after the marker; spaces between the letters of P.S. and P.P.S. are allowed, in any case."""
    initials = [re.escape(initial) for initial in postscript_marker.split(".") if initial.strip()]
    ending = r"\." if postscript_marker.endswith(".") else r"(?!\w)"
    marker = re.compile(r"(?<!\w)(?<!p\.)(?<!p\.\s)" + r"\.\s?".join(initials) + ending, re.IGNORECASE)
    found = marker.search(reply)
    return found is not None and _WORD.search(reply, found.end()) is not None


def number_bullet_lists(reply: str, *, num_bullets: int) -> bool:
    """Exactly so many lines begin with a bullet, `* ` or `- `."""
    return sum(1 for line in reply.split("\n") if _BULLET.match(line)) == num_bullets


def constrained_response(reply: str) -> bool:
    """Exactly one of the three answers is given, word for word."""
    return sum(answer in reply for answer in _ANSWERS) == 1


def number_highlighted_sections(reply: str, *, num_highlights: int) -> bool:
    """At least so many passages within a line stand between single or double asterisks."""
    return sum(1 for double, single in _STARRED.findall(reply) if (double or single).strip()) >= num_highlights


def multiple_sections(reply: str, *, section_spliter: str, num_sections: int) -> bool:
    """At least so many sections are marked, such as `SECTION 1`."""
    return len(re.findall(rf"{re.escape(section_spliter)}\s?\d", reply)) >= num_sections


def json_format(reply: str) -> bool:
    """The whole reply is a JSON object or list, in a fence of backticks or not."""
    body = reply.strip()
    opening = _FENCE.match(body)
    body = (body[opening.end() :] if opening else body).removesuffix("```")
    try:  # numbers stay text: a million digits are JSON, and slow to convert
        found: object = json.loads(body, parse_int=str, parse_float=str, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict | list)


def title(reply: str) -> bool:
    """Some line has a title in double angular brackets, such as <<poem of joy>>."""
    for line in reply.split("\n"):
        _, _, rest = line.partition("<<")
        if rest.rpartition(">>")[0].strip("<> \t\r"):
            return True
    return False


def two_responses(reply: str) -> bool:
    """Two different responses with six asterisks between them."""
    parts = _parted(reply, "******")
    return len(parts) == 2 and parts[0] != parts[1]


def repeat_prompt(reply: str, *, prompt_to_repeat: str) -> bool:
    """The reply begins with the request, word for word but in any case."""
    return reply.strip().casefold().startswith(prompt_to_repeat.strip().casefold())


def end_checker(reply: str, *, end_phrase: str) -> bool:
    """The reply ends with the phrase, in any case; quotation marks around the reply do not count."""
    return reply.strip().strip('"').rstrip().casefold().endswith(end_phrase.strip().strip('"').casefold())


def capital_word_frequency(reply: str, *, capital_frequency: int, capital_relation: str) -> bool:
    """So many words are in capitals throughout; "I" is one."""
    return _related(sum(map(str.isupper, _JOINED.findall(reply))), capital_relation, capital_frequency)


def english_capital(reply: str) -> bool:
    """English, with no small letter."""
    return reply.isupper() and _english(reply)


def english_lowercase(reply: str) -> bool:
    """English, with no capital letter."""
    return reply.islower() and _english(reply)


def no_comma(reply: str) -> bool:
    """No comma."""
    return "," not in reply


def quotation(reply: str) -> bool:
    """Double quotation marks around the whole of it."""
    bare = reply.strip()
    return bare.startswith('"') and bare.endswith('"') and bool(bare[1:-1].strip())


def count_sentences(text: str) -> int:
    """Sentences in `text`: a full stop, exclamation or question mark with a space behind it ends one, as does the end.

    Abbreviations, initials, dots of omission before a small letter, and the numbers of a list end none.
    """
    count, begun = 0, False
    for word, following in pairwise([*_FULL_STOPS.sub(r"\g<0> ", text).split(), ""]):
        bare = word.rstrip(_CLOSING)
        if not begun and bare[:-1].isdigit() and bare.endswith("."):
            continue  # "1." opens an entry of a list
        begun = begun or _WORD.search(word) is not None
        if begun and bare.endswith(_ENDINGS) and _ends(bare, following):
            count, begun = count + 1, False
    return count + begun


def _ends(word: str, following: str) -> bool:
    """Whether a word with a full stop or the like at its end is the last of its sentence."""
    bare = word.lstrip("\"'“‘«([{*_").lower()  # noqa: RUF001
    small = following[:1].islower()
    if not bare.endswith("."):
        return not (bare.endswith("…") and small)
    if bare in _NEVER_LAST or (len(bare) == 2 and bare[0].isalpha() and bare != "i." and word[-2].isupper()):
        return False
    return not (small and (bare in _SOMETIMES_LAST or bare.endswith("..")))


def _related(count: int, relation: str, number: int) -> bool:
    return count >= number if relation == _AT_LEAST else count < number


def _parted(reply: str, divider: str) -> list[str]:
    """What stands between dividers, which may open and close the reply too; nothing if two of them are neighbours."""
    parts = [part.strip() for part in reply.split(divider)]
    return [part for part in parts if part] if all(parts[1:-1]) else []


def _english(reply: str) -> bool:
    """A reply too short to tell is taken for English if its letters are."""
    found = languages(reply)
    return "en" in found or (not found and script(reply) == "latin")


def _refuse(constant: str) -> Never:
    raise ValueError(f"{constant} is not JSON")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _words(value: Any) -> bool:
    return isinstance(value, list) and value != [] and all(map(_text, cast(list[Any], value)))


_NUMBER = Need("a whole number, 0 or more", _whole)
_TEXT = Need("a text", _text)
_WORDS = Need("a list of words", _words)
_RELATION = Need(f"{_AT_LEAST!r} or {_LESS_THAN!r}", lambda value: value in (_AT_LEAST, _LESS_THAN))
_LANGUAGE = Need(f"one of {' '.join(sorted(LANGUAGES))}", lambda value: isinstance(value, str) and value in LANGUAGES)

KINDS: dict[str, Kind] = {
    "keywords:existence": Kind(existence, {"keywords": _WORDS}),
    "keywords:frequency": Kind(frequency, {"keyword": _TEXT, "frequency": _NUMBER, "relation": _RELATION}),
    "keywords:forbidden_words": Kind(forbidden_words, {"forbidden_words": _WORDS}),
    "keywords:letter_frequency": Kind(
        letter_frequency, {"letter": _TEXT, "let_frequency": _NUMBER, "let_relation": _RELATION}
    ),
    "language:response_language": Kind(response_language, {"language": _LANGUAGE}),
    "length_constraints:number_sentences": Kind(number_sentences, {"num_sentences": _NUMBER, "relation": _RELATION}),
    "length_constraints:number_paragraphs": Kind(number_paragraphs, {"num_paragraphs": _NUMBER}),
    "length_constraints:number_words": Kind(number_words, {"num_words": _NUMBER, "relation": _RELATION}),
    "length_constraints:nth_paragraph_first_word": Kind(
        nth_paragraph_first_word, {"num_paragraphs": _NUMBER, "nth_paragraph": _NUMBER, "first_word": _TEXT}
    ),
    "detectable_content:number_placeholders": Kind(number_placeholders, {"num_placeholders": _NUMBER}),
    "detectable_content:postscript": Kind(postscript, {"postscript_marker": _TEXT}),
    "detectable_format:number_bullet_lists": Kind(number_bullet_lists, {"num_bullets": _NUMBER}),
    "detectable_format:constrained_response": Kind(constrained_response, {}),
    "detectable_format:number_highlighted_sections": Kind(number_highlighted_sections, {"num_highlights": _NUMBER}),
    "detectable_format:multiple_sections": Kind(multiple_sections, {"section_spliter": _TEXT, "num_sections": _NUMBER}),
    "detectable_format:json_format": Kind(json_format, {}),
    "detectable_format:title": Kind(title, {}),
    "combination:two_responses": Kind(two_responses, {}),
    "combination:repeat_prompt": Kind(repeat_prompt, {"prompt_to_repeat": _TEXT}),
    "startend:end_checker": Kind(end_checker, {"end_phrase": _TEXT}),
    "change_case:capital_word_frequency": Kind(
        capital_word_frequency, {"capital_frequency": _NUMBER, "capital_relation": _RELATION}
    ),
    "change_case:english_capital": Kind(english_capital, {}),
    "change_case:english_lowercase": Kind(english_lowercase, {}),
    "punctuation:no_comma": Kind(no_comma, {}),
    "startend:quotation": Kind(quotation, {}),
}
"""By the id that data files use; the parameters' names are the data files' too."""
