"""Parse actions out of responses, and count valid and effective actions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")
Cell = tuple[int, int]
"""Row and column, from the top left."""

STEPS: dict[str, Cell] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
MOVES = {spelling: move for move in STEPS for spelling in (move, move[0])}
"""Accepted spellings in lower case, with the move each one names."""


def extract_action(response: str, tag: str = "") -> str | None:
    """The text of the last `<tag>` of a response, or the whole response without a tag; None if no tag is closed.

    Surrounding whitespace is stripped.
    """
    if not tag:
        return response.strip()
    opening, closing = f"<{tag}>", f"</{tag}>"
    end = response.rfind(closing)
    begin = response.rfind(opening, 0, max(end, 0))
    return response[begin + len(opening) : end].strip() if begin >= 0 else None


def parse_choice(response: str, spellings: Mapping[str, str], tag: str = "") -> str | None:
    """The action named by a response, None if it names none. Never raises."""
    text = extract_action(response, tag)
    return None if text is None else spellings.get(text.lower())


def neighbour(cell: Cell, move: str) -> Cell:
    """The adjacent cell in that direction."""
    down, right = STEPS[move]
    return cell[0] + down, cell[1] + right


def find_path(start: T, step: Callable[[T, str], T], is_goal: Callable[[T], bool], most: int) -> list[str] | None:
    """The shortest path by moves to a goal; None if there is none, or none within the first `most` states."""
    came: dict[T, tuple[T, str] | None] = {start: None}
    waiting = deque([start])
    while waiting and len(came) <= most:
        here = waiting.popleft()
        if is_goal(here):
            moves: list[str] = []
            while (last := came[here]) is not None:
                here, move = last
                moves.append(move)
            return moves[::-1]
        for move in STEPS:
            there = step(here, move)
            if there not in came:
                came[there] = (here, move)
                waiting.append(there)
    return None


def in_tag(text: str, tag: str) -> str:
    """The text inside `<tag>`; unchanged without a tag."""
    return f"<{tag}>{text}</{tag}>" if tag else text


def move_instructions(tag: str) -> str:
    """Instructions for writing a move, for the prompt."""
    return f"Reply with one move: up, down, left or right (such as {in_tag('up', tag)}).\n"


class ActionCounts:
    """Turns of one attempt: all, valid ones (the response was an action) and effective ones (it changed the state)."""

    __slots__ = ("num_effective", "num_turns", "num_valid")

    def __init__(self) -> None:
        self.num_turns = self.num_valid = self.num_effective = 0

    def add(self, *, valid: bool, effective: bool) -> None:
        self.num_turns += 1
        self.num_valid += valid
        self.num_effective += effective

    def metrics(self, *, success: bool) -> dict[str, float]:
        """Metrics as an environment reports them; rates are per turn, so at least one turn must have been counted."""
        return {
            "success": float(success),
            "turns": float(self.num_turns),
            "valid_actions": self.num_valid / self.num_turns,
            "effective_actions": self.num_effective / self.num_turns,
        }
