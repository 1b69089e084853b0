"""Answers in words, such as a day, a name or "even": whether the last claim of a response is the word that is right.

A word counts where a sentence says what something is ("is a Monday", "facing east") or where a name begins it. A word
of the same kind beside it, a negation, a question or a guess makes the sentence count for nothing.
"""

from __future__ import annotations

import functools
import re

from roll.rewards.choice import reward as choice
from roll.rewards.math import mood, prose
from roll.rewards.math.sentence import BOLD, FORMULA
from roll.rewards.response import after_thinking, answer_text

_MAX_TAIL = 2000
_MAX_SENTENCES = 4
_CHOICE = re.compile(r"\\(?:text|textbf|textrm|mathrm|mathbf)\s*\{\s*\(?([A-J])\)?\s*\}|\(([A-J])\)|([A-E])")
_WORDS = re.compile(
    r"(?:\\(?:text|textbf|textrm|textit|mathrm|mbox)\s*\{)?\s*([A-Za-z]{2,}(?:[ '-][A-Za-z]+){0,3})\s*\.?\}?", re.ASCII
)
_KINDS: tuple[frozenset[str], ...] = tuple(
    frozenset(kind.split())
    for kind in (
        "monday tuesday wednesday thursday friday saturday sunday",
        "january february march april may june july august september october november december",
        "north south east west northeast northwest southeast southwest left right",
        "even odd neither both",
        "yes no",
        "true false",
        "rational irrational",
        "prime composite",
        "positive negative zero nonnegative nonpositive",
        "increasing decreasing constant",
        "acute obtuse right",
        "scalene isosceles equilateral",
        "convergent divergent converges diverges",
        "heads tails",
        "circle ellipse parabola hyperbola line point plane sphere cylinder cone",
        "square rectangle rhombus parallelogram trapezoid kite triangle pentagon hexagon octagon",
        "finite infinite",
        "independent dependent",
        "consistent inconsistent",
        "red green blue yellow orange purple black white brown pink gray",
    )
)
"""Words of which a sentence claims one: another one beside it is a second answer."""
_SENTENCES = re.compile(r"(?<=[.!?])[*_]{0,2}\s+(?=[A-Z\d*$\\(])|\n+")
_CUE = re.compile(r"\banswers?\*{0,2}\s*(?:(?:is|was|must be|should be|will be)\b\s*:?|[:=])", re.IGNORECASE)
_ASIDE = re.compile(
    r"[\s(*]*(?:she|he|it|they|this|that|these|i hope|hope|let me know|feel free|done|q\.?e\.?d|remark|note)\b"
    r"|[\s$\\*(]*(?:blacksquare|square|qed)?[\s$\\*)]*$",
    re.IGNORECASE,
)
_SUBORDINATE = re.compile(
    r"^[\s*]*(?:(?:so|thus|hence|therefore|and|but),?\s+)?(?:since|because|as|given|if|when|while|although|though"
    r"|even though"
    r"|starting|after|before|counting|from|facing|of|among|comparing|unlike|with|for|knowing|by|in|on|instead of"
    r"|rather than|despite)\b[^,]*,\s*",
    re.IGNORECASE,
)
_CONCLUSION = re.compile(
    r"(?:^|[\s,;])(?:so|thus|hence|therefore|which means|meaning|(?<=[,;]\s)but)\b(?! far\b),?\s*", re.IGNORECASE
)
_REASON = re.compile(
    r",?\s+\(?(?:because|since|which|where|as|who|while|whereas|rather than|instead of|than|after|before|followed"
    r"|compared"
    r"|unlike|although|though|given|due to|regardless|for (?:all|every|any|each)|if|when|whenever)\b.*"
    r"|[,;(]\s*(?:and\s+)?not\b.*|\s+(?:and|but)\s+not\b.*|[,;:\u2014]\s+(?:with|it|she|he|they|this|we|having"
    r"|one|two|\d).*",
    re.IGNORECASE | re.DOTALL,
)
_NEGATION = re.compile(
    r"\b(?:not|never|neither|nor|no|none|cannot|non|hardly|unlikely|without|except|wrong|false|incorrect"
    r"|impossible|doubt\w*"
    r"|unless|mistaken\w*|almost|nearly|barely|ruled? out|eliminat\w+|exclud\w+)\b|\bbut\s*\||n['\u2019]t\b|\bnon-",
    re.IGNORECASE,
)
_SAYS = re.compile(
    r"(?:\b(?:is|are|was|were|be|being|becomes?|equals?|on|in|at|from|to|by|as|facing|faces|called|named|remains?|wins?"
    r"|has|have"
    r"|chose|choose|chooses|pick|name|points|heading|toward|towards|due|get|obtain)|['\u2019]s|[:=]|^"
    r"|\bi\.e\.,?|\b(?:namely|that is|in other words),?)\s*"
    r"(?:(?:an?|the|indeed|therefore|always|clearly|actually|definitely|thus|also|due|directly|on|in|to|by|of"
    r"|again|exactly"
    r"|(?:month|day|equation|graph|shape|form|name) of|point|overall)\s+)*[\"'\u201c(]*$",
    re.IGNORECASE,
)
_LINK = re.compile(
    r"^[\s*]*(?:(?:so|thus|hence|therefore|consequently|overall|finally|in conclusion|and|then)\b[,:]?\s*)+",
    re.IGNORECASE,
)
_SECOND = re.compile(
    r"\s*(?:/|,?\s*\b(?:or|and|nor|versus|vs)\b)\s*(?:perhaps |maybe |possibly |an? |the )?[A-Za-z]", re.IGNORECASE
)
_COMPARATIVE = re.compile(r"\s+(?:\w+er|more|less|better|worse|if|though|when|after|the|a|with)\b", re.IGNORECASE)
_VERBS = frozenset({"converges", "diverges"})
_ADDS = frozenset({"or", "and", "but", "no", "not", "nor", "then", "wait", "isn't", "maybe", "perhaps", "possibly"})
_BEGINS = re.compile(r"(?:^|\b(?:that|means|conclude)\s)\s*$")
_OPERAND = re.compile(
    r"\b(?:after|before|from|past|following)\s+[A-Z][a-z]+\b|\b[A-Z][a-z]+\s+(?:plus|minus|\+|-|\u2212)\s", re.ASCII
)
"""A day or a month from which another one is counted."""
_NAME = re.compile(r"(?<=[a-z,;:] )(?:\*\*)?([A-Z][a-z]+)\b")


