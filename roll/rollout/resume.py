"""Where a run stood when its process ended, read back from a checkpoint and the journal.

The checkpoint names the groups under way and a place in the journal; what happened after that place is applied to
them, up to the moment when weights were published that the checkpoint does not contain. What such weights sampled is
void: a group keeps its tokens up to there, and groups admitted later are drawn again, in the same order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from roll.data.mixture import Draw, Mixture
from roll.errors import RunStopped
from roll.journal.events import (
    Admitted,
    Event,
    GroupFailed,
    GroupFiltered,
    GroupReady,
    GroupStale,
    Published,
    RolledBack,
    TrajectoryEnded,
)
from roll.journal.records import Chunk, Kept, Wanted
from roll.journal.store import Reader
from roll.rollout.episode.runner import Said, checksum
from roll.rollout.inflight import Held, Past, given_back
from roll.serving.pending import Sampled
from roll.types import ServedVersion, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a resumed run goes on with."""

    held: list[Held]
    """Oldest first."""
    returned: deque[Draw]
    """Tasks to be drawn before any other."""
    step_of: dict[int, int]
    """How many steps the weights of each version have seen, as far as they still count."""


def standing(state: dict[str, Any], mixture: Mixture, journal: Reader) -> Standing:
    """Bring the mixture to where it stood, and say which groups were under way. `state` is a checkpoint's."""
    mixture.restore(state["mixture"])
    step_of = _living(journal, state["step"])
    fold = _Fold(mixture, state, step_of)
    for entry in journal.events(after=state["journal"]):
        if isinstance(entry.event, Published) and entry.event.version not in step_of:
            break
        fold.apply(entry.event)
    ready = {entry.event.group for entry in journal.events(GroupReady)}
    held = [
        replace(each, past=_past(each.ticket, journal, step_of.keys()), observed=each.ticket in ready)
        for each in fold.held.values()
    ]
    return Standing(held=held, returned=fold.returned, step_of=step_of)


def _living(journal: Reader, step: int) -> dict[int, int]:
    """The step of every version that a checkpoint of `step` descends from, over all rollbacks."""
    living: dict[int, int] = {}
    for entry in journal.events():
        match entry.event:
            case Published(version=version, step=made):
                living[version] = made
            case RolledBack(to_step=to_step):
                living = {version: made for version, made in living.items() if made <= to_step}
            case _:
                pass
    return {version: made for version, made in living.items() if made <= step}


class _Fold:
    """The scheduler's state, from what the journal says happened."""

    def __init__(self, mixture: Mixture, state: dict[str, Any], step_of: dict[int, int]) -> None:
        self.mixture, self._step_of = mixture, step_of
        self.held = {
            each["ticket"]: Held(ticket=each["ticket"], birth=self._born(each["birth"]), draw=_recalled(mixture, each))
            for each in state["held"]
        }
        self.returned = deque(_recalled(mixture, each) for each in state["returned"])
        self._rewards: dict[int, list[float]] = {}

    def apply(self, event: Event) -> None:
        match event:
            case Admitted():
                self._admit(event)
            case TrajectoryEnded(reward=float(reward)):
                self._rewards.setdefault(event.group, []).append(reward)
            case GroupReady():
                self._observe(event.group)
            case GroupFiltered():
                self._observe(event.group)
                self._lose(event.group)
            case GroupFailed():
                self._lose(event.group)
            case GroupStale():
                self.returned.append(given_back(self.held.pop(event.group).draw))
            case _:
                pass

    def _admit(self, event: Admitted) -> None:
        draw = self.returned.popleft() if self.returned else self.mixture.draw()
        if (draw.task.id, draw.task.domain) != (event.task, event.domain):
            raise RunStopped(
                f"group {event.group}: its task was {event.task!r} of {event.domain} and would now be {draw.task.id!r} "
                f"of {draw.task.domain}; resume with the data, shares and seed the run was started with"
            )
        self.held[event.group] = Held(ticket=event.group, draw=draw, birth=self._born(event.birth))

    def _born(self, version: int) -> ServedVersion:
        return ServedVersion(version, self._step_of[version])

    def _observe(self, group: int) -> None:
        if group in self.held:
            self.mixture.observe(self.held[group].draw, self._rewards.pop(group, []))

    def _lose(self, group: int) -> None:
        self.mixture.forgo(self.held.pop(group).draw)


def _recalled(mixture: Mixture, plain: dict[str, Any]) -> Draw:
    source, index, attempt, returned = (plain[name] for name in ("source", "index", "attempt", "returned"))
    return mixture.recall(source, index=index, attempt=attempt, returned=returned)


def _past(ticket: int, journal: Reader, living: Container[int]) -> dict[int, Past]:
    """By sibling, what is left of its attempts."""
    found: dict[int, Past] = {}
    for kept in journal.trajectories(Wanted(group=ticket)):
        before = found.get(kept.sibling, Past())
        found[kept.sibling] = _after(before, kept, living)
    chunks: dict[int, list[Chunk]] = {}
    for chunk in journal.progress(ticket):
        chunks.setdefault(chunk.sibling, []).append(chunk)
    for sibling, parts in chunks.items():
        found[sibling] = replace(found.get(sibling, Past()), turns=_turns_of(parts, living))
    return found


def _after(before: Past, kept: Kept, living: Container[int]) -> Past:
    if not kept.status.valid:
        return replace(before, num_failed=before.num_failed + 1)
    if kept.trajectory is None:
        return before  # pruned: it is made anew
    if all(version in living for version in kept.versions):
        return replace(before, whole=kept.trajectory)
    return replace(before, turns=_turns_within(kept.trajectory, living))


def _turns_within(trajectory: Trajectory, living: Container[int]) -> tuple[Said, ...]:
    """The turns of a whole attempt, up to the first token that is void.

    None of an attempt with several agents: it is kept agent by agent, and nobody knows who spoke when.
    """
    said: list[Said] = []
    if len(trajectory.by_agent()) > 1:
        return ()
    for segment in trajectory.segments:
        context: list[int] = []
        for turn in segment.turns:
            context += turn.observation.tolist()
            versions: list[int] = turn.versions.tolist()
            num = next((at for at, version in enumerate(versions) if version not in living), len(versions))
            so_far = Sampled(ids=turn.sampled[:num], logprobs=turn.sampler_logprobs[:num], versions=turn.versions[:num])
            said.append(Said(context=checksum(context), so_far=so_far))
            if num < len(turn.sampled):
                return tuple(said)
            context += turn.sampled.tolist()
    return tuple(said)


def _turns_of(chunks: Sequence[Chunk], living: Container[int]) -> tuple[Said, ...]:
    """The turns of an attempt that had not ended, without what is void.

    Where a void part stands between others, those after it were sampled by a process that had gone on without it.
    """
    attempt = chunks[-1].attempt
    sound = [chunk for chunk in chunks if chunk.attempt == attempt and chunk.version in living]
    said: list[Said] = []
    for turn, parts in groupby(sorted(sound, key=lambda chunk: chunk.turn), key=lambda chunk: chunk.turn):
        found = list(parts)
        found = [part for part in found if part.context == found[-1].context]  # before a divergence all is void
        if turn != len(said):
            break
        so_far = Sampled(
            ids=np.concatenate([part.ids for part in found]),
            logprobs=np.concatenate([part.logprobs for part in found]),
            versions=np.repeat([part.version for part in found], [len(part.ids) for part in found]).astype(np.int32),
        )
        said.append(Said(context=found[-1].context, so_far=so_far))
    return tuple(said)
