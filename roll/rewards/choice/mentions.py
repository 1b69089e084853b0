"""Where a sentence names options, by letter, by text or in a box, and whether it claims or rejects them."""

from __future__ import annotations

import bisect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from roll.rewards.choice import wording
from roll.rewards.choice.options import OptionTexts

_MAX_CONTEXT_CHARS = 240
_MAX_LEAD_CHARS = 1_000
_WORD_CHARS = r"0-9A-Za-zÀ-ɏ'"
_LETTER = re.compile(
    rf"(?<![{_WORD_CHARS}\\])(?<!\w[(\[])([(\[]{{0,2}})(?:(?<=[(\[])\s)?([A-Za-z])((?:\s?[)\]]){{0,2}})"
    rf"(?!-?[{_WORD_CHARS}])(?!\s?[=<>^+*/≤≥≠]\s?(?!correct|right)[{_WORD_CHARS}(])"
)
FIRST_BOX = 0xE000
"""Code of the character that represents the first box of a response, between white brackets."""
_BOX = re.compile(r"⟦(.)⟧")
_NAMED = re.compile(r"(?:option|choice|answer|letter|选项|選項)\s*$", re.IGNORECASE)
_DELIMITER = re.compile(r"\s*[.:,;)\]!-]|\s*$|\s+(?:because|since)\b")
_ARTICLE = re.compile(
    r"\s+(?!(?:or|and|nor|is|ist|est|es|was|isn't|wasn't|fits|works|because|since|as|it|for|if|but|not|with|remains|would"
    r"|must|should|has"
    r"|looks|seems|does|doesn't|can|can't|cannot|could|vs|versus|then|to|rather|instead|over|beats|fails|holds"
    r"|matches|by|given"
    r"|so|please|here|now|again|based|when|while|whereas|which|due|definitely|correct|right|wrong|incorrect|too|also|wins|itself|alone|though|however|only)\b)[a-z]"
)
_SEPARATOR = re.compile(
    r"(?:[\s,;/&+|()\[\]-]|(?<![A-Za-z])(?:and/or|and|or|nor|as well as|along with|together with|plus|but also"
    r"|maybe|possibly"
    r"|perhaps|even|also|alternatively|otherwise|else|to|through|option|choice|answer|options|the|with|either|both"
    r"|und|oder|y|o)"
    r"(?![A-Za-z])|和|或|与|跟|及|还是|還是)*"
)
_CONJUNCTION = re.compile(
    r"(?<![A-Za-z])(?:and|or|nor|as well as|also|plus|maybe|perhaps|possibly)(?![A-Za-z])|[/&+|]|和|或|与|及|还是|還是"
)
_NEW_CLAUSE = re.compile(
    r"\s+(?:is|was|isn't|wasn't|has|would|does|doesn't|can|can't|cannot|could|couldn't|fails|contradicts|ignores"
    r"|looks|seems"
    r"|must|should|won't|[a-z]{3,}s)\b"
)


_ALL_BUT = re.compile(r"\b(?:any|every|all|each|none|no)(?:thing|one|body)?(?: \w+)?\s*$", re.IGNORECASE)
_ONLY = re.compile(
    r"(?<![A-Za-z])(?:everything|all|all (?:the )?(?:options|choices|answers)|every (?:option|choice|answer))"
    r" (?:except|but|other than|besides|apart from)(?: for)?(?: option| choice)? $",
    re.IGNORECASE,
)
"""Before the only option that a sentence leaves ("all but B are wrong")."""
_LABEL_EQUALS = re.compile(
    r"\W*(?:(?:option |choice )?[A-J]|\d+\s?\*?\s?[a-z](?:\^\d)?|[a-z]\^\d)\s?=\s*", re.IGNORECASE
)
"""The left side of an equation that is no result: a label ("B = 12"), or an unknown to be solved for ("2x = 12")."""
_ACCOMPANIED = re.compile(r"[)\]]?, with ")
_CAN_GO = re.compile(r" can be (?:eliminated|ruled out|excluded|discarded|dismissed|rejected)")
_RANGE = re.compile(r"(?<![A-Za-z])from \S{1,20} to (?:option )?$", re.IGNORECASE)
_SAME = re.compile(r"(?<![A-Za-z])(?:so|as|nor) (?:is|are|does|do|was)\s*$", re.IGNORECASE)
_FILLER = re.compile(rf"\W*{wording.LEAD}", re.IGNORECASE)


