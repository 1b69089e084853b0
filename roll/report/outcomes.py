"""What became of every group, as of the end of the journal.

A rollback to a step takes back what later steps did. Weights published after that step are void, and what happened
since the first of them: groups born then are stale, groups decided then are under way again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from roll.journal.events import (
    Admitted,
    Event,
    GroupFailed,
    GroupFiltered,
    GroupReady,
    GroupStale,
    Published,
    RolledBack,
    Taken,
    Updated,
)
from roll.journal.records import Entry


class Fate(StrEnum):
    """Where something that was sampled ended up."""

    TRAINED = "trained"
    REFUSED = "refused"
    """Its step's updates were not finite, so nothing was learnt from it."""
    FILTERED = "filtered"
    FAILED = "failed"
    """With its attempt, or with another one of its group."""
    ABORTED = "aborted"
    """Broken off, or not needed in the end."""
    STALE = "stale"
    """Too old, or of weights that a rollback has made void."""
    WAITING = "waiting"
    """Not trained on yet."""
    VALIDATION = "validation"


@dataclass(slots=True)
class _Group:
    birth: int
    fate: Fate = Fate.WAITING
    decided: int = 0
    """Id of the event that decided it."""
    ready: int = 0
    """Id of the event that said it was complete."""
    step: int | None = None
    """That took it."""


_DECIDED: dict[type[Event], Fate] = {
    GroupFailed: Fate.FAILED,
    GroupFiltered: Fate.FILTERED,
    GroupStale: Fate.STALE,
}


@dataclass(slots=True)
class Fates:
    """Gathers them event by event."""

    step_of: dict[int, int] = field(default_factory=dict[int, int])
    """How many steps the weights of each version have seen, also of void ones."""
    void: set[int] = field(default_factory=set[int])
    """Versions that a rollback left behind."""
    since: int | None = None
    """Id of the first event of void weights, as of the last rollback: what was broken off after it may go on."""
    num_admitted: int = 0
    _published: dict[int, int] = field(default_factory=dict[int, int])
    """The event of each version that is not void."""
    _groups: dict[int, _Group] = field(default_factory=dict[int, _Group])
    _learnt: dict[int, bool] = field(default_factory=dict[int, bool])
    """By step, whether any of its updates was made."""

    def apply(self, entry: Entry[Event]) -> None:
        """Take one more event into account; they come in order."""
        match entry.event:
            case Admitted(group=group, birth=birth):
                self.num_admitted += 1
                self._groups[group] = _Group(birth)
            case GroupFailed(group=group) | GroupFiltered(group=group) | GroupStale(group=group):
                self._decide(group, _DECIDED[type(entry.event)], entry.id)
            case GroupReady(group=group):
                self._groups.setdefault(group, _Group(-1)).ready = entry.id
            case Taken(step=step, groups=groups):
                for group in groups:
                    self._groups.setdefault(group, _Group(-1)).step = step
            case Updated(step=step, refused=refused):
                self._learnt[step] = self._learnt.get(step, False) or not refused
            case Published(version=version, step=step):
                self.step_of[version], self._published[version] = step, entry.id
            case RolledBack(to_step=to_step):
                self._roll_back(to_step)
            case _:
                pass

    def of(self, group: int) -> Fate:
        """What became of this group."""
        found = self._groups.get(group)
        if found is None or found.step is None or found.fate is not Fate.WAITING:
            return Fate.WAITING if found is None else found.fate
        if found.step not in self._learnt:
            return Fate.WAITING
        return Fate.TRAINED if self._learnt[found.step] else Fate.REFUSED

    def under_way(self, group: int) -> bool:
        """Whether attempts of this group still run."""
        found = self._groups.get(group)
        return found is None or (found.fate is Fate.WAITING and found.step is None and not found.ready)

    def counts(self) -> dict[Fate, int]:
        """How many groups had each."""
        counts = dict.fromkeys(Fate, 0)
        for group in self._groups:
            counts[self.of(group)] += 1
        return counts

    def _decide(self, group: int, fate: Fate, event: int) -> None:
        found = self._groups.setdefault(group, _Group(-1))
        found.fate, found.decided = fate, event

    def _roll_back(self, to_step: int) -> None:
        void = {version for version in self._published if self.step_of[version] > to_step}
        self.since = since = min((self._published.pop(version) for version in void), default=None)
        self.void |= void
        self._learnt = {step: learnt for step, learnt in self._learnt.items() if step <= to_step}
        for group in self._groups.values():
            if group.step is not None and group.step > to_step:
                group.step = None
            if group.birth in void:
                group.fate = Fate.STALE
            elif since is not None and group.decided > since:
                group.fate, group.decided = Fate.WAITING, 0
            if since is not None and group.ready > since:
                group.ready = 0
