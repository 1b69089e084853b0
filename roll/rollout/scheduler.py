"""The scheduler: draws tasks, admits groups into free slots, runs their attempts, and replaces failed groups."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from roll.algorithms.user_code import call
from roll.data.mixture import Draw, Mixture
from roll.errors import RunStopped
from roll.journal.events import (
    AttemptRetried,
    GroupAdmitted,
    GroupFailed,
    GroupFiltered,
    GroupReady,
    GroupStale,
    TaskQuarantined,
)
from roll.journal.store import Journal
from roll.registry import FILTERS
from roll.rollout.buffer import Buffer
from roll.rollout.early_stop import EarlyStop
from roll.rollout.episode.runner import Attempt, EpisodeRunner, SavedTurn
from roll.rollout.inflight import (
    InflightGroup,
    InflightGroupState,
    SavedAttempt,
    SchedulerState,
    draw_state,
    return_draw,
)
from roll.rollout.selection import Slot
from roll.rollout.siblings import JournalRecorder, SiblingRace
from roll.rollout.source import TaskSource
from roll.rollout.statistics import compare_stopped
from roll.serving.policies import ServedVersion
from roll.types import Group, Spec, Status, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Sizes and limits of the scheduler."""

    group_size: int
    max_retries: int
    max_failed_groups: int
    max_filtered_groups: int = 0
    filters: tuple[Spec, ...] = ()
    """Each returns a reason to drop a complete group, or an empty string."""
    filters_by_domain: Mapping[str, tuple[Spec, ...]] = field(default_factory=dict[str, tuple[Spec, ...]])
    """Overrides of `filters`."""
    redundant_groups: int = 0
    """Groups admitted beyond the slots; those that complete first are trained."""
    redundant_siblings: int = 0
    """Attempts per group beyond its size; the first valid ones are trained."""
    in_order: bool = False
    """Whether groups are completed or replaced in the order of their admission, so that timing decides no draw."""
    seed: int