class Stance(IntEnum):
    """What a sentence does with a group of options; the smaller a claim's number, the stronger."""

    BOXED = 1
    STATED = 2
    JUDGED = 3
    WEAK = 4
    MENTIONED = 5
    REJECTED = 6


@dataclass(frozen=True, slots=True)
class Mention:
    """Options that a sentence names together ("A", "(B) or C", "B) 12 m")."""

    start: int
    end: int
    letters: frozenset[str]
    boxed: bool = False
    text: bool = False
    """Whether it begins with an option's text, not a letter."""


def find_groups(sentence: str, options: OptionTexts, boxes: Sequence[frozenset[str]]) -> list[Mention]:
    """Every group of options in a sentence, in order; `boxes` has the options of the boxes of the response."""
    groups: list[Mention] = []
    for group in _find_single(sentence, options, boxes):
        previous = groups[-1] if groups else None
        if previous is not None and _joined(sentence, previous, group):
            letters, boxed = previous.letters | group.letters, previous.boxed or group.boxed
            groups[-1] = Mention(previous.start, group.end, letters, boxed, previous.text)
        else:
            groups.append(group)
    return groups


def _find_single(sentence: str, options: OptionTexts, boxes: Sequence[frozenset[str]]) -> list[Mention]:
    texts = [Mention(span.start, span.end, frozenset(span.letter), text=True) for span in options.spans(sentence)]
    boxed = [
        Mention(box.start(), box.end(), boxes[ord(box[1]) - FIRST_BOX], boxed=True)
        for box in _BOX.finditer(sentence)
        if boxes[ord(box[1]) - FIRST_BOX]
    ]
    spans = sorted(texts + boxed, key=lambda group: group.start)
    starts = [group.start for group in spans]
    letters = [
        Mention(letter.start(), letter.end(), frozenset(letter[2].upper()))
        for letter in _LETTER.finditer(sentence)
        if not _overlaps(letter, spans, bisect.bisect_left(starts, letter.end(2)))
        and _names_option(letter, sentence, options)
    ]
    return sorted(texts + boxed + letters, key=lambda group: group.start)


def _overlaps(letter: re.Match[str], spans: Sequence[Mention], index: int) -> bool:
    """Whether the last group that starts before a letter's end, at `index` - 1, covers it."""
    return index > 0 and letter.start(2) < spans[index - 1].end


def _names_option(letter: re.Match[str], sentence: str, options: OptionTexts) -> bool:
    """Whether a single letter names an option; "a" in "a bit", "A" in "A house" and "I" in "I think" do not."""
    if letter[2].upper() not in options.texts:
        return letter[2].isupper() and letter[2] != "I" and bool(letter[1] and letter[3])
    bracketed = bool(letter[1] or letter[3])
    named = _NAMED.search(sentence, max(0, letter.start() - 12), letter.start()) is not None
    if bracketed or named:
        return (
            letter[2].isupper()
            or letter[2] not in "ai"
            or bracketed
            or _DELIMITER.match(sentence, letter.end()) is not None
        )
    if letter[2].islower():
        return letter[2] != "i" and _DELIMITER.match(sentence, letter.end()) is not None
    return letter[2] not in "AI" or _ARTICLE.match(sentence, letter.end()) is None


def _joined(sentence: str, first: Mention, second: Mention) -> bool:
    between = sentence[first.end : second.start]
    if second.text and not first.text and re.fullmatch(r"\s*[.:)\]-]+\s*", between):
        return True
    if len(between) > 40 or _SEPARATOR.fullmatch(between) is None:
        return False
    if _ACCOMPANIED.match(between):
        return False
    if between.strip() == "to" and re.search(r"\bprefer|\bsuperior\b", sentence[: first.end + 20]):
        return False
    if first.letters == second.letters:
        return True
    new_clause = _NEW_CLAUSE.match(sentence, second.end) is not None
    if _CONJUNCTION.search(between):
        return not (new_clause and wording.REJECTED_AFTER.match(sentence, second.end))
    return not ("," in between or ";" in between or "- " in between) or not new_clause


def stances(sentence: str, groups: Sequence[Mention]) -> list[Stance]:
    """What a sentence does with each of its groups of options."""
    padded = [None, *groups, None]
    read: list[Stance] = []
    for before, group, after in zip(padded, groups, padded[2:], strict=False):
        same = before is not None and _SAME.search(sentence, before.end, group.start)
        read.append(read[-1] if same and read[-1] is Stance.REJECTED else _stance(sentence, group, before, after))
    return read


