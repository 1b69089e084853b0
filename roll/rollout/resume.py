"""The state of an interrupted run, reconstructed from its newest checkpoint and the journal.

The checkpoint lists the groups in flight and a position in the journal. Later events are applied to them, for each
process that continued the checkpoint up to its first publication of weights that the checkpoint does not contain.
Tokens sampled by such weights are void: a group keeps its tokens before them, and groups admitted later are drawn again
in the same order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import msgspec
import numpy as np

from roll.algorithms.credit import AlgorithmState
from roll.checkpoint import read_state
from roll.data.mixture import Draw, Mixture
from roll.errors import ConfigError, RunStopped
from roll.journal.events import (
    Event,
    GroupAdmitted,
    GroupFailed,
    GroupFiltered,
    GroupReady,
    GroupStale,
    RolledBack,
    TaskQuarantined,
    WeightsPublished,
)
from roll.journal.records import Chunk, StoredTrajectory, TrajectoryQuery
from roll.journal.store import Reader
from roll.rollout.episode.conversation import checksum
from roll.rollout.episode.runner import SavedTurn
from roll.rollout.inflight import DrawState, InflightGroup, SavedAttempt, SchedulerState, return_draw
from roll.serving.dispatch import Sampled
from roll.serving.policies import ServedVersion
from roll.types import Status, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointState:
    """The state of a run in a checkpoint, apart from weights and optimizers."""

    step: int
    journal: int
    """Position in the journal up to which `scheduler` contains all events."""
    began: float = 0.0
    """Time of the journal's first event, by which it is recognised; 0 in checkpoints that do not have it."""
    scheduler: SchedulerState
    algorithm: Mapping[str, AlgorithmState]
    """By policy."""
    metrics: Mapping[str, float]
    """Metrics of the step, as far as they are finite."""


def read_checkpoint(path: Path) -> CheckpointState:
    """The state in the folder of a checkpoint."""
    return msgspec.convert(read_state(path), CheckpointState)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeState:
    """The state from which a resumed run continues."""

    step: int
    """Finished training steps."""
    version: int
    """The last published version; the next one is higher."""
    step_of: Mapping[int, int]
    """Training steps behind each version, for versions that the checkpoint descends from."""
    groups: Sequence[InflightGroup]
    """Groups in flight, oldest first."""
    returned: Sequence[Draw]
    """Draws to repeat before any other."""
    algorithm: Mapping[str, AlgorithmState]
    """By policy."""
    metrics: Mapping[str, float]
    """Metrics of the last finished step."""


def resume_from(saved: CheckpointState, mixture: Mixture, journal: Reader, *, exact: bool = False) -> ResumeState:
    """The state to resume from; also brings the mixture to it.

    Tasks stay quarantined that were quarantined after the checkpoint. With `exact`, a run repeats these failures as
    well, since the order of its tasks may not depend on the restart.
    """
    check_same_run(saved, journal)
    mixture.restore(saved.scheduler.mixture)
    step_of = _valid_versions(journal, saved.step)
    replay = _Replay(mixture, saved.scheduler, step_of)
    void = False
    for entry in journal.events(after=saved.journal):
        match entry.event:
            case WeightsPublished(version=version) if version not in step_of:
                void = True
            case RolledBack(to_step=to_step) if to_step == saved.step:
                void = False  # another process continued from the state so far
            case _:
                pass
        if not void:
            replay.apply(entry.event)
    for entry in () if exact else journal.events(TaskQuarantined):
        mixture.quarantine(entry.event.source, entry.event.index)
    groups = [
        replace(group, attempts=_saved_attempts(ticket, journal, step_of.keys(), trained=group.uses > 0))
        for ticket, group in replay.groups.items()
    ]
    return ResumeState(
        step=saved.step,
        version=max((entry.event.version for entry in journal.events(WeightsPublished)), default=-1),
        step_of=step_of,
        groups=groups,
        returned=replay.returned,
        algorithm=saved.algorithm,
        metrics=saved.metrics,
    )


def check_same_run(saved: CheckpointState, journal: Reader) -> None:
    """Raise `ConfigError` unless the journal has all that the checkpoint is based on."""
    last, began = journal.position(), journal.began()
    if saved.began and began and saved.began != began:
        raise ConfigError(
            f"{journal.path}: the checkpoint of step {saved.step} is of another run than this journal; put the "
            "checkpoints and the journal of one run back; nothing was changed"
        )
    if saved.journal > last:
        raise ConfigError(
            f"{journal.path}: ends at event {last}, before event {saved.journal} that the checkpoint contains; "
            f"it is an older copy, or its {journal.path.name}-wal is missing: put the file back"
        )


def _valid_versions(journal: Reader, step: int) -> dict[int, int]:
    """The training step of every version that a checkpoint of `step` descends from, across all rollbacks."""
    step_of: dict[int, int] = {}
    for entry in journal.events():
        match entry.event:
            case WeightsPublished(version=version, step=published):
                step_of[version] = published
            case RolledBack(to_step=to_step):
                step_of = {version: published for version, published in step_of.items() if published <= to_step}
            case _:
                pass
    return {version: published for version, published in step_of.items() if published <= step}


