"""Keeps every free slot busy: draws tasks, admits groups, lets each attempt live its own life, replaces what fails."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from roll.algorithms.user_code import asked
from roll.data.mixture import Draw, Mixture
from roll.engines.base import Output
from roll.errors import RunStopped
from roll.journal.events import (
    Admitted,
    Diverged,
    GroupFailed,
    GroupFiltered,
    GroupReady,
    GroupStale,
    Retried,
)
from roll.journal.records import Chunk
from roll.journal.store import Journal
from roll.registry import FILTERS
from roll.rollout.buffer import Buffer
from roll.rollout.episode.runner import Attempt, EpisodeRunner
from roll.rollout.inflight import Held, Past, given_back
from roll.rollout.source import Source
from roll.types import Call, Group, ServedVersion, Status, Trajectory, record


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the scheduler decides by."""

    group_size: int
    max_retries: int
    max_failed_groups: int
    max_filtered_groups: int = 0
    filters: tuple[Call, ...] = ()
    """Say why a whole group is not worth training on."""
    filters_of: Mapping[str, tuple[Call, ...]] = field(default_factory=dict[str, tuple[Call, ...]])
    """By domain, for those that have filters of their own."""
    redundant_groups: int = 0
    """Groups under way beyond the slots; the first to be complete win."""
    redundant_siblings: int = 0
    """Attempts of a group beyond its size; the first to end well win."""
    seed: int

    @property
    def num_siblings(self) -> int:
        return self.group_size + self.redundant_siblings