def _stance(sentence: str, group: Mention, previous: Mention | None, following: Mention | None) -> Stance:
    before = wording.without_idioms(sentence[: group.start][-_MAX_CONTEXT_CHARS:])
    after = sentence[group.end : following.start if following else None][:_MAX_CONTEXT_CHARS]
    whole, after = after, wording.CONTRAST_END.sub("", after) if following else after
    statement = wording.STATEMENT.search(before)
    choice = wording.CHOICE.search(before)
    cue = statement or choice
    clause = _clause(sentence, before, cue, (previous, group))
    if _ONLY.search(before) and (_rejected_after(after) or _CAN_GO.match(after)):
        return Stance.JUDGED
    if wording.REJECTED_BEFORE.search(clause) or wording.PARENTHETIC_NOT.search(before) or _rejected_after(after):
        return Stance.REJECTED
    if (
        wording.UNCLAIMED_BEFORE.search(clause)
        or wording.CONDITION_AFTER.match(after)
        or _counterfactual(before, after)
    ):
        return Stance.MENTIONED
    if group.boxed:
        return Stance.BOXED
    if cue:
        return Stance.BOXED if statement and re.search(r"\bfinal\b", statement[0], re.IGNORECASE) else Stance.STATED
    if whole != after and leads(sentence, group):
        return Stance.WEAK
    judged = _judged(before, after, sentence[: group.end][-_MAX_CONTEXT_CHARS:])
    nearly = judged is Stance.WEAK and wording.NONE_OF.search(before) and wording.NEARLY_AFTER.match(after)
    return Stance.MENTIONED if nearly else judged


def leads(sentence: str, group: Mention) -> bool:
    """Whether only filler words precede a group."""
    if group.start > _MAX_LEAD_CHARS:
        return False
    before = wording.IDIOM.sub("", sentence[: group.start])
    correction = wording.CORRECTION_START.match(before)
    return _FILLER.fullmatch(before, correction.end() if correction else 0) is not None


def _counterfactual(before: str, after: str) -> bool:
    return wording.COUNTERFACTUAL.match(before + "B" + after.partition(",")[0]) is not None


def _judged(before: str, after: str, through: str) -> Stance:
    verdict = wording.VERDICT_AFTER.match(after)
    if verdict is not None and _describes(verdict, after):
        verdict = None
    if verdict is not None and verdict["verdict"]:
        return Stance.JUDGED
    result = wording.EQUALS.search(before) and not _LABEL_EQUALS.fullmatch(before)
    ended = not after.strip(" .!)]") and (result or wording.APPOSED.search(through) is not None)
    if _RANGE.search(before):
        return Stance.MENTIONED
    cleft = wording.CLEFT_BEFORE.fullmatch(before) and wording.CLEFT_AFTER.match(after)
    if verdict is not None or ended or cleft or wording.WEAK_BEFORE.search(before):
        return Stance.WEAK
    return Stance.MENTIONED


def _describes(verdict: re.Match[str], after: str) -> bool:
    """Whether a verdict is none: it describes the word after it ("B: right angles"), or a cross or "?" follows."""
    if after.startswith("?", verdict.end()):
        return True
    if verdict["verdict"] == "✓":
        return "✗" in after
    attribute = wording.ATTRIBUTE.match(after, verdict.end()) is not None
    word = (verdict["verdict"] or "").lower()
    return word in ("correct", "right", "yes") and attribute and wording.JUDGES.search(verdict[0]) is None


def _rejected_after(after: str) -> bool:
    rejection = wording.REJECTED_AFTER.match(after)
    if rejection is None:
        return False
    return (
        _SEPARATOR.sub("", rejection[0]).casefold() not in ("not", "no") or wording.VERDICT_AFTER.match(after) is None
    )


def _clause(sentence: str, before: str, cue: re.Match[str] | None, pair: tuple[Mention | None, Mention]) -> str:
    """The part of the sentence before an option in which a negative word would reject it."""
    previous, group = pair
    limit = cue.start() if cue else len(before)
    starts = [
        boundary.end()
        for boundary in wording.CLAUSE.finditer(before, 0, limit)
        if boundary[0].lower() != "but" or _ALL_BUT.search(before[: boundary.start()]) is None
    ]
    start = starts[-1] if starts else 0
    if previous is not None and sentence[previous.end : group.start].strip() == ":":
        start = max(start, len(before) + previous.end - group.start)
    if cue is not None:
        start = max(start, before.rfind(":", 0, limit) + 1)
        if previous is not None:
            start = max(start, min(limit, previous.end - group.start + len(before)))
    return before[start:]