@dataclass(slots=True, kw_only=True)
class Scheduler:
    """Fills the buffer with groups of tasks from the mixture."""

    mixture: Mixture
    sources: Mapping[str, TaskSource]
    runner: EpisodeRunner
    buffer: Buffer
    journal: Journal
    config: SchedulerConfig
    serving: Callable[[], ServedVersion]
    """Returns the version that is served now."""
    notice: Callable[[str], None] | None = None
    """Callback for a notice about the first failed attempt: if all fail, the run ends much later."""
    early_stop: EarlyStop | None = None
    """Stops the longest attempts of a step that waits; None: every attempt runs to its end."""
    returned: deque[Draw] = field(default_factory=deque[Draw])
    """Draws that are admitted before any other: replacements of groups, and the tasks of stale groups."""
    failures: dict[Status, int] = field(default_factory=dict[Status, int])
    """Failed attempts since `drain_counts`."""
    num_filtered: int = 0
    num_stale: int = 0
    """Filtered and stale groups since `drain_counts`."""
    _inflight: dict[int, InflightGroup] = field(default_factory=dict[int, InflightGroup])
    """By ticket, every group that is not part of published weights yet."""
    _tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict[int, "asyncio.Task[None]"])
    """By ticket, the tasks of groups that are not complete."""
    _last_started: asyncio.Task[None] | None = None
    _replaced: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    _noticed: bool = False
    _num_failed_in_a_row: int = 0
    """Groups that failed since the last one that did not."""
    _num_filtered_in_a_row: int = 0
    """Groups filtered since the last one that was not."""

    def restore_trained(self, inflight: Sequence[InflightGroup]) -> None:
        """Restore groups that steps have trained on, for their next use; before the first step.

        A group with pruned tokens, or one that lower values of `reuse` or `max_staleness` exclude, is replaced by a new
        one.
        """
        for each in inflight:
            if each.uses and (group := self._complete_group(each)) is not None:
                slot = Slot(each.ticket, each.birth.step, group, each.uses, each.last)
                if self.buffer.restore_trained(slot, self.serving().step):
                    self._inflight[each.ticket] = each

    async def run(self, num_groups: int, inflight: Sequence[InflightGroup] = ()) -> None:
        """Continue the groups of an earlier process, then admit new ones as slots allow.

        Admits until steps can train on `num_groups` new groups; replaced groups do not count.
        """
        new = [group for group in inflight if group.uses == 0]
        num_missing = num_groups + self.config.redundant_groups - len(new)
        async with asyncio.TaskGroup() as tasks:
            for group in new:
                self.buffer.restore(group.ticket, group.birth.step)
                self._start(tasks, group)
            while True:
                for _ in range(num_missing):
                    ticket, birth = await self.buffer.admit(self.serving)
                    draw = self.returned.popleft() if self.returned else self.mixture.draw()
                    self.journal.record(
                        GroupAdmitted(group=ticket, task=draw.task.id, domain=draw.task.domain, birth=birth.version)
                    )
                    self._start(tasks, InflightGroup(ticket=ticket, draw=draw, birth=birth))
                await self._replaced.acquire()
                num_missing = 1

    def admit_more(self, num_groups: int) -> None:
        """Admit `num_groups` more than `run` was given, as slots allow."""
        for _ in range(num_groups):
            self._replaced.release()

    def forget(self, groups: Iterable[Group], step: int, usable: Container[int] = ()) -> None:
        """Drop groups that are part of published weights, but not `usable` ones, on which later steps may train."""
        for group in groups:
            inflight = self._inflight[group.id]
            self._forget_lengths(group.id)
            self._inflight[group.id] = replace(inflight, uses=inflight.uses + 1, last=step)
        for ticket in [ticket for ticket, each in self._inflight.items() if each.uses and ticket not in usable]:
            del self._inflight[ticket]

    def abandon(self, tickets: Iterable[int]) -> None:
        """Stop groups that are too old to be trained on; their tasks are drawn again before any other."""
        for ticket in tickets:
            group = self._inflight.pop(ticket)
            self._forget_lengths(ticket)
            if (task := self._tasks.pop(ticket, None)) is not None:
                task.cancel()
            reason = f"admitted at version {group.birth.version}; other groups completed first"
            self.journal.record(GroupStale(group=ticket, reason=reason))
            self.num_stale += 1
            self.returned.append(return_draw(group.draw))
            self._replaced.release()

    def state(self) -> SchedulerState:
        """The state that a resumed run needs to continue with the same groups."""
        return SchedulerState(
            mixture=self.mixture.state(),
            returned=tuple(map(draw_state, self.returned)),
            groups=tuple(
                InflightGroupState(
                    ticket=each.ticket,
                    birth=each.birth.version,
                    draw=draw_state(each.draw),
                    observed=each.observed,
                    uses=each.uses,
                    last=each.last,
                )
                for _, each in sorted(self._inflight.items())
            ),
        )

    def drain_counts(self) -> dict[str, float]:
        """Counts of failed, filtered and stale work since the last call, as metrics."""
        counts = {f"failed/{status}": float(count) for status, count in self.failures.items()}
        if self.config.filters or any(self.config.filters_by_domain.values()):
            counts["filtered/groups"] = float(self.num_filtered)
        if self.config.redundant_groups:
            counts["stale/groups"] = float(self.num_stale)
        counts |= {f"mixture/share/{name}": share for name, share in self.mixture.scheduled_shares().items()}
        self.failures.clear()
        self.num_filtered = self.num_stale = 0
        return counts

    def describe_stops(self, groups: Sequence[Group]) -> dict[str, float]:
        """Metrics of the stopped attempts of groups that are trained now; empty if none is ever stopped."""
        return {} if self.early_stop is None else compare_stopped(groups, self.early_stop.take_stopped(groups))

    def _forget_lengths(self, ticket: int) -> None:
        if self.early_stop is not None:
            self.early_stop.forget(ticket)

    def _complete_group(self, inflight: InflightGroup) -> Group | None:
        """The group of its saved attempts; None if one is missing."""
        trajectories = [each.trajectory for _, each in sorted(inflight.attempts.items())]
        complete = tuple(trajectory for trajectory in trajectories if trajectory is not None)
        if len(complete) != self.config.group_size:
            return None
        return Group(id=inflight.ticket, birth=inflight.birth.version, trajectories=complete)

    def _start(self, tasks: asyncio.TaskGroup, inflight: InflightGroup) -> None:
        self._inflight[inflight.ticket] = inflight
        before = self._last_started if self.config.in_order else None
        self._last_started = tasks.create_task(self._run_group(inflight, before))
        self._tasks[inflight.ticket] = self._last_started

    async def _run_group(self, inflight: InflightGroup, before: asyncio.Task[None] | None) -> None:
        """Run one group from its admission until it is complete or replaced; with `before`, after that task has ended.

        Its rewards are observed and its replacement is drawn in one go: a resumed run repeats that from one event.
        """
        trajectories = await self._collect_siblings(inflight)
        if before is not None:
            await asyncio.wait([before])
        if isinstance(trajectories, str):
            self._record_failed(inflight, trajectories)
            await self._replace(inflight)
            return
        self._num_failed_in_a_row = 0
        group = Group(id=inflight.ticket, birth=inflight.birth.version, trajectories=tuple(trajectories))
        rewards = () if inflight.observed else tuple([trajectory.reward for trajectory in trajectories])
        if rewards:
            self.mixture.observe(inflight.draw, rewards)
            self._inflight[inflight.ticket] = replace(inflight, observed=True)
        if reason := self._filter_reason(group):
            self._record_filtered(inflight.ticket, reason, rewards)
            await self._replace(inflight)
            return
        self._num_filtered_in_a_row = 0
        chosen = [trajectory.sibling for trajectory in trajectories] if self.config.redundant_siblings else ()
        self.journal.record(GroupReady(group=inflight.ticket, siblings=tuple(chosen), rewards=rewards))
        self._tasks.pop(inflight.ticket, None)
        await self.buffer.put(group)

    async def _collect_siblings(self, inflight: InflightGroup) -> list[Trajectory] | str:
        """The first valid trajectories, in sibling order; or the reason why too few can be valid."""
        num_needed, num_spare = self.config.group_size, self.config.redundant_siblings
        race = SiblingRace(partial(self._run_sibling, inflight), num_needed, num_spare)
        create_task, numbers = asyncio.get_running_loop().create_task, range(num_needed + num_spare)
        siblings = [create_task(race.enter(number)) for number in numbers]
        try:
            return await race.result
        finally:
            for sibling in siblings:
                sibling.cancel()

    async def _run_sibling(self, inflight: InflightGroup, sibling: int) -> Trajectory:
        """A valid trajectory, or the failed one of the last retry."""
        saved = inflight.attempts.get(sibling, _NOTHING_SAVED)
        num_failed, num_stopped = min(saved.num_failed, self.config.max_retries), len(saved.stopped)
        if self.early_stop is not None:
            self.early_stop.add_stopped(inflight.ticket, *saved.stopped)
        trajectory = saved.trajectory
        turns = saved.turns if saved.num_failed <= self.config.max_retries else ()
        while trajectory is None or not trajectory.status.valid:
            attempt = self._attempt(inflight, sibling, num_failed + num_stopped, turns, may_stop=not num_stopped)
            trajectory, turns = await self.sources[inflight.draw.source].attempt(self.runner, attempt), ()
            self._record_trajectory(inflight.ticket, trajectory)
            status, reason = trajectory.status, trajectory.reason
            if status is Status.ABORTED and self.early_stop is not None:
                num_stopped += 1
                self.early_stop.add_stopped(inflight.ticket, trajectory.num_sampled)
            elif not status.valid:
                num_failed += 1
            if num_failed > self.config.max_retries:
                return trajectory
            if not status.valid:
                self.journal.record(
                    AttemptRetried(group=inflight.ticket, sibling=sibling, status=status, reason=reason)
                )
        if self.early_stop is not None:
            self.early_stop.add_ended(inflight.ticket, sibling, trajectory.num_sampled)
        return trajectory

    def _attempt(
        self, inflight: InflightGroup, sibling: int, number: int, turns: Sequence[SavedTurn], *, may_stop: bool
    ) -> Attempt:
        """The attempt after `number` others of this sibling, which begins with the saved `turns`."""
        draw, stop = inflight.draw, self.early_stop if may_stop else None
        number += draw.attempt * (self.config.max_retries + 1 + (self.early_stop is not None))
        return Attempt(
            task=draw.task,
            sibling=sibling,
            number=number,
            purpose=f"train+{draw.returned}" if draw.returned else "train",
            order=inflight.ticket,
            seed=self.config.seed,
            saved_turns=tuple(turns),
            recorder=JournalRecorder(journal=self.journal, group=inflight.ticket, sibling=sibling, attempt=number),
            stop_reason=None if stop is None else partial(stop.reason, inflight.ticket),
        )

    def _filter_reason(self, group: Group) -> str:
        """Why a filter drops this group; empty if none does."""
        domain = group.trajectories[0].task.domain
        filters = self.config.filters_by_domain.get(domain, self.config.filters)
        reasons = (call(FILTERS, each, group) for each in filters)
        return next((reason for reason in reasons if reason), "")

    def _record_filtered(self, ticket: int, reason: str, rewards: tuple[float, ...]) -> None:
        self.journal.record(GroupFiltered(group=ticket, reason=reason, rewards=rewards))
        self.num_filtered += 1
        self._num_filtered_in_a_row += 1
        if self._num_filtered_in_a_row > self.config.max_filtered_groups:
            raise RunStopped(
                f"{self._num_filtered_in_a_row} groups in a row were filtered, the last because {reason}; "
                "give easier or harder tasks, or raise rollout.max_filtered_groups"
            )

    def _record_failed(self, inflight: InflightGroup, reason: str) -> None:
        self.journal.record(GroupFailed(group=inflight.ticket, reason=reason))
        if num_failed := self.mixture.count_failed(inflight.draw):
            self._record_quarantined(inflight.draw, num_failed, reason)
        self._num_failed_in_a_row += 1
        if self._num_failed_in_a_row > self.config.max_failed_groups:
            raise RunStopped(
                f"{self._num_failed_in_a_row} groups in a row failed, the last with: {reason}; fix that and "
                "`roll resume` the run (without a checkpoint start it again, with --overwrite), or raise "
                "rollout.max_failed_groups"
            )

    def _record_quarantined(self, draw: Draw, num_failed: int, reason: str) -> None:
        task, source = draw.task.id, draw.source
        self.journal.record(
            TaskQuarantined(task=task, source=source, index=draw.index, num_failed=num_failed, reason=reason)
        )
        if self.notice is not None:
            what = f"task {task!r} of {source} is quarantined and not drawn again"
            self.notice(f"{what}: {num_failed} groups of it in a row failed, the last with: {reason}")

    def _record_trajectory(self, ticket: int, trajectory: Trajectory) -> None:
        stopped = trajectory.status is Status.ABORTED and self.early_stop is not None
        if not trajectory.status.valid and not stopped:
            self.failures[trajectory.status] = self.failures.get(trajectory.status, 0) + 1
            if self.notice is not None and not self._noticed:
                self._noticed = True
                self.notice(
                    f"an attempt failed ({trajectory.status}): {trajectory.reason}; failures are retried and counted"
                )
        self.journal.record_trajectory(ticket, trajectory)

    async def _replace(self, inflight: InflightGroup) -> None:
        """Let a new group of the same source join at the tail, so that shares hold over trained groups."""
        del self._inflight[inflight.ticket]
        self._forget_lengths(inflight.ticket)
        self._tasks.pop(inflight.ticket, None)
        self.mixture.forgo(inflight.draw)
        self.returned.append(self.mixture.draw())
        await self.buffer.drop(inflight.ticket)
        self._replaced.release()


_NOTHING_SAVED = SavedAttempt()
