"""The parts of a response that hold its answer: text after thinking, answer tags, boxes, JSON. Linear time."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Never

_BRACES = re.compile(r"\\(?:boxed|fbox)[ \t\n]{0,8}\{|\\.|[{}]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Box:
    """One complete \\boxed{...}."""

    start: int
    end: int
    content: str


def after_thinking(response: str) -> str:
    """Text after the last `</think>`; empty if the thinking has not ended."""
    text = response.rpartition("</think>")[2]
    return "" if "<think>" in text else text


def answer_text(response: str) -> str:
    """Text after the thinking, or inside its last answer tags; empty if the thinking has not ended."""
    text = after_thinking(response)
    before, closed, _ = text.rpartition("</answer>")
    _, opened, answer = before.rpartition("<answer>")
    return answer if opened and closed else text


def find_boxes(text: str) -> list[Box]:
    """Every complete outermost box, in order of its end."""
    open_braces: list[tuple[int, int] | None] = []  # start of a box and of its content; None for any other brace
    boxes: list[Box] = []
    for brace in _BRACES.finditer(text):
        if brace[0] == "}":
            opening = open_braces.pop() if open_braces else None
            if opening is not None:
                while boxes and boxes[-1].start > opening[0]:
                    boxes.pop()
                boxes.append(Box(opening[0], brace.end(), text[opening[1] : brace.start()]))
        elif brace[0].endswith("{") and brace[0] != r"\{":
            open_braces.append((brace.start(), brace.end()) if len(brace[0]) > 1 else None)
    return boxes


def parse_json(text: str, **options: Any) -> Any:
    """The value of a text that is JSON, parsed with these options of `json.loads`; ValueError for any other text."""
    try:
        return json.loads(text, parse_constant=_refuse, **options)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse(constant: str) -> Never:
    raise ValueError(f"{constant} is not JSON")
