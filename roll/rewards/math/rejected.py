"""Values that a text gives only to reject them: ruled out, said before and revised, or quoted from somebody else."""

from __future__ import annotations

import re

from roll.rewards.math.word_parts import WordParts

_NEAR = 160
"""Characters after a quotation in which it is criticised."""
_VERB = 32
"""Characters before a quotation in which it is introduced."""
_MAX_TAIL = 4000
"""Characters at the end of a text in which quotations are looked for."""
_APOSTROPHE = "['\u2019]"
_ADVERB = r"(?:(?:\w+ly|also|then|therefore|thus|hence|simply|itself)\s+){0,2}"
_OUT = (
    r"(?:ruled out|excluded|eliminated|discarded|rejected|dropped|dismissed|disqualified|thrown (?:out|away)|extraneous"
    r"|spurious|inadmissible|invalid|unacceptable|infeasible|not (?:allowed|acceptable|admissible|feasible|permitted"
    r"|accepted))\b|out(?=\s*(?:[.,;]|$))"
)
_REJECTED = re.compile(
    rf"\d[$*)}}\]]{{0,4}}\s+{_ADVERB}(?:fails\b"
    rf"|(?:is|(?:must|can|should|may|could|will|has to|have to|needs? to)\s+be)\s+{_ADVERB}(?:{_OUT})"
    r"|are\s+(?:extraneous|spurious|ruled out|inadmissible|invalid)\b"
    r"|(?:ignores?|forgets?|overlooks?|neglects?|omits?|misses|violates?|contradicts?)\s+(?:the|an?|that|one|some|any"
    r"|our|every|each|this|all|it)\b"
    r"|(?:over-?counts?|under-?counts?|double[- ]counts?)\b|counts\b[^.,;]{0,40}\btwice\b|makes? no sense\b"
    r"|leads? to an? (?:\w+ )?contradiction\b"
    rf"|(?:(?:does|do|will|would|can|could) not|(?:does|do|wo|would|ca|could)n{_APOSTROPHE}t|cannot)\s+(?:qualify"
    r"|do(?=\s*(?:[.,;]|$))|be (?:accepted|allowed|used|kept)))"
    r"|\b(?:we|i|must|can|should|to|this|that|which|therefore|hence|thus|so)\s+(?:(?:must|can|should|have to|may)\s+)?"
    r"(?:discards?|eliminates?|excludes?|drops?|dismiss(?:es)?|rejects?|rules? out|throw (?:out|away))\s+"
    r"(?:the\s+)?(?:(?:root|solution|value|case|candidate|option|possibility|number)\s+)?(?:[$*(]*[a-zA-Z]\s*=\s*)?"
    r"[$*(]*[-\u2212]?\d(?:[\d/]|[.,]\d)*+(?![\s-]+[a-z]*s\b(?!ince))",
    re.IGNORECASE,
)
_CONCLUDES = re.compile(
    r"[,;:.\u2014\u2013]\s*(?:and\s+)?(?:so|hence|thus|therefore|leaving|which leaves|this leaves|that leaves|only|the"
    r"|we|it)\b|;|\b(?:so|hence|thus|therefore|leaving)\b"
    r"|\b(?:and|but|while|whereas|only)\s+(?=(?:[a-z]\s*=\s*)?[-\u2212$]{0,2}\d)",
    re.IGNORECASE,
)
_KEPT = re.compile(
    r"\b(?:works?|valid|solutions?|satisf\w+|only|answer|accept\w*|keep|holds?|right|correct)\b[^;]{0,80}"
    r"(?:;|,\s*(?:while|whereas|but|and|since|because)\b)[^;]{0,80}$",
    re.IGNORECASE,
)
"""A value that holds, in the clause before the one that rejects another."""
_may_reject = WordParts(
    (
        *(
            "fail",
            "ruled",
            "rule",
            "exclu",
            "elimin",
            "discard",
            "reject",
            "drop",
            "dismiss",
            "disqual",
            "throw",
            "extran",
        ),
        *("spurious", "inadmis", "invalid", "unaccept", "infeas", "not", "cannot", "n't", "n\u2019t", " out", "ignor"),
        *("forget", "overlook", "neglect", "omit", "misses", "violate", "contradict", "count", "no sense"),
    )
)
"""Whether the text has any word that could reject a value."""
_SAID = r"(?:answered|said|wrote|claimed|stated|gave|put|reported|thought|concluded|believed|guessed|replied)"
_PAST = re.compile(
    rf"(?<!\bas )\b(?:i|we)(?:{_APOSTROPHE}d| had| have)?\s+(?:previously|initially|originally|earlier|mistakenly"
    rf"|wrongly|incorrectly|at first|once)\s+{_SAID}\b"
    rf"|\b(?:previously|initially|originally|earlier|before|at first),?\s+(?:i|we)\s+(?:had\s+|have\s+)?{_SAID}\b"
    rf"|(?<!\bas )\b(?:i|we)\s+{_SAID}\s+(?:earlier|before|previously|at first)\b"
    r"|\b(?:my|our)\s+(?:previous|earlier|initial|original|first|old|prior)\s+(?:answer|guess|claim|estimate|thought"
    r"|response|result|value|figure|reply|attempt)\s+(?:was|of|said|gave|had been)\b",
    re.IGNORECASE,
)
may_be_past = WordParts(
    (
        *("previous", "initial", "original", "earlier", "mistaken", "wrongly", "incorrectly", " first", "before"),
        *("prior", " old ", "once"),
    )
)
"""Whether the text has a word of a sentence about an earlier answer; cheaper than `is_past`."""
_QUOTATION = re.compile(r"\"([^\"\n]{1,200})\"|\u201c([^\u201c\u201d\n]{1,200})\u201d")
_REPORTS = (
    r"(?:states?|stated|reads?|writes?|wrote|written|shows?|showed|gives?|gave|prints?|printed"
    r"|posts?|posted|asks?|asked|asking|claim(?:s|ed)?|says?|said|replie[sd]|answer(?:s|ed)|lists?|listed|asserts?"
    r"|asserted|declares?|declared|announce[sd]?|insist(?:s|ed)?|argue[sd]?|wonder(?:s|ed)?|shouted|exclaim(?:s|ed)?"
    r"|note[sd]|scribbled)"
)
_INTRODUCED = re.compile(rf"(?<!\bi )(?<!\bwe )\b{_REPORTS}(?:\s+(?:that|me|us))?[\s:,*]*$", re.IGNORECASE)
_CRITICISED = re.compile(
    r"^[\s.,]*(?:is|was) what\b|^[\s.,]*(?:he|she|they|someone|somebody|(?-i:[A-Z][a-z]+)|(?:the|an?|my|one) \w+)"
    rf"\s+{_REPORTS}\b"
    r"|\b(?:errors?|mistake[ns]?|slip|typo|wrong|incorrect|flaw(?:ed)?|overlooks?|overcounts?|ignores|forgets|fallacy"
    r"|false|blunder|miscalculat\w+|misread\w*|misprint|off by|double[- ]counts?|twice"
    r"|not (?:right|correct|true|accept))\b",
    re.IGNORECASE,
)


