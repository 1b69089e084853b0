"""The account of a run, from its journal alone: where every second, token, attempt and group went.

What is left over is a number of its own and never hidden. It is below 0 where more was found than there should be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from roll.errors import ConfigError
from roll.journal.events import (
    Event,
    Generated,
    Published,
    Resumed,
    RolledBack,
    RunEnded,
    RunStarted,
    TrajectoryEnded,
    Validated,
)
from roll.journal.records import Chunk, Entry, Kept, Wanted
from roll.journal.store import Reader
from roll.report.outcomes import Fate, Fates
from roll.report.time_account import Hours, Processes, hours
from roll.types import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """How many there were of something, and what became of them."""

    total: int
    """Counted by someone else than the fates were."""
    fates: dict[Fate, int]
    unaccounted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """What it took to bring new weights to the generators."""

    count: int
    seconds: dict[str, float]
    """All publications together, by part."""
    resumed_requests: int
    prefilled_again: int
    """Tokens of contexts and partial replies that were read once more for that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What attempts of one fate were like, so that a bias in who is trained on is seen."""

    count: int
    reward: float | None
    """Mean of those that have one."""
    length: float
    """Mean of sampled tokens."""
    domains: dict[str, float]
    """Share of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The whole account."""

    hours: Hours
    tokens: Account
    trajectories: Account
    groups: Account
    versions: Versions
    ages: dict[int, int]
    """Trained tokens by age: the steps made between their weights and the step that trained them."""
    profiles: dict[Fate, Profile]
    """Of attempts that came to an end."""
    uncounted: int
    """Of all tokens, those that nobody but the fates has counted: sampled by a process that was killed, or still runs,
    since it last said how many."""


def ledger(directory: Path) -> Ledger:
    """The account of the run in `directory`, also while it goes on."""
    reader = Reader(directory / "journal.db")
    with reader.steady():
        books = _Books()
        for entry in reader.events():
            books.apply(entry)
        if not books.processes.found:
            raise ConfigError(f"{directory}: nothing has happened in this run yet; come back later")
        books.add_kept(lambda: reader.trajectories(Wanted(bodies=False)))
        books.add_progress(reader.progress())
        found = books.close(hours(books.processes.found, reader.spans))
    reader.close()
    return found


@dataclass(slots=True)
class _Crowd:
    """Attempts of one fate, summed up."""

    count: int = 0
    num_tokens: int = 0
    rewards: tuple[float, int] = (0.0, 0)
    """Their sum, and of how many."""
    domains: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, kept: Kept) -> None:
        self.count += 1
        self.num_tokens += kept.num_tokens
        self.domains[kept.domain] = self.domains.get(kept.domain, 0) + 1
        if kept.reward is not None:
            self.rewards = (self.rewards[0] + kept.reward, self.rewards[1] + 1)

    def profile(self) -> Profile:
        total, count = self.rewards
        return Profile(
            count=self.count,
            reward=total / count if count else None,
            length=self.num_tokens / self.count,
            domains={domain: number / self.count for domain, number in sorted(self.domains.items())},
        )


@dataclass(slots=True)
class _Books:
    """Everything that is counted on the way."""

    fates: Fates = field(default_factory=Fates)
    processes: Processes = field(default_factory=Processes)
    tokens: dict[Fate, int] = field(default_factory=lambda: dict.fromkeys(Fate, 0))
    trajectories: dict[Fate, int] = field(default_factory=lambda: dict.fromkeys(Fate, 0))
    aborted: dict[int, int] = field(default_factory=dict[int, int])
    """Tokens broken off, by the event that says so."""
    num_generated: int = 0
    running: bool = False
    killed: bool = False
    """Whether a process of the run is gone and has not said that it ended."""
    num_ended: int = 0
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    resumed: tuple[int, int] = (0, 0)
    ages: dict[int, int] = field(default_factory=dict[int, int])
    crowds: dict[Fate, _Crowd] = field(default_factory=dict[Fate, "_Crowd"])
    carried: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    """By group and sibling, tokens of an attempt with which the next one began."""

    def apply(self, entry: Entry[Event]) -> None:
        self.fates.apply(entry)
        self.processes.apply(entry)
        match entry.event:
            case Generated(tokens=tokens, aborted=aborted):
                self.num_generated += tokens
                self.aborted[entry.id] = aborted
            case RolledBack() if self.fates.since is not None:
                since = self.fates.since  # what was broken off after it is there again as progress
                self.aborted = {id: aborted for id, aborted in self.aborted.items() if id < since}
            case RunStarted():
                self.killed, self.running = self.killed or self.running, True
            case RunEnded():
                self.running = False
            case Validated(num_tokens=num_tokens):
                self.tokens[Fate.VALIDATION] += num_tokens
            case TrajectoryEnded():
                self.num_ended += 1
            case Published(seconds=seconds):
                for part, spent in seconds.items():
                    self.seconds[part] = self.seconds.get(part, 0.0) + spent
            case Resumed(requests=requests, tokens=tokens):
                self.resumed = (self.resumed[0] + requests, self.resumed[1] + tokens)
            case _:
                pass

    def add_kept(self, read: Callable[[], Iterable[Kept]]) -> None:
        """Every trajectory; `read` gives them all, as often as it is called."""
        newest = {(kept.group, kept.sibling): kept.id for kept in read()}
        for kept in read():
            replaced = kept.status.valid and newest[kept.group, kept.sibling] != kept.id
            fate = Fate.STALE if replaced else self._fate(kept)
            self.trajectories[fate] += 1
            self.crowds.setdefault(fate, _Crowd()).add(kept)
            for owner, num_tokens in self._shares(kept, fate, replaced=replaced):
                self.tokens[owner] += num_tokens
            if fate is Fate.TRAINED and kept.step is not None:
                self._age(kept, kept.step)

    def add_progress(self, chunks: Iterable[Chunk]) -> None:
        """Replies under way. What is left of attempts that were broken off is counted with these already."""
        for chunk in chunks:
            if chunk.version in self.fates.void:
                self.tokens[Fate.STALE] += len(chunk.ids)
            elif self.fates.under_way(chunk.group):
                self.tokens[Fate.WAITING] += len(chunk.ids)

    def close(self, spent: Hours) -> Ledger:
        self.tokens[Fate.ABORTED] += sum(self.aborted.values())
        known = self.num_generated if not (self.killed or self.running) else sum(self.tokens.values())
        uncounted = max(0, known - self.num_generated)
        return Ledger(
            hours=spent,
            uncounted=uncounted,
            tokens=_account(self.num_generated + uncounted, self.tokens),
            trajectories=_account(self.num_ended, self.trajectories),
            groups=_account(self.fates.num_admitted, self.fates.counts()),
            versions=Versions(
                count=len(self.fates.step_of),
                seconds=self.seconds,
                resumed_requests=self.resumed[0],
                prefilled_again=self.resumed[1],
            ),
            ages=dict(sorted(self.ages.items())),
            profiles={fate: self.crowds[fate].profile() for fate in Fate if fate in self.crowds},
        )

    def _fate(self, kept: Kept) -> Fate:
        if not kept.status.valid:
            return _FATE_OF.get(kept.status, Fate.FAILED)
        fate = self.fates.of(kept.group)
        if kept.spare and fate in (Fate.TRAINED, Fate.REFUSED, Fate.WAITING):
            return Fate.ABORTED
        return fate

    def _shares(self, kept: Kept, fate: Fate, *, replaced: bool) -> Iterator[tuple[Fate, int]]:
        """Whose its tokens are, and those that were noted for it and dropped."""
        attempt = (kept.group, kept.sibling)
        carried = self.carried.pop(attempt, None)
        if kept.num_noted or carried is not None:
            dropped = kept.num_noted + (carried or 0) - kept.num_tokens
            yield (fate if dropped > 0 and not kept.status.valid else Fate.STALE), dropped
        if fate not in (Fate.WAITING, Fate.STALE):
            yield fate, kept.num_tokens
            return
        num_void = sum(count for version, count in kept.versions.items() if version in self.fates.void)
        yield Fate.STALE, num_void
        if replaced:  # what is not void of it lives on in the attempt that replaced it
            self.carried[attempt] = kept.num_tokens - num_void
        else:
            yield fate, kept.num_tokens - num_void

    def _age(self, kept: Kept, step: int) -> None:
        for version, num_tokens in kept.versions.items():
            age = step - 1 - self.fates.step_of[version]
            self.ages[age] = self.ages.get(age, 0) + num_tokens


_FATE_OF = {Status.ABORTED: Fate.ABORTED, Status.STALE: Fate.STALE, Status.FILTERED: Fate.FILTERED}


def _account(total: int, fates: dict[Fate, int]) -> Account:
    return Account(total=total, fates=fates, unaccounted=total - sum(fates.values()))