def states(gold: str, response: str) -> bool:
    """Whether a response without a box ends with the claim that the answer is the word, or the letter, of the gold."""
    letter = _CHOICE.fullmatch(gold.strip())
    if letter is not None:
        return choice.answer_of(after_thinking(response)[-_MAX_TAIL:]) == next(filter(None, letter.groups()))
    phrase = _phrase(gold)
    if phrase is None or "\\boxed" in response or "\\fbox" in response:
        return False
    text = answer_text(after_thinking(response))[-_MAX_TAIL:]
    if prose.may_deny(text) and (rest := prose.after_retraction(text)) is not None:
        text = rest
    rivals = _rivals(phrase, text)
    sentences = [part for part in _SENTENCES.split(text) if any(map(str.isalpha, part))]
    if phrase.lower() in ("yes", "no") and (said := _leading_yes_no(sentences)):
        return said == {phrase.lower()}
    for sentence in sentences[: -_MAX_SENTENCES - 1 : -1]:
        if mood.gives_up(sentence):
            return False
        plain = _plain(sentence)
        if _find(phrase, plain) is not None:
            return _claims(phrase, plain, rivals, _bold(sentence))
        if not _ASIDE.match(sentence) or _has_any(rivals, plain):
            return False
    return False


@functools.lru_cache(maxsize=1024)
def _phrase(gold: str) -> str | None:
    words = _WORDS.fullmatch(gold.strip())
    return words[1] if words else None


def _rivals(phrase: str, text: str) -> frozenset[str]:
    """Other answers of the same kind: of a closed kind, or the other names in the text."""
    word = phrase.lower()
    kinds = [kind for kind in _KINDS if word in kind]
    if kinds:
        return frozenset[str]().union(*kinds) - {word}
    if not phrase[0].isupper():
        return frozenset()
    return frozenset(name.lower() for name in _NAME.findall(text)) - set(word.split()) - _KINDS[0] - _KINDS[1]


