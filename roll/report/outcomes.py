"""The outcome of every group, as of the end of the journal.

A rollback undoes all later steps. Weights published after its step are void, and so is everything since the first of
them: groups admitted under void weights are stale, and groups decided since then are running again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from roll.journal.events import (
    Event,
    GroupAdmitted,
    GroupFailed,
    GroupFiltered,
    GroupReady,
    GroupStale,
    RolledBack,
    StepStarted,
    WeightsPublished,
    WeightsUpdated,
)
from roll.journal.records import JournalEntry


class SampleOutcome(StrEnum):
    """The final use of sampled tokens, attempts and groups."""

    TRAINED = "trained"
    REFUSED = "refused"
    """All updates of its steps were refused as not finite."""
    FILTERED = "filtered"
    FAILED = "failed"
    """The attempt failed, or another attempt of its group did."""
    ABORTED = "aborted"
    """Aborted, or surplus in a complete group."""
    STALE = "stale"
    """Too old, or sampled by weights that a rollback made void."""
    WAITING = "waiting"
    """Not trained on yet."""
    VALIDATION = "validation"


@dataclass(slots=True)
class _GroupState:
    birth: int
    outcome: SampleOutcome = SampleOutcome.WAITING
    decided: int = 0
    """Id of the event that decided the outcome."""
    ready: int = 0
    """Id of the event that made it complete."""
    steps: list[int] = field(default_factory=list[int])
    """Steps that train on it."""


_OUTCOMES: dict[type[Event], SampleOutcome] = {
    GroupFailed: SampleOutcome.FAILED,
    GroupFiltered: SampleOutcome.FILTERED,
    GroupStale: SampleOutcome.STALE,
}


@dataclass(slots=True)
class OutcomeTracker:
    """Follows the outcome of every group, event by event."""

    step_of: dict[int, int] = field(default_factory=dict[int, int])
    """Number of steps that the weights of each version were trained for, void versions included."""
    void: set[int] = field(default_factory=set[int])
    """Versions that a rollback made void."""
    num_admitted: int = 0
    _published: dict[int, int] = field(default_factory=dict[int, int])
    """Event id of each version that is not void."""
    _groups: dict[int, _GroupState] = field(default_factory=dict[int, _GroupState])
    _updated: dict[int, bool] = field(default_factory=dict[int, bool])
    """By step, whether any of its updates was applied."""

    def apply(self, entry: JournalEntry[Event]) -> None:
        """Process one event; events come in order."""
        match entry.event:
            case GroupAdmitted(group=group, birth=birth):
                self.num_admitted += 1
                self._groups[group] = _GroupState(birth)
            case GroupFailed(group=group) | GroupFiltered(group=group) | GroupStale(group=group):
                state = self._group(group)
                state.outcome, state.decided = _OUTCOMES[type(entry.event)], entry.id
            case GroupReady(group=group):
                self._group(group).ready = entry.id
            case StepStarted(step=step, groups=groups):
                for group in groups:
                    self._group(group).steps.append(step)
            case WeightsUpdated(step=step, refused=refused):
                self._updated[step] = self._updated.get(step, False) or not refused
            case WeightsPublished(version=version, step=step):
                self.step_of[version], self._published[version] = step, entry.id
            case RolledBack(to_step=to_step):
                self._roll_back(to_step)
            case _:
                pass

    def outcome_of(self, group: int) -> SampleOutcome:
        """Outcome of this group so far."""
        state = self._groups.get(group)
        if state is None:
            return SampleOutcome.WAITING
        updated = [self._updated[step] for step in state.steps if step in self._updated]
        if state.outcome is not SampleOutcome.WAITING or not updated:
            return state.outcome
        return SampleOutcome.TRAINED if any(updated) else SampleOutcome.REFUSED

    def steps_of(self, group: int) -> list[int]:
        """Steps that train on this group, as far as no rollback undid them."""
        state = self._groups.get(group)
        return [] if state is None else state.steps

    def running(self, group: int) -> bool:
        """Whether attempts of this group still run."""
        state = self._groups.get(group)
        return state is None or (state.outcome is SampleOutcome.WAITING and not state.steps and not state.ready)

    def ended_at(self, group: int) -> int | None:
        """Id of the event after which no attempt of this group runs, and the rest of them is aborted."""
        state = self._groups.get(group)
        return None if state is None else state.ready or state.decided or None

    def counts(self) -> dict[SampleOutcome, int]:
        """Number of groups by outcome."""
        counts = dict.fromkeys(SampleOutcome, 0)
        for group in self._groups:
            counts[self.outcome_of(group)] += 1
        return counts

    def _group(self, group: int) -> _GroupState:
        return self._groups.setdefault(group, _GroupState(-1))

    def _roll_back(self, to_step: int) -> None:
        void = {version for version in self._published if self.step_of[version] > to_step}
        since = min((self._published.pop(version) for version in void), default=None)
        self.void |= void
        self._updated = {step: applied for step, applied in self._updated.items() if step <= to_step}
        for group in self._groups.values():
            group.steps = [step for step in group.steps if step <= to_step]
            if group.birth in void:
                group.outcome = SampleOutcome.STALE
            elif since is not None and group.decided > since:
                group.outcome, group.decided = SampleOutcome.WAITING, 0
            if since is not None and group.ready > since:
                group.ready = 0