@dataclass(slots=True, kw_only=True)
class Scheduler:
    """Fills the buffer from the mixture until `num_groups` groups have come through."""

    mixture: Mixture
    sources: Mapping[str, Source]
    runner: EpisodeRunner
    buffer: Buffer
    journal: Journal
    policy: Policy
    serving: Callable[[], ServedVersion]
    """What is published now."""
    notice: Callable[[str], None] | None = None
    """Hears of the first attempt that fails: if all do, it is long before that ends the run."""
    returned: deque[Draw] = field(default_factory=deque[Draw])
    """Tasks whose groups came too late; they are drawn again before any other."""
    failures: dict[Status, int] = field(default_factory=dict[Status, int])
    """Failed attempts since `drain_counts`, by kind."""
    num_filtered: int = 0
    num_stale: int = 0
    """Groups since `drain_counts`."""
    _held: dict[int, Held] = field(default_factory=dict[int, Held])
    """Every group that is not part of published weights yet."""
    _tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict[int, "asyncio.Task[None]"])
    """Those of them that are not complete."""
    _replaced: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    _told: bool = False
    _num_failed: int = 0
    """Groups given up since the last one that was not."""
    _num_useless: int = 0
    """Groups filtered since the last one that was not."""

    async def run(self, num_groups: int, held: Sequence[Held] = ()) -> None:
        """Go on with the groups of an earlier process, then admit as slots allow.

        A group that is given up does not count: another takes its place at the tail.
        """
        wanted = num_groups + self.policy.redundant_groups - len(held)
        async with asyncio.TaskGroup() as under_way:
            for each in held:
                self.buffer.restore(each.ticket, each.birth.step)
                self._start(under_way, each)
            while True:
                for _ in range(wanted):
                    ticket, birth = await self.buffer.admit(self.serving)
                    draw = self._draw()
                    self.journal.record(
                        Admitted(group=ticket, task=draw.task.id, domain=draw.task.domain, birth=birth.version)
                    )
                    self._start(under_way, Held(ticket=ticket, draw=draw, birth=birth))
                await self._replaced.acquire()
                wanted = 1

    def forget(self, groups: Iterable[Group]) -> None:
        """These groups are part of the weights now; a resumed run need not attempt them again."""
        for group in groups:
            del self._held[group.id]

    def abandon(self, tickets: Iterable[int]) -> None:
        """These groups are too old to be trained on: stop them, and attempt their tasks again, before others."""
        for ticket in tickets:
            held = self._held.pop(ticket)
            if (task := self._tasks.pop(ticket, None)) is not None:
                task.cancel()
            self.journal.record(
                GroupStale(group=ticket, reason=f"born at version {held.birth.version}, and others won")
            )
            self.num_stale += 1
            self.returned.append(given_back(held.draw))
            self._replaced.release()

    def state(self) -> dict[str, Any]:
        """All that a resumed run needs to go on with the same groups; JSON can hold it."""
        return {
            "mixture": self.mixture.state(),
            "returned": [_plain(draw) for draw in self.returned],
            "held": [
                {"ticket": each.ticket, "birth": each.birth.version, **_plain(each.draw)}
                for each in self._held.values()
            ],
        }

    def drain_counts(self) -> dict[str, float]:
        """What was lost since the last call, as metrics."""
        found = {f"failed/{status}": float(count) for status, count in self.failures.items()}
        if self.policy.filters or any(self.policy.filters_of.values()):
            found["filtered/groups"] = float(self.num_filtered)
        if self.policy.redundant_groups:
            found["stale/groups"] = float(self.num_stale)
        self.failures.clear()
        self.num_filtered = self.num_stale = 0
        return found

    def _draw(self) -> Draw:
        return self.returned.popleft() if self.returned else self.mixture.draw()

    def _start(self, under_way: asyncio.TaskGroup, held: Held) -> None:
        self._held[held.ticket] = held
        self._tasks[held.ticket] = under_way.create_task(self._fill(held))

    async def _fill(self, held: Held) -> None:
        """One group from its admission until it is ready or given up."""
        try:
            await self._filled(held)
        except Exception:
            await asyncio.sleep(0)  # siblings that were cancelled just now are broken off for good
            self.runner.ending()  # before the other groups hear of it
            raise

    async def _filled(self, held: Held) -> None:
        found = await self._siblings(held)
        if isinstance(found, str):
            await self._give_up(held, found)
            return
        self._num_failed = 0
        group = Group(id=held.ticket, birth=held.birth.version, trajectories=tuple(found))
        if not held.observed:
            self.mixture.observe(held.draw, [trajectory.reward for trajectory in found])
        if reason := self._useless(group):
            await self._filter(held, reason)
            return
        self._num_useless = 0
        siblings = _chosen(group) if self.policy.redundant_siblings else ()
        self.journal.record(GroupReady(group=held.ticket, siblings=siblings))
        self._tasks.pop(held.ticket, None)
        await self.buffer.put(group)

    async def _siblings(self, held: Held) -> list[Trajectory] | str:
        """The first valid trajectories, in the order of siblings; or why there cannot be enough of them."""
        race = _Race(self.policy.group_size, self.policy.redundant_siblings)
        create_task = asyncio.get_running_loop().create_task
        siblings = [create_task(self._compete(race, held, number)) for number in range(self.policy.num_siblings)]
        try:
            return await race.result
        finally:
            for sibling in siblings:
                sibling.cancel()

    async def _compete(self, race: _Race, held: Held, number: int) -> None:
        try:
            race.count(await self._sibling(held, number))
        except asyncio.CancelledError:
            race.result.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - whoever waits for the group is told, whatever it is
            race.fail(error)

    def _useless(self, group: Group) -> str:
        """Why there is nothing to learn from this group, if so."""
        domain = group.trajectories[0].task.domain
        filters = self.policy.filters_of.get(domain, self.policy.filters)
        reasons = (asked(FILTERS, each, group) for each in filters)
        return next((reason for reason in reasons if reason), "")

    async def _filter(self, held: Held, reason: str) -> None:
        self.journal.record(GroupFiltered(group=held.ticket, reason=reason))
        self.num_filtered += 1
        self._num_useless += 1
        if self._num_useless > self.policy.max_filtered_groups:
            raise RunStopped(
                f"{self._num_useless} groups in a row were filtered, the last because {reason}; "
                "give easier or harder tasks, or raise rollout.max_filtered_groups"
            )
        await self._replace(held)

    async def _give_up(self, held: Held, reason: str) -> None:
        self.journal.record(GroupFailed(group=held.ticket, reason=reason))
        self._num_failed += 1
        if self._num_failed > self.policy.max_failed_groups:
            raise RunStopped(
                f"{self._num_failed} groups in a row failed, the last with: {reason}; mend that and `roll resume` "
                "the run (without a checkpoint start it again, with --overwrite), or raise rollout.max_failed_groups"
            )
        await self._replace(held)

    async def _replace(self, held: Held) -> None:
        """Another group of the same source takes its place, at the tail: shares hold over what is trained."""
        del self._held[held.ticket]
        self._tasks.pop(held.ticket, None)
        self.mixture.forgo(held.draw)
        await self.buffer.drop(held.ticket)
        self._replaced.release()

    async def _sibling(self, held: Held, number: int) -> Trajectory:
        """A valid trajectory, or the failure of the last try."""
        tries, draw = self.policy.max_retries + 1, held.draw
        past = held.past.get(number, _NO_PAST)
        if past.whole is not None:
            return past.whole
        for retry in range(min(past.num_failed, tries - 1), tries):
            attempt = Attempt(
                task=draw.task,
                sibling=number,
                number=draw.attempt * tries + retry,
                purpose=f"train+{draw.returned}" if draw.returned else "train",
                order=held.ticket,
                seed=self.policy.seed,
                past=past.turns if retry == past.num_failed else (),
                scribe=_Scribe(
                    journal=self.journal, group=held.ticket, sibling=number, attempt=draw.attempt * tries + retry
                ),
            )
            trajectory = await self.sources[draw.source].attempt(self.runner, attempt)
            self._record_end(held.ticket, trajectory)
            if trajectory.status.valid or retry == self.policy.max_retries:
                return trajectory
            status, reason = trajectory.status, trajectory.reason
            self.journal.record(Retried(group=held.ticket, sibling=number, status=status, reason=reason))
        raise AssertionError("the last try returns")

    def _record_end(self, ticket: int, trajectory: Trajectory) -> None:
        if not trajectory.status.valid:
            self.failures[trajectory.status] = self.failures.get(trajectory.status, 0) + 1
            if self.notice is not None and not self._told:
                self._told = True
                self.notice(
                    f"an attempt failed ({trajectory.status}): {trajectory.reason}; such are made anew and counted"
                )
        self.journal.keep(ticket, trajectory)