class _Replay:
    """The scheduler's state, rebuilt from journal events."""

    def __init__(self, mixture: Mixture, saved: SchedulerState, step_of: Mapping[int, int]) -> None:
        self.mixture, self._step_of = mixture, step_of
        self.groups = {
            each.ticket: InflightGroup(
                ticket=each.ticket,
                birth=self._served(each.birth),
                draw=_recall(mixture, each.draw),
                observed=each.observed,
                uses=each.uses,
                last=each.last,
            )
            for each in saved.groups
        }
        self.returned = deque(_recall(mixture, each) for each in saved.returned)

    def apply(self, event: Event) -> None:
        match event:
            case GroupAdmitted():
                self._admit(event)
            case GroupReady():
                self._observe(event.group, event.rewards)
            case GroupFiltered():
                self._observe(event.group, event.rewards)
                self._remove(event.group)
            case GroupFailed():
                self.mixture.count_failed(self.groups[event.group].draw)
                self._remove(event.group)
            case GroupStale():
                self.returned.append(return_draw(self.groups.pop(event.group).draw))
            case _:
                pass

    def _admit(self, event: GroupAdmitted) -> None:
        draw = self.returned.popleft() if self.returned else self.mixture.draw()
        if (draw.task.id, draw.task.domain) != (event.task, event.domain):
            raise RunStopped(
                f"group {event.group}: its task was {event.task!r} of {event.domain} and would now be {draw.task.id!r} "
                f"of {draw.task.domain}; resume with the data, shares and seed the run was started with"
            )
        self.groups[event.group] = InflightGroup(ticket=event.group, draw=draw, birth=self._served(event.birth))

    def _served(self, version: int) -> ServedVersion:
        return ServedVersion(version, self._step_of[version])

    def _observe(self, group: int, rewards: Sequence[float]) -> None:
        if rewards:
            self.mixture.observe(self.groups[group].draw, rewards)
            self.groups[group] = replace(self.groups[group], observed=True)

    def _remove(self, group: int) -> None:
        self.mixture.forgo(self.groups.pop(group).draw)
        self.returned.append(self.mixture.draw())


def _recall(mixture: Mixture, draw: DrawState) -> Draw:
    return mixture.recall(draw.source, index=draw.index, attempt=draw.attempt, returned=draw.returned)


def _saved_attempts(ticket: int, journal: Reader, valid: Container[int], *, trained: bool) -> dict[int, SavedAttempt]:
    """The usable part of a group's attempts, by sibling. `valid` are the versions whose tokens count.

    Of a group that was `trained` on, only the attempts that were: it must be the same group the next time.
    """
    attempts: dict[int, SavedAttempt] = {}
    for stored in journal.trajectories(TrajectoryQuery(group=ticket)):
        if trained and (stored.surplus or stored.trajectory is None or not stored.status.valid):
            continue
        attempts[stored.sibling] = _add_stored(attempts.get(stored.sibling, SavedAttempt()), stored, valid)
    chunks: dict[int, list[Chunk]] = {}
    for chunk in () if trained else journal.progress(ticket):
        chunks.setdefault(chunk.sibling, []).append(chunk)
    for sibling, parts in chunks.items():
        attempts[sibling] = replace(attempts.get(sibling, SavedAttempt()), turns=_turns_of_chunks(parts, valid))
    return attempts


def _add_stored(attempt: SavedAttempt, stored: StoredTrajectory, valid: Container[int]) -> SavedAttempt:
    if stored.status is Status.ABORTED:
        return replace(attempt, stopped=(*attempt.stopped, stored.num_tokens))
    if not stored.status.valid:
        return replace(attempt, num_failed=attempt.num_failed + 1)
    if stored.trajectory is None:
        return attempt  # pruned: it is sampled again
    if all(version in valid for version in stored.versions):
        return replace(attempt, trajectory=stored.trajectory)
    return replace(attempt, turns=_valid_turns(stored.trajectory, valid))


def _valid_turns(trajectory: Trajectory, valid: Container[int]) -> tuple[SavedTurn, ...]:
    """The turns of a complete attempt, up to the first void token.

    Empty for an attempt with several agents: it is stored per agent, and the order of their turns is not.
    """
    turns: list[SavedTurn] = []
    if len(trajectory.by_agent()) > 1:
        return ()
    for segment in trajectory.segments:
        context: list[int] = []
        for turn in segment.turns:
            context += turn.observation.tolist()
            versions: list[int] = turn.versions.tolist()
            num = next((index for index, version in enumerate(versions) if version not in valid), len(versions))
            so_far = Sampled(
                ids=turn.sampled[:num],
                logprobs=turn.sampler_logprobs[:num],
                versions=turn.versions[:num],
                experts=None if turn.experts is None else turn.experts[: len(turn.observation) + num],
            )
            turns.append(SavedTurn(checksum=checksum(context), so_far=so_far))
            if num < len(turn.sampled):
                return tuple(turns)
            context += turn.sampled.tolist()
    return tuple(turns)


def _turns_of_chunks(chunks: Sequence[Chunk], valid: Container[int]) -> tuple[SavedTurn, ...]:
    """The turns of an unfinished attempt, without void tokens.

    Chunks after a void one are kept: they were sampled by a later process that had resumed without it.
    """
    attempt = chunks[-1].attempt
    usable = [chunk for chunk in chunks if chunk.attempt == attempt and chunk.version in valid]
    turns: list[SavedTurn] = []
    for turn, of_turn in groupby(sorted(usable, key=lambda chunk: chunk.turn), key=lambda chunk: chunk.turn):
        parts = list(of_turn)
        parts = [part for part in parts if part.context == parts[-1].context]  # void before a divergence
        if turn != len(turns):
            break
        so_far = Sampled(
            ids=np.concatenate([part.ids for part in parts]),
            logprobs=np.concatenate([part.logprobs for part in parts]),
            versions=np.repeat([part.version for part in parts], [len(part.ids) for part in parts]).astype(np.int32),
        )
        turns.append(SavedTurn(checksum=parts[-1].context, so_far=so_far))
    return tuple(turns)
