"""Instruction following (IFEval): whether a response follows the verifiable instructions of its task.

A task names its instructions in its metadata: `instruction_id_list`, and `kwargs` with the parameters of each.

The 25 kinds of instruction (Zhou et al., 2023) are written from the published descriptions. Where those are ambiguous,
the usual reading is taken, so that scores compare: keywords are found inside longer words, words are runs of letters
and digits, only punctuation ends a sentence. Checks are stricter where the usual reading accepts empty content:
brackets, quotation marks and postscripts must contain something, JSON is an object or a list, and only one of the
allowed answers may be given. All run in linear time.
"""

from __future__ import annotations

import functools
import inspect
import re
import unicodedata
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias, cast

from roll.errors import ConfigError, did_you_mean
from roll.rewards.ifeval.languages import LANGUAGES, languages, script
from roll.rewards.response import parse_json
from roll.signature import Kind
from roll.types import Score, Task

_AT_LEAST, _LESS_THAN = "at least", "less than"
Relation: TypeAlias = str
Language: TypeAlias = str
_ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")

_WORD = re.compile(r"\w+")
_JOINED = re.compile(r"\w+(?:['’.&-]\w+)*")  # noqa: RUF001
_FIRST_WORD = re.compile(r"\W*(\w+)")
_BLANK_LINE = re.compile(r"\n\s*\n")
_BRACKETS = re.compile(r"\[([^\[\]\n]*)\]")
_STARRED = re.compile(r"\*\*([^*\n]+)\*\*|\*([^*\n]+)\*")
_BULLET = re.compile(r"[ \t\"]*[*-][ \t]+\S")
_FILLERS = "\u115f\u1160\u2800\u3164\uffa0"
"""Characters that count as letters or symbols and are not visible."""
_FENCE = re.compile(r"```(?:json)?", re.IGNORECASE)

_FULL_STOPS = re.compile(r"[。！？।॥۔؟]+")  # noqa: RUF001
_CLOSING = "\"'”’»)]}*_"  # noqa: RUF001
_ENDINGS = (".", "!", "?", "…", "。", "！", "？", "।", "॥", "۔", "؟")  # noqa: RUF001
_NEVER_LAST = {
    *("mr.", "mrs.", "ms.", "dr.", "prof.", "st.", "vs.", "e.g.", "i.e.", "cf.", "gen.", "rev.", "p.s.", "p.p.s.")
}
_SOMETIMES_LAST = {"etc.", "a.m.", "p.m.", "u.s.", "u.k.", "inc.", "ltd.", "co.", "corp.", "al.", "jr.", "sr.", "ph.d."}
"""Ends a sentence unless a lower-case letter follows."""


def score(task: Task, response: str, *, loose: bool = False, partial: bool = False) -> Score:
    """1 if every instruction is followed, else 0, or the fraction that is followed if `partial`.

    `loose` also tries the response without its first line, its last line, both, and without asterisks; an instruction
    is followed if any variant follows it. The part `followed` is the fraction. A response without visible characters
    follows nothing.
    """
    checks = check_instructions(task, response, loose=loose)
    fraction = sum(checks) / len(checks)
    return Score(fraction if partial else float(all(checks)), {"followed": fraction})


def check_instructions(task: Task, response: str, *, loose: bool = False) -> list[bool]:
    """Whether the response follows each instruction of the task, in order."""
    _, closed, text = response.rpartition("</think>")
    text = "" if not closed and "<think>" in text else text.strip()
    variants = _variants(text) if loose else [text]
    visible = [variant for variant in variants if not _is_blank(variant)]
    return [any(follows(variant) for variant in visible) for follows in parse_instructions(task)]


