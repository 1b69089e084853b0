"""Which tasks of a source are left out before a run begins, and how many for which reason."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from roll.data.tasks import Seeds
from roll.types import Task

Sameness = Literal["exact", "normalised"]
"""When two prompts are the same: letter by letter, or up to case, spaces and forms of characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Screening:
    """What tasks of one source are left out for."""

    dedup: Sameness | None = None
    """None keeps duplicates, and counts held-out ones without leaving them out."""
    max_prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Screened:
    """What became of the tasks of one source."""

    source: str
    given: int
    kept: int
    duplicates: int = 0
    """Left out because an earlier task of the source has the same prompt."""
    overlaps: int = 0
    """With a prompt that is held out for validation; kept only where nothing is left out as a duplicate."""
    too_long: int = 0
    """Left out because of the length of the prompt."""

    def __str__(self) -> str:
        """One line for the terminal."""
        kept_overlaps = self.kept + self.duplicates + self.too_long == self.given
        overlaps = "held out for validation, and kept: set dedup" if kept_overlaps else "held out for validation"
        reasons = [
            f"{count} {reason}"
            for count, reason in (
                (self.duplicates, "duplicates"),
                (self.overlaps, overlaps),
                (self.too_long, "too long"),
            )
            if count
        ]
        return f"{self.source}: {self.kept} of {self.given} tasks{': ' if reasons else ''}{', '.join(reasons)}"


def screen(
    source: str,
    tasks: Sequence[Task],
    screening: Screening,
    *,
    held_out: Sequence[Task] = (),
    length_of: Callable[[Task], int],
) -> tuple[Sequence[Task], Screened]:
    """The tasks that are kept, in their order, and the account of the others; a task is counted for one reason alone.

    Tasks without words of their own, whose environment makes them, are all kept.
    """
    if isinstance(tasks, Seeds):
        return tasks, Screened(source=source, given=len(tasks), kept=len(tasks))
    reasons = _reasons(tasks, screening, held_out, length_of)
    harmless = {"", "overlaps"} if screening.dedup is None else {""}
    kept = [task for task, reason in zip(tasks, reasons, strict=True) if reason in harmless]
    counts = {reason: reasons.count(reason) for reason in ("duplicates", "overlaps", "too_long")}
    return kept, Screened(source=source, given=len(tasks), kept=len(kept), **counts)


def fingerprint(task: Task, sameness: Sameness) -> bytes:
    """Equal for the same prompts; what a system message says makes no other question of it."""
    asked = [message for message in task.messages if message.role != "system"] or task.messages
    texts = [f"{message.role}\0{message.content}" for message in asked]
    if sameness == "normalised":
        texts = [" ".join(unicodedata.normalize("NFKC", text).casefold().split()) for text in texts]
    return hashlib.blake2b("\0\0".join(texts).encode(errors="surrogatepass"), digest_size=16).digest()


def _reasons(
    tasks: Sequence[Task], screening: Screening, held_out: Sequence[Task], length_of: Callable[[Task], int]
) -> list[str]:
    """For each task why it is not like the others, the empty text where there is nothing to say."""
    sameness = screening.dedup or "exact"
    withheld = {fingerprint(task, sameness) for task in held_out if task.messages}
    seen: set[bytes] = set()
    reasons: list[str] = []
    for task in tasks:
        own = fingerprint(task, sameness) if task.messages else None
        if own is not None and screening.dedup is not None and own in seen:
            reasons.append("duplicates")
        elif screening.max_prompt_tokens is not None and length_of(task) > screening.max_prompt_tokens:
            reasons.append("too_long")
        else:
            reasons.append("overlaps" if own in withheld else "")
        if own is not None:
            seen.add(own)
    return reasons
