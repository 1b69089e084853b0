"""From what a policy writes to what an environment does: spelling, tags, and the count of what came of it."""

from __future__ import annotations

from collections.abc import Mapping

Cell = tuple[int, int]
"""Row and column, from the top left."""

STEPS: dict[str, Cell] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
MOVES = {spelling: move for move in STEPS for spelling in (move, move[0])}
"""How a move may be written, case aside, and its name."""


def inside(reply: str, tag: str = "") -> str | None:
    """What a reply means to do: what its last `<tag>` holds, or without a tag all of it; None where no tag is closed.

    Spaces around it are left out.
    """
    if not tag:
        return reply.strip()
    opening, closing = f"<{tag}>", f"</{tag}>"
    end = reply.rfind(closing)
    begin = reply.rfind(opening, 0, max(end, 0))
    return reply[begin + len(opening) : end].strip() if begin >= 0 else None


def chosen(reply: str, spellings: Mapping[str, str], tag: str = "") -> str | None:
    """The action that a reply names, None where it names none; whatever it holds, this does not raise."""
    text = inside(reply, tag)
    return None if text is None else spellings.get(text.lower())


def moved(cell: Cell, move: str) -> Cell:
    """The cell next to it in that direction."""
    down, right = STEPS[move]
    return cell[0] + down, cell[1] + right


def asked_for(tag: str) -> str:
    """The words that tell a policy how to write a move."""
    form = f"<{tag}>up</{tag}>" if tag else "up"
    return f"Reply with one move: up, down, left or right (such as {form}).\n"


class Tally:
    """How many turns an attempt had, how many were actions at all, and how many of those changed the world."""

    def __init__(self) -> None:
        self.num_turns = self.num_valid = self.num_effective = 0

    def add(self, *, valid: bool, effective: bool) -> None:
        """One more turn."""
        self.num_turns += 1
        self.num_valid += valid
        self.num_effective += effective

    def metrics(self, *, success: bool) -> dict[str, float]:
        """As an environment reports them, at least one turn being over: rates are parts of all turns."""
        return {
            "success": float(success),
            "turns": float(self.num_turns),
            "valid_actions": self.num_valid / self.num_turns,
            "effective_actions": self.num_effective / self.num_turns,
        }
