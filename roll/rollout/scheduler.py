"""Keeps every free slot busy: draws tasks, admits groups, lets each attempt live its own life, replaces what fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from roll.data.mixture import Draw, Mixture
from roll.errors import RunStopped
from roll.journal.events import Admitted, GroupFailed, GroupFiltered, GroupReady, Retried, TrajectoryEnded
from roll.journal.store import Journal
from roll.registry import FILTERS
from roll.rollout.buffer import Buffer
from roll.rollout.episode import Attempt, EpisodeRunner
from roll.rollout.source import Source
from roll.types import Call, Group, Status, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the scheduler decides by."""

    group_size: int
    max_retries: int
    max_failed_groups: int
    max_filtered_groups: int = 0
    filters: tuple[Call, ...] = ()
    """Say why a whole group is not worth training on."""
    seed: int


@dataclass(slots=True, kw_only=True)
class Scheduler:
    """Fills the buffer from the mixture until `num_groups` groups have come through."""

    mixture: Mixture
    sources: Mapping[str, Source]
    runner: EpisodeRunner
    buffer: Buffer
    journal: Journal
    policy: Policy
    version: Callable[[], int]
    """The version that is published now."""
    failures: dict[Status, int] = field(default_factory=dict[Status, int])
    """Failed attempts since `drain_failures`, by kind."""
    _before: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    """For each group under way, the mixture's state before it was drawn."""
    num_filtered: int = 0
    """Groups filtered since `drain_failures`."""
    _num_failed: int = 0
    """Groups given up since the last one that was not."""
    _num_useless: int = 0
    """Groups filtered since the last one that was not."""

    async def run(self, num_groups: int) -> None:
        """Admit as slots allow. A group that is given up does not count: another takes its place at the tail."""
        wanted = num_groups
        async with asyncio.TaskGroup() as under_way:
            replaced = asyncio.Queue[None]()
            while True:
                for _ in range(wanted):
                    ticket = await self.buffer.admit()
                    self._before[ticket] = self.mixture.state()
                    under_way.create_task(self._fill(ticket, self.mixture.draw(), replaced))
                await replaced.get()
                wanted = 1

    def forget(self, groups: list[Group]) -> None:
        """These groups are part of the weights now; a resumed run need not draw them again."""
        for group in groups:
            del self._before[group.id]

    def state(self) -> dict[str, Any]:
        """The mixture as of the oldest group that is not trained yet: a resumed run draws that one next."""
        return self._before[min(self._before)] if self._before else self.mixture.state()

    def drain_failures(self) -> dict[str, float]:
        """Failed attempts since the last call, as metrics."""
        found = {f"failed/{status}": float(count) for status, count in self.failures.items()}
        if self.policy.filters:
            found["filtered/groups"] = float(self.num_filtered)
        self.failures.clear()
        self.num_filtered = 0
        return found

    async def _fill(self, ticket: int, draw: Draw, replaced: asyncio.Queue[None]) -> None:
        """One group from its admission until it is ready or given up."""
        birth = self.version()
        self.journal.record(Admitted(group=ticket, task=draw.task.id, domain=draw.task.domain, birth=birth))
        trajectories: list[Trajectory] = []
        siblings = [
            asyncio.create_task(self._sibling(ticket, draw, number)) for number in range(self.policy.group_size)
        ]
        try:
            for ended in asyncio.as_completed(siblings):
                trajectories.append(await ended)
                if not trajectories[-1].status.valid:
                    await self._give_up(ticket, trajectories[-1].reason)
                    await replaced.put(None)
                    return
        finally:
            for sibling in siblings:
                sibling.cancel()
        self._num_failed = 0
        trajectories.sort(key=lambda trajectory: trajectory.sibling)
        group = Group(id=ticket, birth=birth, trajectories=tuple(trajectories))
        if reason := self._useless(group):
            await self._filter(ticket, reason)
            await replaced.put(None)
            return
        self._num_useless = 0
        self.journal.record(GroupReady(group=ticket))
        await self.buffer.put(group)

    def _useless(self, group: Group) -> str:
        """Why there is nothing to learn from this group, if so."""
        reasons = (FILTERS[each.name](group, **each.arguments) for each in self.policy.filters)
        return next((reason for reason in reasons if reason), "")

    async def _filter(self, ticket: int, reason: str) -> None:
        self.journal.record(GroupFiltered(group=ticket, reason=reason))
        self.num_filtered += 1
        self._num_useless += 1
        if self._num_useless > self.policy.max_filtered_groups:
            raise RunStopped(
                f"{self._num_useless} groups in a row were filtered, the last because {reason}; "
                "give easier or harder tasks, or raise rollout.max_filtered_groups"
            )
        del self._before[ticket]
        await self.buffer.drop(ticket)

    async def _give_up(self, ticket: int, reason: str) -> None:
        self.journal.record(GroupFailed(group=ticket, reason=reason))
        self._num_failed += 1
        if self._num_failed > self.policy.max_failed_groups:
            raise RunStopped(
                f"{self._num_failed} groups in a row failed, the last with: {reason}; mend that and `roll resume` "
                "the run (without a checkpoint start it again, with --overwrite), or raise rollout.max_failed_groups"
            )
        del self._before[ticket]
        await self.buffer.drop(ticket)

    async def _sibling(self, ticket: int, draw: Draw, number: int) -> Trajectory:
        """A valid trajectory, or the failure of the last try."""
        tries = self.policy.max_retries + 1
        for retry in range(tries):
            attempt = Attempt(
                task=draw.task,
                sibling=number,
                number=draw.attempt * tries + retry,
                purpose="train",
                seed=self.policy.seed,
            )
            trajectory = await self.sources[draw.source].attempt(self.runner, attempt)
            self._record_end(ticket, trajectory)
            if trajectory.status.valid or retry == self.policy.max_retries:
                return trajectory
            status, reason = trajectory.status, trajectory.reason
            self.journal.record(Retried(group=ticket, sibling=number, status=status, reason=reason))
        raise AssertionError("the last try returns")

    def _record_end(self, ticket: int, trajectory: Trajectory) -> None:
        versions = [int(turn.versions[end]) for turn in trajectory.turns if len(turn.versions) for end in (0, -1)]
        if not trajectory.status.valid:
            self.failures[trajectory.status] = self.failures.get(trajectory.status, 0) + 1
        self.journal.keep(ticket, trajectory)
        self.journal.record(
            TrajectoryEnded(
                group=ticket,
                sibling=trajectory.sibling,
                status=trajectory.status,
                reward=trajectory.reward if trajectory.status.valid else None,
                reason=trajectory.reason,
                num_tokens=trajectory.num_sampled,
                versions=(min(versions), max(versions)) if versions else None,
            )
        )
