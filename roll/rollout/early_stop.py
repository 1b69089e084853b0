"""Stops the longest attempts of a step that waits, so that a few of them do not keep the trainer waiting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from roll.types import Group


@dataclass(slots=True, kw_only=True)
class EarlyStop:
    """Lengths of the attempts in flight, and the length from which on a waiting step stops attempts.

    Only attempts are stopped that a step waits for: those of the groups that it would take next, of which the share
    `quantile` has ended. The limit is this quantile of their lengths.
    """

    quantile: float
    group_size: int
    due: Callable[[], Sequence[int]]
    """Returns the tickets of the groups that a waiting step would take next, a new object after each change; empty if
    no step waits."""
    _lengths: dict[int, dict[int, int]] = field(default_factory=dict[int, dict[int, int]])
    """Sampled tokens of ended attempts, by group and sibling."""
    _stopped: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """Sampled tokens of stopped attempts, by group."""
    _seen: Sequence[int] = ()
    """Tickets that the limit was computed for."""
    _changed: bool = False
    """Whether an attempt has ended since."""
    _limit: float = math.inf

    def add_ended(self, group: int, sibling: int, num_tokens: int) -> None:
        """An attempt is complete."""
        self._lengths.setdefault(group, {})[sibling] = num_tokens
        self._changed = True

    def add_stopped(self, group: int, *num_tokens: int) -> None:
        """Attempts were stopped, each after this number of tokens."""
        self._stopped.setdefault(group, []).extend(num_tokens)

    def forget(self, group: int) -> None:
        """A group has left, trained or not."""
        self._lengths.pop(group, None)
        self._stopped.pop(group, None)

    def take_stopped(self, groups: Sequence[Group]) -> dict[int, list[int]]:
        """Sampled tokens of the stopped attempts of these groups; each is returned once."""
        return {group.id: tokens for group in groups if (tokens := self._stopped.pop(group.id, None))}

    def reason(self, group: int, num_tokens: int) -> str:
        """Why a running attempt is stopped that has sampled `num_tokens` so far; empty if it continues."""
        due = self.due()
        if self._changed or due is not self._seen:
            self._seen, self._changed, self._limit = due, False, self._find_limit(due)
        if num_tokens <= self._limit or group not in due:
            return ""
        return f"{num_tokens} tokens, more than {self.quantile:.0%} of the attempts that the step waits for"

    def _find_limit(self, due: Sequence[int]) -> float:
        """The length at the quantile of all attempts of the groups; infinite until enough have ended."""
        index = math.ceil(self.quantile * len(due) * self.group_size) - 1
        ended = [self._lengths.get(group, {}) for group in due]
        if index < 0 or sum(map(len, ended)) <= index:
            return math.inf
        return sorted(length for lengths in ended for length in lengths.values())[index]