def parse_instructions(task: Task) -> list[Callable[[str], bool]]:
    """A check of a text per instruction of the task; raises `ConfigError` for unknown kinds and wrong parameters."""
    where = f"task {task.id!r}"
    names, kwargs = task.metadata.get("instruction_id_list"), task.metadata.get("kwargs")
    if not isinstance(names, list) or not names:
        raise ConfigError(f"{where}: no instructions (got {names!r}); list them as 'instruction_id_list'")
    if not isinstance(kwargs, list) or len(cast(list[Any], kwargs)) != len(cast(list[Any], names)):
        raise ConfigError(f"{where}: not one entry per instruction (got kwargs {kwargs!r}); give each its parameters")
    pairs = zip(cast(list[Any], names), cast(list[Any], kwargs), strict=True)
    return [_parse_instruction(name, parameters, where) for name, parameters in pairs]


def _parse_instruction(name: Any, parameters: Any, where: str) -> Callable[[str], bool]:
    if not isinstance(name, str) or name not in KINDS:
        raise ConfigError(f"{where}: unknown instruction (got {name!r}){did_you_mean(str(name), KINDS)}")
    if not isinstance(parameters, dict):
        raise ConfigError(
            f"{where}: {name}: parameters are not an object (got {parameters!r}); write one, {{}} for none"
        )
    # Datasets with one column per parameter of any kind fill the unused ones with null.
    present = {key: value for key, value in cast(dict[str, Any], parameters).items() if value is not None}
    check, rules = KINDS[name]
    for key in present.keys() - rules.keys():
        raise ConfigError(f"{where}: {name}: unknown parameter (got {key!r}); it takes {', '.join(rules) or 'none'}")
    for key, (description, fits) in rules.items():
        if not fits(present.get(key)):
            raise ConfigError(f"{where}: {name}: bad {key!r} (got {present.get(key)!r}); it must be {description}")
    return functools.partial(check, **present)


def _is_blank(text: str) -> bool:
    """Whether no character of a text is visible: spaces, zero-width and control characters, fillers."""
    return all(unicodedata.category(char)[0] in "ZC" or char in _FILLERS for char in text)


def _variants(text: str) -> list[str]:
    """The distinct texts without the first line, the last line, both, and asterisks; the original first."""
    _, _, rest = text.partition("\n")
    most, _, _ = text.rpartition("\n")
    middle, _, _ = rest.rpartition("\n")
    lines = [part.strip() for part in (text, rest, most, middle)]
    return list(dict.fromkeys([*lines, *(part.replace("*", "").strip() for part in lines)]))


def existence(response: str, *, keywords: list[str]) -> bool:
    """Every keyword occurs (case-insensitive)."""
    folded = response.casefold()
    return all(keyword.casefold() in folded for keyword in keywords)


def frequency(response: str, *, keyword: str, frequency: int, relation: Relation) -> bool:
    """The count of the keyword satisfies the relation (case-insensitive)."""
    return _satisfies(response.casefold().count(keyword.casefold()), relation, frequency)


def forbidden_words(response: str, *, forbidden_words: list[str]) -> bool:
    """None of them occurs as a whole word (case-insensitive)."""
    return not any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", response, re.IGNORECASE) for word in forbidden_words)


def letter_frequency(response: str, *, letter: str, let_frequency: int, let_relation: Relation) -> bool:
    """The count of the letter or symbol satisfies the relation (case-insensitive)."""
    return _satisfies(response.lower().count(letter.lower()), let_relation, let_frequency)


def response_language(response: str, *, language: Language) -> bool:
    """The response is in the language, judged by letters and common words; an undecidable response is in none."""
    return language in languages(response)


def number_sentences(response: str, *, num_sentences: int, relation: Relation) -> bool:
    """The number of sentences satisfies the relation."""
    return _satisfies(count_sentences(response), relation, num_sentences)


def number_paragraphs(response: str, *, num_paragraphs: int) -> bool:
    """Dividers `***` split the response into exactly this number of non-empty paragraphs."""
    return len(_split(response, "***")) == num_paragraphs


def number_words(response: str, *, num_words: int, relation: Relation) -> bool:
    """The number of words satisfies the relation."""
    return _satisfies(len(_WORD.findall(response)), relation, num_words)


