"""Where every second, token, attempt and group of a run went, computed from its journal alone.

Every account has an explicit remainder, `unaccounted`. It is negative where more is found than should be there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from roll.errors import ConfigError
from roll.journal.events import (
    AsyncRatioChanged,
    ControllerRestarted,
    Event,
    HackSuspected,
    RequestsResumed,
    RolledBack,
    RunEnded,
    RunStarted,
    TaskQuarantined,
    TokensGenerated,
    TrajectoryEnded,
    WeightsPublished,
)
from roll.journal.records import Chunk, JournalEntry, StoredTrajectory, TrajectoryQuery
from roll.report.journals import open_journal
from roll.report.notices import Problem, ProblemList
from roll.report.outcomes import OutcomeTracker, SampleOutcome
from roll.report.time_account import ProcessLifetime, TimeAccount, account_time, extend_lifetimes
from roll.types import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeCounts:
    """A total and its split by outcome."""

    total: int
    """Counted independently of the outcomes."""
    outcomes: dict[SampleOutcome, int]
    unaccounted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationSummary:
    """Cost of sending new weights to the generators."""

    count: int
    seconds: dict[str, float]
    """Sum over all publications, by part."""
    resumed_requests: int
    prefilled_again: int
    """Tokens of contexts and partial responses that were prefilled again because of publications."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeProfile:
    """Statistics of the attempts with one outcome, which show a bias in the selection of training data."""

    count: int
    reward: float | None
    """Mean over the attempts that have one."""
    length: float
    """Mean number of sampled tokens."""
    domains: dict[str, float]
    """Fraction of the attempts, by domain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The whole account of a run."""

    time: TimeAccount
    tokens: OutcomeCounts
    trajectories: OutcomeCounts
    groups: OutcomeCounts
    publications: PublicationSummary
    staleness: dict[int, int]
    """Trained tokens by the number of steps between their weights and the step that trained on them, once per step."""
    profiles: dict[SampleOutcome, OutcomeProfile]
    """By outcome, for ended attempts."""
    uncounted: int
    """Part of `tokens.total` that only the outcomes count: sampled by a process that was killed, or still runs, since
    it last recorded its counts."""
    hacks: tuple[HackSuspected, ...]
    """Signs of reward hacking in steps that were not rolled back."""
    problems: tuple[Problem, ...]
    """Problems that the metrics of such steps show."""
    quarantined: tuple[TaskQuarantined, ...]
    """Tasks that are not drawn any more."""
    ratio_changes: tuple[AsyncRatioChanged, ...]
    """Changes of staleness or redundancy after steps that were not rolled back."""
    restarts: tuple[ControllerRestarted, ...]
    """Restarts of the controller by a supervisor."""


def read_ledger(directory: Path) -> Ledger:
    """The account of the run in `directory`, also while it runs."""
    with open_journal(directory) as reader, reader.snapshot():
        builder = _LedgerBuilder()
        for entry in reader.events():
            builder.apply(entry)
        if not builder.processes:
            raise ConfigError(f"{directory}: nothing has happened in this run yet; come back later")
        builder.add_trajectories(lambda: reader.trajectories(TrajectoryQuery(bodies=False)))
        builder.add_progress(reader.progress(), reader.num_deleted_progress())
        return builder.build(account_time(builder.processes, reader.spans))


@dataclass(slots=True)
class _ProfileSum:
    """Sums over the attempts with one outcome."""

    count: int = 0
    num_tokens: int = 0
    reward: float = 0.0
    num_rewards: int = 0
    domains: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, stored: StoredTrajectory) -> None:
        self.count += 1
        self.num_tokens += stored.num_tokens
        self.domains[stored.domain] = self.domains.get(stored.domain, 0) + 1
        if stored.reward is not None:
            self.reward, self.num_rewards = self.reward + stored.reward, self.num_rewards + 1

    def profile(self) -> OutcomeProfile:
        return OutcomeProfile(
            count=self.count,
            reward=self.reward / self.num_rewards if self.num_rewards else None,
            length=self.num_tokens / self.count,
            domains={domain: number / self.count for domain, number in sorted(self.domains.items())},
        )


