"""Numbers in words: "forty-two", "one hundred and five", "three quarters"."""

from __future__ import annotations

import re

from roll.rewards.math import prose

_SMALL = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen
"""
_DECADES = "twenty thirty forty fifty sixty seventy eighty ninety"
_ORDINALS = "fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
_UNITS = {word: value for value, word in enumerate(_SMALL.split())}
_TENS = {word: 10 * value for value, word in enumerate(_DECADES.split(), 2)}
_SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9}
_PARTS = {
    **{"half": 2, "halves": 2, "quarter": 4, "quarters": 4, "third": 3, "thirds": 3},
    **{f"{name}{plural}": value for value, name in enumerate(_ORDINALS.split(), 4) for plural in ("", "s")},
}
_WORD = "|".join(sorted([*_UNITS, *_TENS, *_SCALES, *_PARTS], key=len, reverse=True))
_PHRASE = re.compile(rf"\b(?:{_WORD})\b(?:(?:[\s-]|\s+and\s+)(?:{_WORD})\b)*+", re.IGNORECASE)
_TOKENS = re.compile(r"[a-z]+")
_STATED = re.compile(
    r"(?:(?:\b(?:is|are|was|were|be|equals?|has|have|had|gives?|gets?|receives?|pays?|costs?|makes?|uses?|used"
    r"|found|left|wins?|won|earns?|scored|takes?|needs?|leaves?|remain|exist|obtain"
    r"|total of|equal to|exactly|only|just|precisely)|['\u2019]s|:)\s+(?:(?:exactly|only|just|precisely"
    r"|a total of|always"
    r"|therefore|thus|indeed|simply|in total|equal to|minus|negative)\s+)*|^)$",
    re.IGNORECASE,
)
_JOINED = re.compile(
    r"\s+(?:or|and|to|more|less|fewer|times|by|in|over|out|cases?|digits?|different kinds)\b|-\w", re.IGNORECASE
)
_NEGATIVE = re.compile(r"\b(?:minus|negative)\s+$", re.IGNORECASE)
_MAX_CHARS = 300


def parse(text: str) -> str | None:
    """The number that the words mean, as digits or a fraction `a/b`; None if they are not one number."""
    tokens = [token for token in _TOKENS.findall(text.lower()) if token != "and"]
    if not tokens:
        return None
    if tokens[-1] in _PARTS and len(tokens) > 1:
        top = _whole(tokens[:-1])
        return f"{top}/{_PARTS[tokens[-1]]}" if top else None
    value = _whole(tokens)
    return None if value is None else str(value)


def _whole(tokens: list[str]) -> int | None:
    total = group = 0
    last = 10**12
    """The size of the previous word, which the next one stays below."""
    for token in tokens:
        if token in _SCALES and group:
            size = _SCALES[token]
            group *= size
            if size > 100:
                total, group = total + group, 0
            last = size
        elif token in _TENS or token in _UNITS:
            value = _TENS.get(token, _UNITS.get(token, 0))
            if value >= last or (last < 100 and (last < 20 or value > 9)):
                return None
            group, last = group + value, value
        else:
            return None
    return total + group


def stated(sentence: str) -> str | None:
    """The last number in words that a sentence states: "there are twelve such integers", "it is one half"."""
    sentence = sentence[-_MAX_CHARS:]
    found = [
        (phrase, value)
        for phrase in _PHRASE.finditer(sentence)
        if _STATED.search(sentence[: phrase.start()]) and (value := parse(phrase[0])) is not None
    ]
    if not found or prose.changes_value(sentence):
        return None
    phrase, value = found[-1]
    if _JOINED.match(sentence, phrase.end()) or (value == "1" and sentence[phrase.end() :].startswith(" of ")):
        return None
    if prose.negated_before(sentence, phrase.start()) or prose.denied_after(sentence, phrase.end()):
        return None
    return f"-{value}" if _NEGATIVE.search(sentence[: phrase.start()]) else value