def _plain(sentence: str) -> str:
    """The sentence without emphasis, dollar signs and quotes."""
    text = BOLD.sub(lambda match: next(filter(None, match.groups())), sentence)
    text = FORMULA.sub(lambda match: next(filter(None, match.groups())), text)
    return re.sub(r"\\(?:text|textbf|mathrm)\s*\{([^{}]*)\}", r"\1", text).replace("**", "").strip(" .!*#>-\t")


def _bold(sentence: str) -> list[str]:
    return [next(filter(None, match.groups())).strip(" .:!,").lower() for match in BOLD.finditer(sentence)]


def _find(phrase: str, text: str) -> re.Match[str] | None:
    return re.search(rf"(?<![\w-]){re.escape(phrase)}s?(?![\w-])", text, re.IGNORECASE)


def _has_any(words: frozenset[str], text: str) -> bool:
    return any(word in words for word in re.findall(r"[a-z]+", text.lower()))


def _claims(phrase: str, sentence: str, rivals: frozenset[str], bold: list[str]) -> bool:
    if phrase.lower() not in ("true", "false") and prose.after_wrong(sentence) is not None:
        return False
    cue = list(_CUE.finditer(sentence))
    core = sentence[cue[-1].end() :] if cue else _core(phrase, sentence, rivals)
    place = _find(phrase, core)
    if place is None or (cue and prose.negated_before(sentence, cue[-1].start())):
        return False
    if not mood.is_claim(sentence if cue else _concluded(phrase, sentence, rivals)):
        return False
    before, after = core[: place.start()], _without_apposition(core[place.end() :], rivals)
    if phrase.lower() == "neither":
        return _SAYS.search(before) is not None and not _NEGATION.search(before)
    if _NEGATION.search(f"{before} | {after}") or _SECOND.match(after):
        return False
    if phrase.lower() == "even" and _COMPARATIVE.match(after):
        return False
    if _has_any(rivals, f"{_OPERAND.sub(' ', before)} | {after}") and not (phrase.lower() in bold and len(bold) == 1):
        return False
    return _is_said(phrase, _LINK.sub("", before), after)


def _is_said(phrase: str, before: str, after: str) -> bool:
    """Whether the sentence says that something is the phrase, or it is a name that begins the sentence."""
    if phrase[0].isupper() and _BEGINS.search(before):
        return not after.strip() or re.match(r"(?:['\u2019]s)?\s+[a-z]|[,:.(\s]", after) is not None
    return phrase.lower() in _VERBS or _SAYS.search(before) is not None


def _without_apposition(after: str, rivals: frozenset[str]) -> str:
    """The text after the phrase, up to a comma that begins no second answer."""
    head, _, rest = after.partition(",")
    word = re.match(r"[\s*(]*([A-Za-z']*)", rest)
    first = word[1].lower() if word else ""
    return after if first in rivals or first in _ADDS or re.search(r"\b(?:or|but)\b", rest) else head


def _concluded(phrase: str, sentence: str, rivals: frozenset[str]) -> str:
    """The last part of a sentence after "so" or "but" that has an answer."""
    parts = _CONCLUSION.split(sentence)
    return next((part for part in reversed(parts) if _find(phrase, part) or _has_any(rivals, part)), sentence)


def _core(phrase: str, sentence: str, rivals: frozenset[str]) -> str:
    """The main clause of a sentence: without the conditions before it and the reasons after it."""
    last = _concluded(phrase, sentence, rivals)
    for _ in range(2):
        main = _SUBORDINATE.sub("", last, count=1)
        if main == last or not (_find(phrase, main) or _has_any(rivals, main)):
            break
        last = main
    short = _REASON.sub("", last, count=1)
    return short if _find(phrase, short) else last


def _leading_yes_no(sentences: list[str]) -> set[str]:
    """What sentences that begin with yes or no say."""
    starts = (
        re.match(
            r"[\s*#>]*(?:(?:so|thus|therefore|hence),?\s+)?(yes|no)\b[\s*]*(?:[,.!:;\u2014-]|$)", part, re.IGNORECASE
        )
        for part in sentences
    )
    return {start[1].lower() for start in starts if start}