@dataclass(slots=True)
class _LedgerBuilder:
    """Counts while it goes through the journal."""

    groups: OutcomeTracker = field(default_factory=OutcomeTracker)
    processes: list[ProcessLifetime] = field(default_factory=list[ProcessLifetime])
    tokens: dict[SampleOutcome, int] = field(default_factory=lambda: dict.fromkeys(SampleOutcome, 0))
    trajectories: dict[SampleOutcome, int] = field(default_factory=lambda: dict.fromkeys(SampleOutcome, 0))
    num_generated: int = 0
    running: bool = False
    killed: bool = False
    """Whether a process of the run ended without recording its end."""
    num_ended: int = 0
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    resumed_requests: int = 0
    prefilled_again: int = 0
    staleness: dict[int, int] = field(default_factory=dict[int, int])
    profiles: dict[SampleOutcome, _ProfileSum] = field(default_factory=dict[SampleOutcome, "_ProfileSum"])
    carried: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    """By group and sibling, tokens of one attempt with which the next attempt begins."""
    hacks: list[HackSuspected] = field(default_factory=list[HackSuspected])
    problems: ProblemList = field(default_factory=ProblemList)
    quarantined: dict[tuple[str, int], TaskQuarantined] = field(default_factory=dict[tuple[str, int], TaskQuarantined])
    ratio_changes: list[AsyncRatioChanged] = field(default_factory=list[AsyncRatioChanged])
    restarts: list[ControllerRestarted] = field(default_factory=list[ControllerRestarted])

    def apply(self, entry: JournalEntry[Event]) -> None:
        self.groups.apply(entry)
        extend_lifetimes(self.processes, entry)
        self._collect(entry.event)
        match entry.event:
            case TokensGenerated(tokens=tokens, unrecorded=unrecorded, discarded=discarded):
                self.num_generated += tokens
                self.tokens[SampleOutcome.VALIDATION] += unrecorded
                self.tokens[SampleOutcome.ABORTED] += discarded
            case RunStarted():
                self.killed, self.running = self.killed or self.running, True
            case RunEnded():
                self.running = False
            case TrajectoryEnded():
                self.num_ended += 1
            case WeightsPublished(seconds=seconds):
                for part, spent in seconds.items():
                    self.seconds[part] = self.seconds.get(part, 0.0) + spent
            case RequestsResumed(num_requests=num_requests, num_tokens=num_tokens):
                self.resumed_requests += num_requests
                self.prefilled_again += num_tokens
            case _:
                pass

    def _collect(self, event: Event) -> None:
        """Collect events that are listed as they are."""
        self.problems.apply(event)
        match event:
            case HackSuspected():
                self.hacks.append(event)
            case RolledBack():
                self.hacks = [each for each in self.hacks if each.step <= event.to_step]
                self.ratio_changes = [each for each in self.ratio_changes if each.step <= event.to_step]
            case AsyncRatioChanged():
                self.ratio_changes.append(event)
            case TaskQuarantined():
                self.quarantined[event.source, event.index] = event
            case ControllerRestarted():
                self.restarts.append(event)
            case _:
                pass

    def add_trajectories(self, read: Callable[[], Iterable[StoredTrajectory]]) -> None:
        """Count every trajectory; every call of `read` returns all of them."""
        newest = {(stored.group, stored.sibling): stored.id for stored in read()}
        for stored in read():
            replaced = stored.status.valid and newest[stored.group, stored.sibling] != stored.id
            outcome = SampleOutcome.STALE if replaced else self._outcome(stored)
            self.trajectories[outcome] += 1
            self.profiles.setdefault(outcome, _ProfileSum()).add(stored)
            for owner, num_tokens in self._split_tokens(stored, outcome, replaced=replaced):
                self.tokens[owner] += num_tokens
            if outcome is SampleOutcome.TRAINED and stored.step is not None:
                self._count_staleness(stored)

    def _count_staleness(self, stored: StoredTrajectory) -> None:
        """Count the tokens once per step that trained on them."""
        for version, num_tokens in stored.versions.items():
            if version not in self.groups.step_of:  # in a damaged journal it may be missing
                continue
            for step in self.groups.steps_of(stored.group):
                staleness = step - 1 - self.groups.step_of[version]
                self.staleness[staleness] = self.staleness.get(staleness, 0) + num_tokens

    def add_progress(self, chunks: Iterable[Chunk], num_deleted: int) -> None:
        """Count the tokens of unfinished and of aborted attempts; `num_deleted` are those not in `chunks` any more."""
        self.tokens[SampleOutcome.ABORTED] += num_deleted
        for chunk in chunks:
            if chunk.version in self.groups.void:
                outcome = SampleOutcome.STALE
            else:
                running = self.groups.running(chunk.group)
                outcome = SampleOutcome.WAITING if running else SampleOutcome.ABORTED
            self.tokens[outcome] += len(chunk.ids)

    def build(self, time: TimeAccount) -> Ledger:
        known = self.num_generated if not (self.killed or self.running) else sum(self.tokens.values())
        uncounted = max(0, known - self.num_generated)
        return Ledger(
            time=time,
            uncounted=uncounted,
            hacks=tuple(self.hacks),
            problems=tuple(self.problems.problems()),
            quarantined=tuple(self.quarantined.values()),
            ratio_changes=tuple(self.ratio_changes),
            restarts=tuple(self.restarts),
            tokens=_counts(self.num_generated + uncounted, self.tokens),
            trajectories=_counts(self.num_ended, self.trajectories),
            groups=_counts(self.groups.num_admitted, self.groups.counts()),
            publications=PublicationSummary(
                count=len(self.groups.step_of),
                seconds=self.seconds,
                resumed_requests=self.resumed_requests,
                prefilled_again=self.prefilled_again,
            ),
            staleness=dict(sorted(self.staleness.items())),
            profiles={
                outcome: self.profiles[outcome].profile() for outcome in SampleOutcome if outcome in self.profiles
            },
        )

    def _outcome(self, stored: StoredTrajectory) -> SampleOutcome:
        if not stored.status.valid:
            return _OUTCOME_OF.get(stored.status, SampleOutcome.FAILED)
        outcome = self.groups.outcome_of(stored.group)
        if stored.surplus and outcome in (SampleOutcome.TRAINED, SampleOutcome.REFUSED, SampleOutcome.WAITING):
            return SampleOutcome.ABORTED
        return outcome

    def _split_tokens(
        self, stored: StoredTrajectory, outcome: SampleOutcome, *, replaced: bool
    ) -> Iterator[tuple[SampleOutcome, int]]:
        """Outcomes of its tokens, and of tokens recorded as its progress and then dropped."""
        attempt = (stored.group, stored.sibling)
        carried = self.carried.pop(attempt, None)
        if stored.num_progress or carried is not None:
            dropped = stored.num_progress + (carried or 0) - stored.num_tokens
            yield (outcome if dropped > 0 and not stored.status.valid else SampleOutcome.STALE), dropped
        if outcome not in (SampleOutcome.WAITING, SampleOutcome.STALE):
            yield outcome, stored.num_tokens
            return
        num_void = sum(count for version, count in stored.versions.items() if version in self.groups.void)
        yield SampleOutcome.STALE, num_void
        if replaced:  # its tokens that are not void continue in the attempt that replaced it
            self.carried[attempt] = stored.num_tokens - num_void
        else:
            yield outcome, stored.num_tokens - num_void


_OUTCOME_OF = {
    Status.ABORTED: SampleOutcome.ABORTED,
    Status.STALE: SampleOutcome.STALE,
    Status.FILTERED: SampleOutcome.FILTERED,
}


def _counts(total: int, outcomes: dict[SampleOutcome, int]) -> OutcomeCounts:
    return OutcomeCounts(total=total, outcomes=outcomes, unaccounted=total - sum(outcomes.values()))
