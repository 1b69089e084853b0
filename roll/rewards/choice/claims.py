"""The options that a text commits to: its claims in order, of which later and stronger ones replace earlier ones."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from roll.rewards.choice import phrasing, questions, wording
from roll.rewards.choice.conclusions import concluded
from roll.rewards.choice.lines import Line, announced, enumerates, find_lists, split_lines
from roll.rewards.choice.mentions import FIRST_BOX, Mention, Stance, find_groups, leads, stances
from roll.rewards.choice.options import OptionTexts, with_letters
from roll.rewards.choice.prose import named
from roll.rewards.choice.reviews import reviewed
from roll.rewards.choice.surface import plain
from roll.rewards.response import find_boxes

_HEAD_CHARS = 6_000
_TAIL_CHARS = 24_000
"""Characters read at the start and at the end of a response; the middle of a longer one is not read."""
_MAX_BOXES = 64
_MAX_GROUPS = 300
"""Mentions of options judged, from the last backwards; those of the first lines are judged in any case."""
_MAX_FIRST_LINES = 8
_MAX_SENTENCES_PER_LINE = 80
_MAX_GROUPS_PER_SENTENCE = 40
_BOX_WITHOUT_BRACES = re.compile(r"\\(?:boxed|fbox)[ ]{0,3}(?:\(([A-Za-z])\)|([A-Za-z])(?![A-Za-z]))")
_LOST_BACKSLASH = re.compile(r"(?:\x08|(?<![\\A-Za-z])b?)oxed\{|(?<![\\A-Za-z])fbox\{")
_ATTACHED = re.compile(r"\b(option|choice|answer)(?=[(\[][A-Za-z][)\]])", re.IGNORECASE)
_ESCAPED = re.compile(r"\\{2,4}(?=(?:boxed|fbox|text|textbf|mathrm|mathbf)\b)")
_INLINE_LIST = re.compile(r"\(?A([:.)]| \()[^\n]{0,200}?(?<![A-Za-z])B\1[^\n]{0,200}?(?<![A-Za-z])C\1")
_SENTENCE_END = re.compile(r"(?<![A-Za-z]\.[a-z])(?<!\be\.g)[.!?](?=[\s)\]⟧]|$)|(?<=[^\x00-\x7f])[.!?]")
_TAG = re.compile(
    r"[<\[](answer|final_answer|final|ans|choice|option|selection)[>\]]"
    r"((?:(?![<\[]/?\1[>\]]).){0,4000})(?:[<\[]/\1[>\]]|\Z)",
    re.IGNORECASE | re.DOTALL,
)
"""An answer in tags; the last one may lack its closing tag."""
_DOUBTED = re.compile(r"[^.!?\n]{0,20}(?:correct|right|true)\?", re.IGNORECASE)
_JUDGEMENTS = (Stance.JUDGED, Stance.WEAK)
_LABEL_END = re.compile(r"^\W{0,3}[A-Za-z]\.(?=\s)")


@dataclass(frozen=True, slots=True)
class _Claim:
    """One claim or rejection of options, with the text since the claim before it."""

    letters: frozenset[str]
    stance: Stance
    line: int
    start: int
    end: int
    sentence: str
    before: str
    after: str
    bare: bool = False


def committed(text: str, options: OptionTexts, *, negative_question: bool = False, prompt: str = "") -> frozenset[str]:
    """Letters of the options that a text commits to; several if it leaves open which."""
    raw = _shorten(text)
    text, boxes = _take_boxes(raw, options)
    text = questions.stated(phrasing.restated(with_letters(plain(text), options), options))
    lines = split_lines(text, options, boxes)
    negative_question = negative_question or questions.asks_negatively(text)
    letters = _resolve(list(_claims(lines, options, boxes)), text, negative_question, options)
    if boxes or 0 < len(letters) < min(3, len(options.texts)):
        return letters
    letters = reviewed(text, options, negative_question) or letters
    if letters or negative_question:
        return letters
    return named(text, options, prompt) or concluded(raw, text, options, prompt)


def committed_in_tags(text: str, options: OptionTexts) -> frozenset[str] | None:
    """Letters of the last answer tags that name any; None if none do. Tags side by side are one claim."""
    letters: frozenset[str] | None = None
    end = 0
    for tag in _TAG.finditer(text):
        inside = _inside(tag[2], options)
        if not inside:
            continue
        repeated = letters is not None and letters != inside
        letters = (letters or inside) | inside if repeated and not _revised(text[end : tag.start()]) else inside
        end = tag.end()
    return letters


def _revised(between: str) -> bool:
    return (wording.CORRECTION.search(between) or wording.CONCLUSION.search(between)) is not None


def _shorten(text: str) -> str:
    if len(text) <= _HEAD_CHARS + _TAIL_CHARS:
        return text
    head, tail = text[:_HEAD_CHARS].split(" "), text[-_TAIL_CHARS:].split(" ")
    return " ".join(head[:-1] or head) + "\n\n" + " ".join(tail[1:] or tail)


def _take_boxes(text: str, options: OptionTexts) -> tuple[str, list[frozenset[str]]]:
    """The text with numbered marks in place of its boxes, and the options of each box."""
    text = text.replace("⟦", "[").replace("⟧", "]")
    text = _ESCAPED.sub(r"\\", text)
    text = _ATTACHED.sub(r"\1 ", text)
    text = _LOST_BACKSLASH.sub(r"\\boxed{", _BOX_WITHOUT_BRACES.sub(r"\\boxed{\1\2}", text))
    pieces, boxes, end = list[str](), list[frozenset[str]](), 0
    for box in find_boxes(text)[-_MAX_BOXES:]:
        pieces += [text[end : box.start], f" ⟦{chr(FIRST_BOX + len(boxes))}⟧ "]
        boxes.append(_inside(box.content, options))
        end = box.end
    return "".join([*pieces, text[end:]]), boxes


def _inside(content: str, options: OptionTexts) -> frozenset[str]:
    """The options of a box or a tag, whose whole content is the claim."""
    letter = options.match(content)
    if letter is not None:
        return frozenset(letter)
    text = plain(content[:2_000]).strip()
    if re.fullmatch(r"[(\[]?[A-Za-z][)\].:]?", text):
        return frozenset(text.strip("()[].:").upper())
    return committed(content[:2_000], options) if "boxed" not in content else frozenset()


def _claims(lines: Sequence[Line], options: OptionTexts, boxes: Sequence[frozenset[str]]) -> Iterator[_Claim]:
    lists = find_lists(lines)
    groups_left = _MAX_GROUPS
    read: list[list[_Claim]] = []
    for line in reversed(lines):
        claim = None if line.index in lists and not line.text.endswith("✓") else _line_claim(line, lines)
        claims = [claim] if claim is not None else []
        if (claim is None or not line.bare) and (groups_left > 0 or line.index < _MAX_FIRST_LINES):
            claims += _sentence_claims(line, options, boxes, skip=claim.end - line.start if claim else 0)
            groups_left -= len(claims)
        read.append(claims)
    for claims in reversed(read):
        yield from claims


def _line_claim(line: Line, lines: Sequence[Line]) -> _Claim | None:
    """The claim of a line that is an option, or that begins with one and is the first, the last or below a heading."""
    if line.head is None or line.rejected or line.text.endswith("?") or _INLINE_LIST.match(line.text):
        return None
    if announced(line, lines) or _DOUBTED.match(line.text, line.head.end):
        return None
    edge = line.index in (0, len(lines) - 1)
    headed = line.index > 0 and wording.HEADING.match(lines[line.index - 1].text) is not None
    after = line.text[line.head.end :]
    labelled = (edge or headed) and (line.labelled or wording.REASON_AFTER.match(after) is not None)
    labelled = labelled and (headed or not enumerates(line, lines))
    if not line.bare and not labelled and not line.text.endswith("✓"):
        return None
    stance = Stance.BOXED if line.head.boxed else Stance.STATED
    return _claim(line, line.head, stance, line.text, 0, bare=True)


def _sentence_claims(
    line: Line, options: OptionTexts, boxes: Sequence[frozenset[str]], *, skip: int
) -> Iterator[_Claim]:
    for start, sentence in list(_sentences(line.text))[-_MAX_SENTENCES_PER_LINE:]:
        if sentence.endswith("?"):
            continue
        groups = find_groups(sentence, options, boxes)[-_MAX_GROUPS_PER_SENTENCE:]
        for group, stance in zip(groups, stances(sentence, groups), strict=True):
            bare = leads(sentence, group) and wording.BARE_AFTER.fullmatch(sentence, group.end) is not None
            corrects = leads(sentence, group) and wording.CORRECTION_START.match(sentence) is not None
            if stance is Stance.MENTIONED and bare and (start > 0 or corrects):
                stance = Stance.WEAK
            if line.rejected and line.head and line.head.start == start + group.start and stance in _JUDGEMENTS:
                stance = Stance.REJECTED
            if start + group.end > skip:
                yield _claim(line, group, stance, sentence, start)


def _claim(line: Line, group: Mention, stance: Stance, sentence: str, offset: int, *, bare: bool = False) -> _Claim:
    start = line.start + offset
    return _Claim(
        letters=group.letters,
        stance=stance,
        line=line.index,
        start=start + group.start,
        end=start + group.end,
        sentence=sentence,
        before=sentence[: group.start],
        after=sentence[group.end :],
        bare=bare,
    )


def _sentences(line: str) -> Iterator[tuple[int, str]]:
    """The sentences of a line with their places in it."""
    label = _LABEL_END.match(line)
    ends = [end.end() for end in _SENTENCE_END.finditer(line, label.end() if label else 0)]
    for start, end in zip([0, *ends], [*ends, len(line)], strict=True):
        sentence = line[start:end]
        if sentence.strip():
            yield start + len(sentence) - len(sentence.lstrip()), sentence.strip()


def _resolve(claims: Sequence[_Claim], text: str, negative_question: bool, options: OptionTexts) -> frozenset[str]:
    """Fold the claims in order: a later one replaces, joins or is ignored beside the current one."""
    current: _Claim | None = None
    for claim in claims:
        between = text[current.end : claim.start] if current else ""
        if claim.stance is Stance.WEAK and negative_question and wording.TRUE_AFTER.match(claim.after):
            continue
        if claim.stance is Stance.REJECTED:
            if current and claim.letters >= current.letters and _withdraws(claim, between, negative_question):
                current = None
        elif claim.stance is Stance.MENTIONED:
            if current and current.letters != claim.letters and _adds(claim, current, between):
                current = _joint(current, claim)
        else:
            current = _next(current, claim, between)
    if current is None or _withdrawn(text[current.end :]) or _unfinished(current, text):
        return frozenset()
    says_none = any(phrasing.NONE.search(options.texts.get(letter, "")) for letter in current.letters)
    withdrawn = not says_none and phrasing.finds_none(text[current.end :], current.letters)
    return frozenset() if withdrawn else current.letters


def _next(current: _Claim | None, claim: _Claim, between: str) -> _Claim:
    if current is None or current.letters == claim.letters:
        return claim if current is None or claim.stance <= current.stance else current
    if claim.letters < current.letters:
        return claim
    if _adds(claim, current, between):
        return _joint(current, claim)
    if _replaces(current, claim, between):
        return claim
    if claim.stance is Stance.WEAK and current.stance < Stance.WEAK:
        return current
    if claim.stance is Stance.JUDGED and current.stance < Stance.JUDGED and len(claim.letters) > 1:
        return current
    return _joint(current, claim)


def _replaces(current: _Claim, claim: _Claim, between: str) -> bool:
    """Whether a claim for another option replaces the current one: it corrects it, concludes, or is stronger."""
    if claim.stance is Stance.WEAK:
        if wording.TRUE_AFTER.match(current.after) and wording.TRUE_AFTER.match(claim.after):
            return False
        if current.stance is Stance.WEAK and (claim.line != current.line or wording.EQUALS.search(claim.before)):
            return True
        if current.stance > Stance.STATED and re.search(r"\bbut\b[^.!?\n]*$", between):
            return True
        return _corrected(between) or (current.stance is Stance.WEAK and (_concludes(claim) or _corrects(between)))
    concludes = _concludes(claim) and current.stance > Stance.BOXED
    return claim.stance < current.stance or concludes or _corrects(between)


def _corrected(between: str) -> bool:
    """Whether a sentence between two claims, or the one of the later claim, begins with a correction."""
    parts = re.split(r"[.!?\n;]\s*|,\s+|\s-\s", between)
    return any(wording.CORRECTION_START.match(part) for part in parts[1:])


def _corrects(between: str) -> bool:
    return wording.CORRECTION.search(between) is not None


def _concludes(claim: _Claim) -> bool:
    return wording.CONCLUSION.search(claim.before) is not None


def _adds(claim: _Claim, current: _Claim, between: str) -> bool:
    """Whether a claim names a further option beside the current one ("also C", "or maybe C", "C works too")."""
    if claim.line > current.line + 1 or wording.CORRECTION_START.match(claim.sentence):
        return False
    if wording.SUBORDINATE.match(claim.sentence):
        return False
    joined = between.lstrip(" .,;)\n")
    added = len(joined) < 40 and wording.ADDITION.match(joined) is not None
    same = wording.SAME_BEFORE.search(claim.before) is not None and not wording.REJECTED_BEFORE.search(claim.before)
    return added or same or wording.ALSO_AFTER.match(claim.after) is not None


def _joint(current: _Claim, claim: _Claim) -> _Claim:
    stance = min(current.stance, claim.stance)
    return _Claim(
        letters=current.letters | claim.letters,
        stance=stance,
        line=claim.line,
        start=claim.start,
        end=claim.end,
        sentence=claim.sentence,
        before=claim.before,
        after=claim.after,
    )


def _withdraws(claim: _Claim, between: str, negative_question: bool) -> bool:
    if _corrected(between) or wording.CORRECTION_START.match(claim.sentence):
        return True
    return not negative_question and wording.WRONG_AFTER.match(claim.after) is not None


def _unfinished(claim: _Claim, text: str) -> bool:
    return claim.stance is Stance.WEAK and wording.GOES_ON.search(text, claim.end) is not None


def _withdrawn(rest: str) -> bool:
    """Whether the text after the last claim takes it back without another one ("Wait, that is wrong.")."""
    return any(
        wording.NO_SENTENCE.fullmatch(sentence)
        or (wording.CORRECTION_START.match(sentence) and wording.WITHDRAWAL.search(sentence) and len(sentence) < 80)
        for sentence in re.split(r"[.!?\n]\s*", rest[:2_000])[1:]
        if sentence.strip()
    )