def after_rejection(text: str) -> str | None:
    """What a sentence that rejects a value says for another one, after it or before, perhaps nothing; else None."""
    if not _may_reject(text):
        return None
    last = None
    for last in _REJECTED.finditer(text):  # noqa: B007 - the last one counts
        pass
    if last is None:
        return None
    concludes = _CONCLUDES.search(text, last.end())
    if concludes:
        return text[concludes.end() :]
    clause = _KEPT.search(text, max(0, last.start() - _NEAR), last.start())
    return re.split(r";|,\s*(?:while|whereas|but|and|since|because)\b", text[: last.start()])[0] if clause else ""


def is_past(sentence: str) -> bool:
    """Whether a sentence tells what was answered before: "I previously said ...", "my first answer was ..."."""
    return may_be_past(sentence) and _PAST.search(sentence) is not None


def without_quotations(text: str) -> str:
    """The text without what it quotes from others: a quotation with a number, introduced or criticised as such."""
    if '"' not in text and "\u201c" not in text:
        return text
    return text[:-_MAX_TAIL] + _QUOTATION.sub(_unless_quoted, text[-_MAX_TAIL:])


def _unless_quoted(quotation: re.Match[str]) -> str:
    text, (start, end) = quotation.string, quotation.span()
    if not any(map(str.isdigit, quotation[0])):
        return quotation[0]
    introduced = _INTRODUCED.search(text[max(0, start - _VERB) : start])
    if not introduced and not _CRITICISED.search(text[end : end + _NEAR]):
        return quotation[0]
    return "." if quotation[0][-2] in ".!?" else "it"
