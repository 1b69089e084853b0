"""Where a reply says what it means: after its thinking, between its answer tags, in its boxes. One pass each."""

from __future__ import annotations

import re
from dataclasses import dataclass

_BRACES = re.compile(r"\\(?:boxed|fbox)[ \t\n]{0,8}\{|\\.|[{}]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Box:
    """One complete \\boxed{...}."""

    start: int
    end: int
    content: str


def spoken(reply: str) -> str:
    """What follows the thinking, or stands between the last answer tags there; empty while it still thinks."""
    text = reply.rpartition("</think>")[2]
    if "<think>" in text:
        return ""
    before, closed, _ = text.rpartition("</answer>")
    _, opened, answer = before.rpartition("<answer>")
    return answer if opened and closed else text


def boxes(text: str) -> list[Box]:
    """Every complete box in order of its end, boxes within boxes left out."""
    open_braces: list[tuple[int, int] | None] = []  # where a box and its content begin; None for any other brace
    found: list[Box] = []
    for brace in _BRACES.finditer(text):
        if brace[0] == "}":
            begin = open_braces.pop() if open_braces else None
            if begin is not None:
                while found and found[-1].start > begin[0]:
                    found.pop()
                found.append(Box(begin[0], brace.end(), text[begin[1] : brace.start()]))
        elif brace[0].endswith("{") and brace[0] != r"\{":
            open_braces.append((brace.start(), brace.end()) if len(brace[0]) > 1 else None)
    return found
