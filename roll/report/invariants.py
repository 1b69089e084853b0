"""Rules that the journal of every run keeps, checked event by event and attempt by attempt.

A rollback is an event: what it undid is checked as if it had not happened, and may happen again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from roll.journal.events import (
    CheckpointSaved,
    DevicesLent,
    Event,
    GeneratorJoined,
    GeneratorLeft,
    GroupAdmitted,
    GroupFailed,
    GroupFiltered,
    GroupStale,
    RolledBack,
    RunEnded,
    RunStarted,
    SlotsReleased,
    StepStarted,
    WeightsPublished,
    WeightsUpdated,
)
from roll.journal.records import Chunk, JournalEntry, StoredTrajectory
from roll.report.outcomes import OutcomeTracker, SampleOutcome
from roll.types import Status

_EXAMPLES = 5
"""Most violations of one invariant that are described."""
_DROPPED = (SampleOutcome.FAILED, SampleOutcome.FILTERED, SampleOutcome.STALE)


@dataclass(slots=True)
class Invariant:
    """One rule, with the number of its checks and violations."""

    name: str
    unit: str
    checked: int = 0
    violations: int = 0
    examples: list[str] = field(default_factory=list[str])
    """The first violations."""

    def check(self, holds: bool, example: str, count: int = 1) -> None:
        """Count `count` things, which violate the invariant unless it holds."""
        self.checked += count
        self.require(holds, example, count)

    def require(self, holds: bool, example: str, count: int = 1) -> None:
        """A further condition on things that `check` counts."""
        if holds:
            return
        self.violations += count
        if len(self.examples) < _EXAMPLES:
            self.examples.append(example)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBounds:
    """Settings of a run that its journal is checked against."""

    groups_per_step: int
    group_size: int
    max_age: int
    """Most steps between the weights that sampled a token and the step that trains on it."""
    redundant_groups: int = 0
    reuse: int = 1
    """Most steps that train on a group."""
    num_replayed: int = 0
    """Most groups of a step that earlier ones have trained on."""
    stops: bool = False
    """Whether long attempts are stopped."""
    in_order: bool = True
    """Whether groups are trained in the order of their admission."""


class JournalChecks:
    """Checks of one journal: first `apply` for each event, then the trajectories, then `finish`."""

    def __init__(self, bounds: RunBounds) -> None:
        self.bounds, self.outcomes = bounds, OutcomeTracker()
        self.once = Invariant(f"groups are trained at most {_times(bounds.reuse)}", "groups")
        self.settled = Invariant("groups are trained, or dropped with a reason", "groups")
        self.complete = Invariant("trained groups are complete", "groups")
        self.versions = Invariant("versions grow, and steps go back only by a rollback", "versions")
        self.steps = Invariant("steps are contiguous", "steps")
        self.order = Invariant("steps are taken, then trained, then published", "events")
        self.age = Invariant("trained tokens are within the staleness bound", "tokens")
        self.sampled = Invariant("tokens were sampled by published versions", "tokens")
        self.progress = Invariant("trained groups leave no progress behind", "groups")
        self.stops = Invariant("attempts are stopped at most once", "attempts")
        self.joins = Invariant("generators that join attest the served version", "changes")
        self.steps_of: dict[int, list[int]] = {}
        """Groups of steps that count, with these steps."""
        self.publications: list[tuple[int, int]] = []
        """Event id and step of all publications."""
        self.admitted: dict[int, int] = {}
        """Event id of each group's admission."""
        self.started = 0
        """The last step that was taken."""
        self.checkpoint: CheckpointSaved | None = None
        """The last one that no rollback undid."""
        self.began = 0.0
        """Time of the first event, which no two journals share."""
        self.num_processes = self._trained = 0
        self.ended: RunEnded | None = None
        """The end of the last process; None if it runs or was killed."""
        self._published: dict[str, tuple[int, int]] = {}
        """Version and step of the last publication, by policy."""
        self._published_at: dict[int, int] = {}
        """Event id of the first publication of each version."""
        self._siblings: dict[int, list[int]] = {}
        """Siblings of trained groups."""
        self._digests: dict[int, str] = {}
        """By published version; the last policy's."""
        self._stopped: set[tuple[int, int]] = set()
        """Groups and siblings of stopped attempts."""
        self._joined: set[int] = set()
        """Generators that joined and have not left."""

    @property
    def published_step(self) -> int:
        """Step of the weights that every policy serves; -1 before the first publication."""
        return min((step for _, step in self._published.values()), default=-1)

    def invariants(self) -> list[Invariant]:
        return [
            self.once, self.settled, self.complete, self.versions, self.steps, self.order, self.age, self.sampled,
            self.progress, self.stops, self.joins,
        ]  # fmt: skip

    def apply(self, entry: JournalEntry[Event]) -> None:
        """Check one event; events come in order."""
        event, self.began = entry.event, self.began or entry.time
        match event:
            case GroupAdmitted(group=group):
                self.settled.require(group not in self.admitted, f"group {group} was admitted twice")
                self.admitted[group] = entry.id
            case GroupFailed(group=group, reason=reason) | GroupFiltered(group=group, reason=reason):
                self._drop(group, reason)
            case GroupStale(group=group, reason=reason):
                self._drop(group, reason)
            case StepStarted():
                self._start(event)
            case WeightsUpdated(step=step):
                current = step == self.started and self.published_step < step
                self.order.check(current, f"step {step} was trained when {self._stage()}")
                self._trained = max(self._trained, step)
            case WeightsPublished():
                self._publish(entry.id, event)
            case SlotsReleased(step=step):
                self.order.check(step == self.published_step, f"step {step} freed its slots when {self._stage()}")
            case RolledBack(to_step=to_step):
                self._roll_back(to_step)
            case _:
                self._apply_process(event)
        self.outcomes.apply(entry)

    def add_trajectories(self, trajectories: Iterable[StoredTrajectory]) -> None:
        """Check the attempts and their tokens."""
        for stored in trajectories:
            name = f"attempt {stored.group}.{stored.sibling}"
            for version, num_tokens in stored.versions.items():
                self._check_version(version, num_tokens, name, stored.id)
            if stored.status is Status.ABORTED:
                again = (stored.group, stored.sibling) in self._stopped
                self.stops.check(self.bounds.stops and not again, f"{name} was stopped{' again' * again}")
                self._stopped.add((stored.group, stored.sibling))
            total = sum(stored.versions.values())
            self.sampled.require(
                total == stored.num_tokens, f"{name} has {stored.num_tokens} tokens, {total} by version"
            )
            if stored.step is not None and not stored.surplus:
                self._check_trained(stored, stored.step, name)

    def add_progress(self, chunks: Iterable[Chunk]) -> None:
        """Check the tokens of unfinished attempts."""
        groups: set[int] = set()
        for chunk in chunks:
            groups.add(chunk.group)
            self._check_version(chunk.version, len(chunk.ids), f"attempt {chunk.group}.{chunk.sibling}")
        saved = 0 if self.checkpoint is None else self.checkpoint.step
        for group, steps in self.steps_of.items():
            self.progress.check(
                group not in groups or steps[0] > saved, f"group {group} was trained in step {steps[0]}"
            )

    def finish(self) -> None:
        """Check what is known only after the last event and trajectory."""
        size = self.bounds.group_size
        for group, steps in self.steps_of.items():
            siblings = self._siblings.get(group, [])
            whole = len(siblings) == len(set(siblings)) == size
            self.complete.check(
                whole, f"step {steps[-1]}: group {group} has {len(siblings)} of {size} attempts ({sorted(siblings)})"
            )
        waiting = sorted(group for group in self.admitted if self._waiting(group))
        if self.ended is not None and self.ended.reason == "finished":
            lost = waiting[: max(0, len(waiting) - self.bounds.redundant_groups)]
        else:  # groups that leave in order of admission leave none behind
            ordered = self.bounds.in_order and not self.bounds.redundant_groups
            last = max(self.steps_of, default=-1) if ordered else -1
            lost = [group for group in waiting if group < last]
        for group in self.admitted:
            self.settled.check(group not in lost, f"group {group} was neither trained nor dropped")

    def published_before(self, position: int) -> int:
        """Step of the last publication up to this position of the journal; -1 if there is none."""
        index = bisect_right(self.publications, (position, 1 << 62))
        return self.publications[index - 1][1] if index else -1

    def _waiting(self, group: int) -> bool:
        return group not in self.steps_of and self.outcomes.outcome_of(group) is SampleOutcome.WAITING

    def _drop(self, group: int, reason: str) -> None:
        self.settled.require(bool(reason), f"group {group} was dropped without a reason")
        self.settled.require(group in self.admitted, f"group {group} was dropped and never admitted")
        self.once.require(group not in self.steps_of, f"group {group} was dropped after a step had trained on it")

    def _start(self, event: StepStarted) -> None:
        step, number = event.step, len(event.groups)
        self.steps.check(step == self.started + 1, f"step {step} follows step {self.started}")
        self.order.check(self.published_step == step - 1, f"step {step} was taken when {self._stage()}")
        needed = self.bounds.groups_per_step
        self.complete.require(number == needed, f"step {step} has {number} of {needed} groups")
        self.started = step
        num_again = sum(bool(self.steps_of.get(group)) for group in event.groups)
        for group in event.groups:
            before, outcome = self.steps_of.get(group, []), self.outcomes.outcome_of(group)
            again = len(before) < self.bounds.reuse and step not in before
            self.once.check(again, f"group {group} was trained in step {_list(before)} and in step {step}")
            self.settled.require(group in self.admitted, f"step {step}: group {group} was never admitted")
            self.settled.require(outcome not in _DROPPED, f"step {step}: group {group} had been dropped ({outcome})")
            self.complete.require(
                self.outcomes.ended_at(group) is not None, f"step {step}: group {group} was not complete"
            )
            self.steps_of[group] = [*before, step]
        self.once.require(
            num_again <= self.bounds.num_replayed, f"step {step} has {num_again} groups that were trained on before"
        )

    def _publish(self, id: int, event: WeightsPublished) -> None:
        policy, version, step = _policy_of(event), event.version, event.step
        last_version, last_step = self._published.get(policy, (-1, step))
        self.versions.check(version > last_version, f"version {version} follows version {last_version}")
        self.versions.require(step >= last_step, f"version {version} has step {step}, the one before step {last_step}")
        trained = self.started if policy else self._trained  # a policy without trajectories is not trained
        self.order.check(step <= trained, f"version {version} of step {step} was published when {self._stage()}")
        self._published[policy] = max(version, last_version), step
        self._published_at.setdefault(version, id)
        self._digests[version] = event.digest
        self.publications.append((id, step))

    def _roll_back(self, to_step: int) -> None:
        self.steps.require(to_step <= self.started, f"a rollback to step {to_step} follows step {self.started}")
        self.started, self._trained = to_step, min(self._trained, to_step)
        self._published = {policy: (version, min(step, to_step)) for policy, (version, step) in self._published.items()}
        counting = {group: [step for step in steps if step <= to_step] for group, steps in self.steps_of.items()}
        self.steps_of = {group: steps for group, steps in counting.items() if steps}
        if self.checkpoint is not None and self.checkpoint.step > to_step:
            self.checkpoint = None

    def _apply_process(self, event: Event) -> None:
        match event:
            case RunStarted():
                self.num_processes += 1
                self.ended = None
                self._joined.clear()
            case RunEnded(step=step):
                self.ended = event
                self.steps.require(
                    step == self.started, f"the run ended after step {step}, and step {self.started} ran"
                )
            case GeneratorJoined() | GeneratorLeft():
                self._change_generators(event)
            case DevicesLent(generators=ranks, version=version, digest=digest):
                self._check_join(f"generators {_list(ranks)}", version, digest)
            case CheckpointSaved(step=step):
                self.order.check(step <= self.published_step, f"step {step} was saved when {self._stage()}")
                self.checkpoint = event
            case _:
                pass

    def _change_generators(self, event: GeneratorJoined | GeneratorLeft) -> None:
        name = f"generator {event.generator}"
        if isinstance(event, GeneratorLeft):
            self.joins.check(bool(event.reason), f"{name} left without a reason")
            self._joined.discard(event.generator)
            return
        self._check_join(name, event.version, event.digest)
        self.joins.require(event.generator not in self._joined, f"{name} joined twice")
        self._joined.add(event.generator)

    def _check_join(self, name: str, version: int, digest: str) -> None:
        published = self._digests.get(version)
        self.joins.check(
            published == digest,
            f"{name} joined with digest {digest} of version {version}, which was published as {published}",
        )

    def _check_version(self, version: int, num_tokens: int, name: str, id: int | None = None) -> None:
        published = self._published_at.get(version)
        known = published is not None and (id is None or published < id)
        self.sampled.check(known, f"{name} has tokens of version {version}, which was not published", num_tokens)

    def _check_trained(self, stored: StoredTrajectory, step: int, name: str) -> None:
        self._siblings.setdefault(stored.group, []).append(stored.sibling)
        scored = stored.status.valid and stored.reward is not None
        self.complete.require(scored, f"step {step}: {name} has status {stored.status} and reward {stored.reward}")
        steps = self.steps_of.get(stored.group, [])
        self.once.require(step in steps[-1:], f"{name} is recorded for step {step}, its group for step {_list(steps)}")
        for version, num_tokens in stored.versions.items():
            void = version in self.outcomes.void
            self.sampled.require(
                not void, f"step {step}: {name} has tokens of version {version}, which a rollback made void", num_tokens
            )
            if (sampled := self.outcomes.step_of.get(version)) is not None:
                for use in steps:
                    age = use - 1 - sampled
                    within = void or 0 <= age <= self.bounds.max_age
                    self.age.check(within, f"step {use}: {name} has tokens {age} steps old", num_tokens)

    def _stage(self) -> str:
        return f"step {self.started} was taken, {self._trained} trained, {self.published_step} published"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _list(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps)) or "None"


def _policy_of(event: WeightsPublished) -> str:
    """Name of the policy; empty in a run with one. The digest begins with it, as a word without a colon."""
    first = event.digest.partition(" ")[0]
    return "" if ":" in first else first