def nth_paragraph_first_word(response: str, *, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """Blank lines split the response into exactly `num_paragraphs`, and the n-th begins with the word in any case."""
    paragraphs = [part for part in _BLANK_LINE.split(response) if part.strip()]
    if len(paragraphs) != num_paragraphs or not 1 <= nth_paragraph <= num_paragraphs:
        return False
    word = _FIRST_WORD.match(paragraphs[nth_paragraph - 1])
    return word is not None and word[1].casefold() == first_word.casefold()


def number_placeholders(response: str, *, num_placeholders: int) -> bool:
    """At least this number of placeholders such as [address]."""
    return sum(1 for inside in _BRACKETS.findall(response) if inside.strip()) >= num_placeholders


def postscript(response: str, *, postscript_marker: str) -> bool:
    """Words follow the marker; P.S. and P.P.S. may contain spaces, in any case."""
    initials = [re.escape(initial) for initial in postscript_marker.split(".") if initial.strip()]
    ending = r"\." if postscript_marker.endswith(".") else r"(?!\w)"
    marker = re.compile(r"(?<!\w)(?<!p\.)(?<!p\.\s)" + r"\.\s?".join(initials) + ending, re.IGNORECASE)
    match = marker.search(response)
    return match is not None and _WORD.search(response, match.end()) is not None


def number_bullet_lists(response: str, *, num_bullets: int) -> bool:
    """Exactly this number of lines begin with a bullet, `* ` or `- `."""
    return sum(1 for line in response.split("\n") if _BULLET.match(line)) == num_bullets


def constrained_response(response: str) -> bool:
    """Exactly one of the three answers occurs verbatim."""
    return sum(answer in response for answer in _ANSWERS) == 1


def number_highlighted_sections(response: str, *, num_highlights: int) -> bool:
    """At least this number of passages within a line are enclosed in single or double asterisks."""
    return sum(1 for double, single in _STARRED.findall(response) if (double or single).strip()) >= num_highlights


def multiple_sections(response: str, *, section_spliter: str, num_sections: int) -> bool:
    """At least this number of section marks, such as `SECTION 1`."""
    return len(re.findall(rf"{re.escape(section_spliter)}\s?\d", response)) >= num_sections


def json_format(response: str) -> bool:
    """The whole response is a JSON object or list, optionally in a fence of backticks."""
    body = response.strip()
    opening = _FENCE.match(body)
    body = (body[opening.end() :] if opening else body).removesuffix("```")
    try:  # numbers stay text: a million digits are valid JSON and slow to convert
        return isinstance(parse_json(body, parse_int=str, parse_float=str), dict | list)
    except ValueError:
        return False


def title(response: str) -> bool:
    """A line has a title in double angle brackets, such as <<poem of joy>>."""
    for line in response.split("\n"):
        _, _, rest = line.partition("<<")
        if rest.rpartition(">>")[0].strip("<> \t\r"):
            return True
    return False


def two_responses(response: str) -> bool:
    """Two different responses, separated by six asterisks."""
    parts = _split(response, "******")
    return len(parts) == 2 and parts[0] != parts[1]


def repeat_prompt(response: str, *, prompt_to_repeat: str) -> bool:
    """The response begins with the request verbatim (case-insensitive)."""
    return response.strip().casefold().startswith(prompt_to_repeat.strip().casefold())


def end_checker(response: str, *, end_phrase: str) -> bool:
    """The response ends with the phrase (case-insensitive); enclosing quotation marks are ignored."""
    return response.strip().strip('"').rstrip().casefold().endswith(end_phrase.strip().strip('"').casefold())


def capital_word_frequency(response: str, *, capital_frequency: int, capital_relation: Relation) -> bool:
    """The number of words in capitals satisfies the relation; "I" counts."""
    return _satisfies(sum(map(str.isupper, _JOINED.findall(response))), capital_relation, capital_frequency)


def english_capital(response: str) -> bool:
    """English without lower-case letters."""
    return response.isupper() and _english(response)


def english_lowercase(response: str) -> bool:
    """English without capital letters."""
    return response.islower() and _english(response)


def no_comma(response: str) -> bool:
    """No comma."""
    return "," not in response


def quotation(response: str) -> bool:
    """The whole response is in double quotation marks."""
    bare = response.strip()
    return bare.startswith('"') and bare.endswith('"') and bool(bare[1:-1].strip())


def count_sentences(text: str) -> int:
    """Number of sentences: a full stop, exclamation or question mark before a space ends one, as does the end.

    Abbreviations, initials, ellipses before a lower-case letter, and list numbers end none.
    """
    count, begun = 0, False
    for word, following in pairwise([*_FULL_STOPS.sub(r"\g<0> ", text).split(), ""]):
        bare = word.rstrip(_CLOSING)
        if not begun and bare[:-1].isdigit() and bare.endswith("."):
            continue  # "1." is a list number
        begun = begun or _WORD.search(word) is not None
        if begun and bare.endswith(_ENDINGS) and _ends(bare, following):
            count, begun = count + 1, False
    return count + begun


def _ends(word: str, following: str) -> bool:
    """Whether a word that ends with such punctuation is the last of its sentence."""
    bare = word.lstrip("\"'“‘«([{*_").lower()  # noqa: RUF001
    small = following[:1].islower()
    if not bare.endswith("."):
        return not (bare.endswith("…") and small)
    if bare in _NEVER_LAST or (len(bare) == 2 and bare[0].isalpha() and bare != "i." and word[-2].isupper()):
        return False
    return not (small and (bare in _SOMETIMES_LAST or bare.endswith("..")))


def _satisfies(count: int, relation: str, number: int) -> bool:
    return count >= number if relation == _AT_LEAST else count < number


def _split(response: str, divider: str) -> list[str]:
    """Texts between dividers, which may also open and close the response; empty if two dividers are adjacent."""
    parts = [part.strip() for part in response.split(divider)]
    return [part for part in parts if part] if all(parts[1:-1]) else []


def _english(response: str) -> bool:
    """Whether the language is English; an undecidable response counts if its letters are Latin."""
    codes = languages(response)
    return "en" in codes or (not codes and script(response) == "latin")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_word_list(value: Any) -> bool:
    return isinstance(value, list) and value != [] and all(map(_is_text, cast(list[Any], value)))


_RULES: dict[str, Kind] = {
    "int": ("a whole number, 0 or more", lambda value: type(value) is int and value >= 0),
    "str": ("a text", _is_text),
    "list[str]": ("a list of words", _is_word_list),
    "Relation": (f"{_AT_LEAST!r} or {_LESS_THAN!r}", lambda value: value in (_AT_LEAST, _LESS_THAN)),
    "Language": (f"one of {' '.join(sorted(LANGUAGES))}", lambda value: isinstance(value, str) and value in LANGUAGES),
}
"""By type annotation: the allowed values of a parameter."""


def _rules(check: Callable[..., bool]) -> dict[str, Kind]:
    _, *parameters = inspect.signature(check).parameters.values()
    return {parameter.name: _RULES[parameter.annotation] for parameter in parameters}


_CHECKS: dict[str, Sequence[Callable[..., bool]]] = {
    "keywords": [existence, frequency, forbidden_words, letter_frequency],
    "language": [response_language],
    "length_constraints": [number_sentences, number_paragraphs, number_words, nth_paragraph_first_word],
    "detectable_content": [number_placeholders, postscript],
    "detectable_format": [
        *(number_bullet_lists, constrained_response, number_highlighted_sections, multiple_sections, json_format, title)
    ],
    "combination": [two_responses, repeat_prompt],
    "startend": [end_checker, quotation],
    "change_case": [capital_word_frequency, english_capital, english_lowercase],
    "punctuation": [no_comma],
}
KINDS = {f"{group}:{check.__name__}": (check, _rules(check)) for group, checks in _CHECKS.items() for check in checks}
"""By id: `check(response, **parameters)`, and the rules of its parameters. Names are those of the published files."""
