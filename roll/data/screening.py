"""Leaves out duplicate, held-out and overlong tasks of a source before a run starts, and counts them."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from roll.data.dataset import rows_at_start
from roll.data.messages import message_text
from roll.data.task_file import TaskFile
from roll.data.tasks import Seeds
from roll.types import Task

Sameness = Literal["exact", "normalised"]
"""When two prompts are duplicates: exactly, or up to case, spaces and Unicode forms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreeningCounts:
    """Numbers of tasks of one source, by reason."""

    source: str
    total: int
    kept: int
    duplicates: int = 0
    """Left out because an earlier task of the source has the same prompt."""
    overlaps: int = 0
    """Tasks with a held-out prompt; kept only without `dedup`."""
    too_long: int = 0
    """Left out because the prompt is too long."""
    unread: int = 0
    """Rows of a large file that are read when drawn, so that no other number counts them."""

    def __str__(self) -> str:
        """One line for the terminal."""
        kept_overlaps = self.kept + self.duplicates + self.too_long == self.total
        overlaps = "held out for validation, and kept: set dedup" if kept_overlaps else "held out for validation"
        counts = {"duplicates": self.duplicates, overlaps: self.overlaps, "too long": self.too_long}
        counts["read when drawn"] = self.unread
        reasons = ", ".join(f"{count} {reason}" for reason, count in counts.items() if count)
        return f"{self.source}: {self.kept} of {self.total} tasks{': ' if reasons else ''}{reasons}"


def screen(
    source: str,
    tasks: Sequence[Task],
    *,
    dedup: Sameness | None = None,
    max_prompt_tokens: int | None = None,
    held_out: Sequence[Task] = (),
    length_of: Callable[[Task], int],
) -> tuple[Sequence[Task], ScreeningCounts]:
    """The remaining tasks, in order, and the counts of the others; a task counts for one reason only.

    Without `dedup` duplicates remain, and those of held-out prompts are only counted. Tasks without messages, which the
    environment generates, all remain. Without `dedup` and `max_prompt_tokens`, only the first rows of a large file are
    read, and all remain.
    """
    whole = dedup is not None or max_prompt_tokens is not None
    rows = tasks if whole and not isinstance(tasks, Seeds) else rows_at_start(tasks)
    sameness = dedup or "exact"
    withheld = {fingerprint(task, sameness) for task in held_out if task.messages}
    seen: set[bytes] = set()
    reasons: list[str] = []
    for task in rows:
        digest = fingerprint(task, sameness) if task.messages else None
        if digest is not None and dedup is not None and digest in seen:
            reasons.append("duplicates")
        elif max_prompt_tokens is not None and length_of(task) > max_prompt_tokens:
            reasons.append("too_long")
        else:
            reasons.append("overlaps" if digest in withheld else "")
        if digest is not None:
            seen.add(digest)
    harmless = {"", "overlaps"} if dedup is None else {""}
    kept = [index for index, reason in enumerate(reasons) if reason in harmless]
    remaining = tasks if len(kept) == len(rows) else _select(tasks, kept)
    counts = {reason: reasons.count(reason) for reason in ("duplicates", "overlaps", "too_long")}
    unread = len(tasks) - len(rows) if isinstance(tasks, TaskFile) else 0
    return remaining, ScreeningCounts(source=source, total=len(tasks), kept=len(remaining), unread=unread, **counts)


def _select(tasks: Sequence[Task], indices: Sequence[int]) -> Sequence[Task]:
    return tasks.select(indices) if isinstance(tasks, TaskFile) else [tasks[index] for index in indices]


def fingerprint(task: Task, sameness: Sameness) -> bytes:
    """A hash that is equal for duplicate prompts; system messages are ignored."""
    messages = [message for message in task.messages if message.role != "system"] or task.messages
    texts = [f"{message.role}\0{message_text(message)}" for message in messages]
    if sameness == "normalised":
        texts = [" ".join(unicodedata.normalize("NFKC", text).casefold().split()) for text in texts]
    return hashlib.blake2b("\0\0".join(texts).encode(errors="surrogatepass"), digest_size=16).digest()