class _Race:
    """Siblings under way; over once enough of them are valid, or can no longer be."""

    def __init__(self, num_wanted: int, num_spare: int) -> None:
        self.result: asyncio.Future[list[Trajectory] | str] = asyncio.get_running_loop().create_future()
        """The first valid trajectories in the order of siblings, or why there are too few."""
        self._num_wanted, self._num_spare = num_wanted, num_spare
        self._found: list[Trajectory] = []

    def fail(self, error: Exception) -> None:
        """One could not even be attempted: a bug, or the end of the run."""
        if not self.result.done():
            self.result.set_exception(error)

    def count(self, trajectory: Trajectory) -> None:
        """One has come to its end, good or bad."""
        if self.result.done():
            return
        if trajectory.status.valid:
            self._found.append(trajectory)
            if len(self._found) == self._num_wanted:
                self.result.set_result(sorted(self._found, key=lambda each: each.sibling))
        elif self._num_spare:
            self._num_spare -= 1
        else:
            self.result.set_result(trajectory.reason)


@record
class _Scribe:
    """Keeps in the journal what an attempt has before it ends."""

    journal: Journal
    group: int
    sibling: int
    attempt: int

    def part(self, turn: int, context: int, output: Output) -> None:
        self.journal.note(
            Chunk(
                group=self.group,
                sibling=self.sibling,
                attempt=self.attempt,
                turn=turn,
                context=context,
                ids=output.ids,
                logprobs=output.logprobs,
                version=output.version,
            )
        )

    def diverged(self, turn: int) -> None:
        self.journal.record(Diverged(group=self.group, sibling=self.sibling, turn=turn))


_NO_PAST = Past()


def _chosen(group: Group) -> tuple[int, ...]:
    return tuple(trajectory.sibling for trajectory in group.trajectories)


def _plain(draw: Draw) -> dict[str, Any]:
    return {"source": draw.source, "index": draw.index, "attempt": draw.attempt, "returned": draw.returned}
