"""The sequence of tasks: draws from several sources by share, each with its own order.

The sequence is a pure function of the seed, the sources and the observed rewards, so its state is small.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from roll.config.sources import Curriculum, Difficulty, ShareSchedule, share_at
from roll.errors import ConfigError, RunStopped
from roll.types import Sampling, Spec, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One drawn task."""

    task: Task
    source: str
    """Name of its source."""
    attempt: int
    """Number of earlier draws of this task."""
    index: int
    """Index of the task in its source."""
    returned: int = 0
    """How often it was returned because its attempts were too stale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixturePart:
    """One source of a mixture."""

    name: str
    tasks: Sequence[Task]
    share: float = 1.0
    """Relative to the other sources."""
    share_schedule: ShareSchedule | None = None
    """Course of the share over the steps of the run; None: it stays."""
    difficulty: Difficulty | None = None
    curriculum: Curriculum | None = None
    """Without both, tasks are drawn in random permutations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """Settings of a source, with the run's values as defaults."""

    sampling: Sampling
    max_new_tokens: int
    """Most tokens per response."""
    filters: tuple[Spec, ...]
    """Select groups that are replaced instead of trained on."""


class Mixture:
    """An endless sequence of tasks from several sources.

    After any number of draws every source has had its share to within one draw, not counting forgone draws. A shuffled
    source repeats no task before all of its tasks were drawn. A quarantined task is not drawn again. Scheduled shares
    advance by one step per `draws_per_step` draws, so that they depend on the number of draws alone.
    """

    def __init__(
        self, parts: Sequence[MixturePart], *, seed: int, draws_per_step: int = 1, quarantine_after: int = 0
    ) -> None:
        """`quarantine_after` failed groups of a task in a row, it is quarantined; 0: never."""
        assert parts and all(part.tasks for part in parts), "every source needs tasks"
        self._parts, self._draws_per_step = tuple(parts), draws_per_step
        self._scheduled = any(part.share_schedule is not None for part in parts)
        self._first_shares = self._shares(0)
        self._targets = [[Fraction(0)] * len(parts)]
        """Draws that each source should have had after this many steps, for scheduled shares; grows as needed."""
        self._orders = [_order(part, seed) for part in parts]
        self._index = {part.name: index for index, part in enumerate(parts)}
        self._forgone = [0] * len(parts)
        self._quarantine_after = quarantine_after
        self._num_failed: list[dict[int, int]] = [{} for _ in parts]
        """By source and index of the task: groups that failed since one that did not."""
        self._quarantined: list[set[int]] = [set() for _ in parts]
        """Indices, by source."""

    def draw(self) -> Draw:
        chosen = self._next_part()
        part = self._parts[chosen]
        if len(self._quarantined[chosen]) == len(part.tasks):
            raise RunStopped(
                f"tasks: all {len(part.tasks)} tasks of source {part.name!r} are quarantined; see `roll report` for "
                "the reasons, fix them and start again, or set rollout.quarantine_after to 0"
            )
        index, attempt = self._orders[chosen].draw()
        while index in self._quarantined[chosen]:
            self._forgone[chosen] += 1
            index, attempt = self._orders[chosen].draw()
        try:
            task = part.tasks[index]
        except (IndexError, StopIteration) as error:
            raise RunStopped(
                f"tasks: source {part.name!r} ended early: its length is {len(part.tasks)}, and it has no number "
                f"{index}; fix the data, then `roll resume` the run"
            ) from error
        return Draw(task=task, source=part.name, attempt=attempt, index=index)

    def forgo(self, draw: Draw) -> None:
        """Give the source another draw for this one, which is not trained on, so that shares hold in training."""
        self._forgone[self._index[draw.source]] += 1

    def count_failed(self, draw: Draw) -> int:
        """Count a failed group of this draw's task; the number of them in a row if that quarantines it, else 0."""
        part = self._index[draw.source]
        failed, quarantined = self._num_failed[part], self._quarantined[part]
        failed[draw.index] = failed.get(draw.index, 0) + 1
        if not self._quarantine_after or failed[draw.index] < self._quarantine_after or draw.index in quarantined:
            return 0
        self.quarantine(draw.source, draw.index)
        return failed[draw.index]

    def quarantine(self, source: str, index: int) -> None:
        """Draw this task of a source no more."""
        part = self._index[source]
        self._quarantined[part].add(index)
        self._orders[part].exclude(index)

    def recall(self, source: str, *, index: int, attempt: int, returned: int) -> Draw:
        """An earlier draw, from its saved fields."""
        part = self._parts[self._index[source]]
        return Draw(task=part.tasks[index], source=source, attempt=attempt, index=index, returned=returned)

    def observe(self, draw: Draw, rewards: Sequence[float]) -> None:
        """Record the rewards of this draw's group, trained on or not; failed attempts have no reward."""
        if rewards:
            part = self._index[draw.source]
            self._orders[part].observe(draw.index, rewards)
            self._num_failed[part].pop(draw.index, None)

    def scheduled_shares(self) -> dict[str, float]:
        """Share of each source at the next draw, by name; empty if no share changes over the run."""
        if not self._scheduled:
            return {}
        shares = self._shares(self._num_draws // self._draws_per_step)
        return {part.name: float(share) for part, share in zip(self._parts, shares, strict=True)}

    def state(self) -> dict[str, Any]:
        """JSON-compatible state for `restore`."""
        return {
            part.name: {
                **order.state(),
                "tasks": len(part.tasks),
                "forgone": self._forgone[number],
                "failed": sorted(self._num_failed[number].items()),
                "quarantined": sorted(self._quarantined[number]),
            }
            for number, (part, order) in enumerate(zip(self._parts, self._orders, strict=True))
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; the sources must be the same."""
        ours = {part.name: len(part.tasks) for part in self._parts}
        theirs = {name: entry["tasks"] for name, entry in state.items()}
        if ours != theirs:
            raise ConfigError(
                f"tasks: not those of the checkpoint (got {ours}, it had {theirs}); resume with the same data"
            )
        for part, order in zip(self._parts, self._orders, strict=True):
            order.restore(state[part.name])
        self._forgone = [int(state[part.name]["forgone"]) for part in self._parts]
        self._num_failed = [dict(state[part.name].get("failed", ())) for part in self._parts]
        for part in self._parts:
            for index in state[part.name].get("quarantined", ()):
                self.quarantine(part.name, index)

    @property
    def _drawn(self) -> list[int]:
        """Draws of each source, without forgone ones."""
        return [order.drawn - forgone for order, forgone in zip(self._orders, self._forgone, strict=True)]

    @property
    def _num_draws(self) -> int:
        return sum(self._drawn)

    def _next_part(self) -> int:
        """Among the sources behind their share, the one whose next draw is due first.

        Drawing from the source furthest behind would deviate by more than one draw for very unequal shares.
        """
        if len(self._parts) == 1:
            return 0
        drawn = self._drawn
        targets, shares = self._targets_after(sum(drawn) + 1)
        behind = [i for i, target in enumerate(targets) if drawn[i] < target]
        return min(behind, key=lambda i: (drawn[i] + 1 - targets[i]) / shares[i] if shares[i] else math.inf)

    def _targets_after(self, num_draws: int) -> tuple[list[Fraction], list[Fraction]]:
        """Draws that each source should have had after so many in all, and the shares of the last one."""
        if not self._scheduled:
            return [share * num_draws for share in self._first_shares], self._first_shares
        step, rest = divmod(num_draws - 1, self._draws_per_step)
        while len(self._targets) <= step:
            earlier = self._shares(len(self._targets) - 1)
            before = zip(self._targets[-1], earlier, strict=True)
            self._targets.append([target + self._draws_per_step * share for target, share in before])
        shares = self._shares(step)
        return [target + share * (rest + 1) for target, share in zip(self._targets[step], shares, strict=True)], shares

    def _shares(self, step: int) -> list[Fraction]:
        """Shares of the draws of a step; they sum to 1."""
        shares = [share_at(part.share, part.share_schedule, step) for part in self._parts]
        shares = [share / sum(shares) for share in shares]
        if not self._scheduled:
            return shares
        rounded = [Fraction(int(share * _GRAINS), _GRAINS) for share in shares]  # keeps denominators of sums small
        rounded[shares.index(max(shares))] += 1 - sum(rounded)
        return rounded


_GRAINS = 10**6
"""Scheduled shares are multiples of one over this."""


def _order(part: MixturePart, seed: int) -> Shuffled | Adaptive:
    """Chooses the next task of one source."""
    key = f"{seed}/{part.name}"
    if part.difficulty is None and part.curriculum is None:
        return Shuffled(len(part.tasks), key)
    return Adaptive(part.tasks, key, difficulty=part.difficulty, curriculum=part.curriculum)


_DECAY = 0.5
"""Weight of the old pass rate when a new one is observed: rates change as the policy learns."""


class Shuffled:
    """Random permutations of all tasks, one after the other, regardless of rewards."""

    def __init__(self, num_tasks: int, key: str) -> None:
        self.drawn: int = 0
        """Draws so far."""
        self._num_tasks, self._key = num_tasks, key
        self._epoch: int = -1
        self._order: np.ndarray[Any, Any] = np.zeros(0, np.int64)

    def draw(self) -> tuple[int, int]:
        """Index of the next task, and the number of its earlier draws."""
        epoch, position = divmod(self.drawn, self._num_tasks)
        if epoch != self._epoch:
            self._order = _generator(f"{self._key}/{epoch}").permutation(self._num_tasks)
            self._epoch = epoch
        self.drawn += 1
        return int(self._order[position]), epoch

    def observe(self, index: int, rewards: Sequence[float]) -> None: ...

    def exclude(self, index: int) -> None: ...

    def state(self) -> dict[str, Any]:
        return {"drawn": self.drawn}

    def restore(self, state: dict[str, Any]) -> None:
        self.drawn = int(state["drawn"])


class Adaptive:
    """Random draws among the reachable tasks, weighted by pass rate, or from the least drawn tasks.

    A task that was never drawn has the weight of the target. A task that was drawn and not yet observed has weight 0,
    so that it is not drawn twice at once; exploration can still draw it.
    """

    def __init__(
        self, tasks: Sequence[Task], key: str, *, difficulty: Difficulty | None, curriculum: Curriculum | None
    ) -> None:
        self.drawn: int = 0
        self._key, self._difficulty, self._curriculum = key, difficulty, curriculum
        # All arrays below are sorted from easy to hard, so that the reachable tasks are a prefix.
        self._indices = np.arange(len(tasks)) if curriculum is None else _easiest_first(tasks, curriculum.by)
        self._positions = np.argsort(self._indices)
        self._counts: np.ndarray[Any, Any] = np.zeros(len(tasks), np.int32)
        self._rates: np.ndarray[Any, Any] = np.full(len(tasks), np.nan, np.float32)
        self._weights: np.ndarray[Any, Any] = np.ones(len(tasks))
        self._excluded: set[int] = set()
        """Positions of tasks with weight 0, whatever their pass rate."""

    def draw(self) -> tuple[int, int]:
        size = self._num_reachable()
        random = _generator(f"{self._key}/draw/{self.drawn}")
        explores, draw = random.random(), random.random()
        weights = self._weights[:size]
        exploring = self._difficulty is None or explores < self._difficulty.exploration
        if exploring or not weights.any():
            counts = self._counts[:size]
            weights = counts == counts.min()
        bounds: np.ndarray[Any, Any] = np.cumsum(weights)
        position = int(np.searchsorted(bounds, draw * float(bounds[-1]), side="right"))
        position = min(position, size - 1)  # the product may round up to the last bound
        attempt = int(self._counts[position])
        self._counts[position] += 1
        self._update_weight(position)
        self.drawn += 1
        return int(self._indices[position]), attempt

    def observe(self, index: int, rewards: Sequence[float]) -> None:
        """Update the task's pass rate by the mean of the rewards, each clipped to [0, 1]."""
        position = int(self._positions[index])
        new = sum(min(max(reward, 0.0), 1.0) for reward in rewards) / len(rewards)
        old: float = self._rates[position].item()
        self._rates[position] = new if math.isnan(old) else _DECAY * old + (1 - _DECAY) * new
        self._update_weight(position)

    def exclude(self, index: int) -> None:
        """Give a task the weight 0; exploration can still draw it."""
        position = int(self._positions[index])
        self._excluded.add(position)
        self._weights[position] = 0.0

    def state(self) -> dict[str, Any]:
        return {"drawn": self.drawn, "counts": _to_text(self._counts), "rates": _to_text(self._rates)}

    def restore(self, state: dict[str, Any]) -> None:
        if "counts" not in state:
            raise ConfigError(
                "tasks: the checkpoint has no task_sampling and no curriculum; resume with the same settings"
            )
        self.drawn = int(state["drawn"])
        self._counts = _from_text(state["counts"], np.int32)
        self._rates = _from_text(state["rates"], np.float32)
        self._weights[:] = 1.0
        for position in np.flatnonzero(self._counts):
            self._update_weight(int(position))

    def _num_reachable(self) -> int:
        size = len(self._counts)
        if self._curriculum is None or self.drawn >= self._curriculum.steps:
            return size
        return max(1, math.ceil(size * (self.drawn + 1) / self._curriculum.steps))

    def _update_weight(self, position: int) -> None:
        """Weight of a drawn task: 1 at the target, 0 at the pass rate furthest from it, and 0 before an observation."""
        if self._difficulty is None:
            return
        target, rate = self._difficulty.target, float(self._rates[position])
        near = 1 - abs(rate - target) / max(target, 1 - target)
        drawable = not math.isnan(rate) and position not in self._excluded
        self._weights[position] = max(near, 0.0) if drawable else 0.0


def _easiest_first(tasks: Sequence[Task], by: str) -> np.ndarray[Any, Any]:
    levels: list[float] = []
    for task in tasks:
        value = task.metadata.get(by)
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            has = ", ".join(task.metadata) or "nothing"
            raise ConfigError(
                f"task {task.id!r} of {task.domain}: {by!r} is not a number (got {value!r}; it has {has}); "
                "choose another field in tasks.curriculum.by"
            )
        levels.append(value)
    return np.argsort(np.array(levels, np.float64), kind="stable")


def _generator(key: str) -> np.random.Generator:
    digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "big")))


def _to_text(row: np.ndarray[Any, Any]) -> str:
    """The array in base64: a list of numbers would make checkpoints slow and large."""
    return base64.b64encode(row.tobytes()).decode()


def _from_text(text: str, kind: Any) -> np.ndarray[Any, Any]:
    return np.frombuffer(base64.b64decode(text), kind).copy()
