"""The lines of a plain text: which begin with an option, and which of them list or discuss the options in turn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from roll.rewards.choice import wording
from roll.rewards.choice.mentions import Mention, Stance, find_groups, leads, stances
from roll.rewards.choice.options import OptionTexts

_BULLET = re.compile(r"\s*(?:[-*+>]+\s+(?![\d.√])|\d{1,2}[.)]\s+(?=[(\[]?[A-Z][)\].:]))")
_CHECKED = re.compile(r"\s*[-*+]?\s*\[[xX✓]\s?\]\s*|\s*✓\s+")
_MARGIN = re.compile(r"\s+")
_LABEL = re.compile(r"(?:(?i:option|choice|statement) )?(?:[(\[][A-Za-z][)\]]|[A-Za-z][).:\]]|[A-Za-z] -(?!>))\s*\S")
_DASHED = re.compile(r"\(?([A-Za-z])\)?(?:-|\s?/\s?)(?=\S)")
_UNCHECKED = re.compile(r"\s*[-*+]?\s*\[\s?\]\s|\s*✗\s+")
_ANNOUNCED = re.compile(
    r"analy[sz]|examin|evaluat|consider|assess|review|compar|go(?:ing)? (?:through|over)|look at|check|one by one"
    r"|(?:each|every|all|the) (?:of the )?(?:four |five |given |answer )*(?:options|choices|option|choice"
    r"|statements?)(?![A-Za-z])"
    r"|betracht|prüfen|analic|revisemos|examinons|vediamo|vejamos|逐|分析|判断|判斷|各选项|各選項",
    re.IGNORECASE,
)
"""A line that announces a discussion of the options."""
_ANNOUNCED_EACH = re.compile(
    r"(?:one by one|each|every|go(?:ing)? through|let's|let us|逐|分析|判断|判斷)[^\n]*:\s*$", re.IGNORECASE
)


_EXPLAINED = re.compile(r"\)?\s*(?:\([^()]{1,80}\))?\s*:|(?<=:)")


@dataclass(frozen=True, slots=True)
class Line:
    """One line, without its bullet or mark."""

    index: int
    start: int
    text: str
    head: Mention | None
    """The group that the line begins with, if it is written like a label."""
    bare: bool
    """Whether the line holds nothing but its first group."""
    labelled: bool
    """Whether it begins with the label of an option and continues with text."""
    rejected: bool
    """Whether the line rejects its first group."""


def split_lines(text: str, options: OptionTexts, boxes: Sequence[frozenset[str]]) -> list[Line]:
    """The lines of a text that are not empty."""
    lines: list[Line] = []
    start = 0
    for raw in text.split("\n"):
        if raw.strip():
            lines.append(_read_line(len(lines), start, raw.rstrip(), options, boxes))
        start += len(raw) + 1
    return lines


def _read_line(index: int, start: int, text: str, options: OptionTexts, boxes: Sequence[frozenset[str]]) -> Line:
    unchecked = _UNCHECKED.match(text)
    mark = unchecked or _CHECKED.match(text) or _BULLET.match(text) or _MARGIN.match(text)
    body, start = text[mark.end() :] if mark else text, start + (mark.end() if mark else 0)
    letter = _whole(body, options) if len(body) < 1_000 else None
    if letter is not None:
        whole = Mention(0, len(body), frozenset(letter), text=True)
        return Line(index, start, body, whole, bare=not unchecked, labelled=False, rejected=bool(unchecked))
    groups = find_groups(body[:1_000], options, boxes)
    head = groups[0] if groups and leads(body, groups[0]) else None
    bare = head is not None and not unchecked and wording.BARE_AFTER.fullmatch(body, head.end) is not None
    labelled = head is not None and len(head.letters) == 1 and _LABEL.match(body) is not None
    rejected = bool(unchecked) or text.endswith("✗") or (head is not None and _rejects_head(body[:1_000], groups))
    return Line(index, start, body, head, bare=bare, labelled=labelled, rejected=rejected)


def _whole(body: str, options: OptionTexts) -> str | None:
    """The option whose text a line is, also with its letter and a dash ("B-Nitrogen")."""
    dashed = _DASHED.match(body)
    letter = options.match(body[dashed.end() :]) if dashed else None
    return letter if dashed and letter == dashed[1].upper() else options.match(body)


def _rejects_head(line: str, groups: Sequence[Mention]) -> bool:
    rejected = wording.LABEL_REJECTED.match(line, groups[0].end) is not None
    return rejected or stances(line, groups[:2])[0] is Stance.REJECTED


def find_lists(lines: Sequence[Line]) -> set[int]:
    """Indices of lines that restate the options one after the other."""
    members: set[int] = set()
    run: list[Line] = []
    for line in lines:
        if not line.labelled:
            run = []
            continue
        run = [*run, line] if run and letter_of(run[-1]) < letter_of(line) else [line]
        if len(run) > 1:
            members |= {member.index for member in run}
    return members | _headings([line for line in lines if line.labelled])


def _headings(labelled: Sequence[Line]) -> set[int]:
    """Indices of lines that begin the discussions of at least three options, from A on, each over several lines."""
    members: set[int] = set()
    run: list[Line] = []
    for line in labelled:
        follows = run and line.index > run[-1].index + 1 and ord(letter_of(line)) == ord(letter_of(run[-1])) + 1
        run = [*run, line] if follows else [line] if letter_of(line) == "A" else []
        if len(run) > 2:
            members |= {member.index for member in run}
    return members


def letter_of(line: Line) -> str:
    """The letter that a line begins with; empty if it begins with none."""
    return min(line.head.letters) if line.head else ""


def announced(line: Line, lines: Sequence[Line]) -> bool:
    """Whether a line is the first option below a line that announces them one by one, and the last of the text."""
    last = line.index == len(lines) - 1 and line.index > 0
    return last and letter_of(line) == "A" and _ANNOUNCED_EACH.search(lines[-2].text[-300:]) is not None


def enumerates(line: Line, lines: Sequence[Line]) -> bool:
    """Whether a line goes on with a discussion of the options one after the other, or begins an announced one."""
    if line.index == 0:
        later = next((other for other in lines[1:] if other.labelled), None)
        return letter_of(line) == "A" and later is not None and letter_of(later) == "B" and not later.rejected
    previous = lines[line.index - 1]
    if letter_of(line) == "A" and _ANNOUNCED.search(previous.text[-300:]):
        return True
    if _explains(previous) and _explains(line) and letter_of(previous) < letter_of(line):
        return True
    earlier = next((other for other in reversed(lines[: line.index]) if other.labelled), None)
    return earlier is not None and ord(letter_of(line)) == ord(letter_of(earlier)) + 1


def _explains(line: Line) -> bool:
    """Whether a line is an option, a colon and words about it."""
    return line.head is not None and not line.bare and _EXPLAINED.match(line.text, line.head.end) is not None
