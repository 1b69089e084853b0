"""The order in which the tasks of one source come: all of them shuffled, or drawn by what was seen of them.

Every draw is a function of the seed, the source's name, how many draws went before, and what was observed meanwhile.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from roll.errors import ConfigError
from roll.types import Task

_MEMORY = 0.5
"""What a pass rate keeps of its old value when a new one is observed: a policy that learns outgrows old ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difficulty:
    """Draw tasks near a pass rate of `target` more often; `exploration` of the draws go to those drawn least often."""

    target: float = 0.5
    exploration: float = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Curriculum:
    """Draw easy tasks first, by the number in the metadata field `by`; after `steps` draws all can be drawn."""

    by: str
    steps: int


class Order(Protocol):
    """Chooses the next task of one source by its index."""

    drawn: int
    """Draws so far."""

    def draw(self) -> tuple[int, int]:
        """The index of the next task, and how often it was drawn before."""
        ...

    def observe(self, index: int, rewards: Sequence[float]) -> None:
        """A group of attempts at this task has ended with these rewards."""
        ...

    def state(self) -> dict[str, Any]:
        """All that `restore` needs; JSON can hold it."""
        ...

    def restore(self, state: dict[str, Any]) -> None: ...


class Shuffled:
    """All tasks in random order, then all again in another; what is observed changes nothing."""

    def __init__(self, num_tasks: int, key: str) -> None:
        self.drawn: int = 0
        self._num_tasks, self._key = num_tasks, key
        self._epoch: int = -1
        self._order: np.ndarray[Any, Any] = np.zeros(0, np.int64)

    def draw(self) -> tuple[int, int]:
        epoch, position = divmod(self.drawn, self._num_tasks)
        if epoch != self._epoch:
            self._order = _generator(f"{self._key}/{epoch}").permutation(self._num_tasks)
            self._epoch = epoch
        self.drawn += 1
        return int(self._order[position]), epoch

    def observe(self, index: int, rewards: Sequence[float]) -> None: ...

    def state(self) -> dict[str, Any]:
        return {"drawn": self.drawn}

    def restore(self, state: dict[str, Any]) -> None:
        self.drawn = int(state["drawn"])


class Observed:
    """Tasks drawn at random from those that can be drawn, by their pass rate or else those drawn least often first.

    A task that was never drawn weighs as one at the target. One that was drawn and of which nothing was heard yet
    weighs nothing, so that it does not come twice at once; exploration reaches it all the same.
    """

    def __init__(
        self, tasks: Sequence[Task], key: str, *, difficulty: Difficulty | None, curriculum: Curriculum | None
    ) -> None:
        self.drawn: int = 0
        self._key, self._difficulty, self._curriculum = key, difficulty, curriculum
        # Everything below is kept from easy to hard, so that what can be drawn is the head of each row.
        self._indices = np.arange(len(tasks)) if curriculum is None else _easiest_first(tasks, curriculum.by)
        self._places = np.argsort(self._indices)
        self._counts: np.ndarray[Any, Any] = np.zeros(len(tasks), np.int32)
        self._rates: np.ndarray[Any, Any] = np.full(len(tasks), np.nan, np.float32)
        self._weights: np.ndarray[Any, Any] = np.ones(len(tasks))

    def draw(self) -> tuple[int, int]:
        size = self._num_reachable()
        random = _generator(f"{self._key}/draw/{self.drawn}")
        explores, where = random.random(), random.random()
        weights = self._weights[:size]
        explored = self._difficulty is None or explores < self._difficulty.exploration
        if explored or not weights.any():
            counts = self._counts[:size]
            weights = counts == counts.min()
        bounds: np.ndarray[Any, Any] = np.cumsum(weights)
        place = int(np.searchsorted(bounds, where * float(bounds[-1]), side="right"))
        place = min(place, size - 1)  # a product may be rounded up to the last bound
        attempt = int(self._counts[place])
        self._counts[place] += 1
        self._weigh(place)
        self.drawn += 1
        return int(self._indices[place]), attempt

    def observe(self, index: int, rewards: Sequence[float]) -> None:
        """Move the task's pass rate: the mean of the rewards, each bounded to 0 to 1."""
        place = int(self._places[index])
        new = sum(min(max(reward, 0.0), 1.0) for reward in rewards) / len(rewards)
        old: float = self._rates[place].item()
        self._rates[place] = new if math.isnan(old) else _MEMORY * old + (1 - _MEMORY) * new
        self._weigh(place)

    def state(self) -> dict[str, Any]:
        return {"drawn": self.drawn, "counts": _packed(self._counts), "rates": _packed(self._rates)}

    def restore(self, state: dict[str, Any]) -> None:
        if "counts" not in state:
            raise ConfigError(
                "tasks: the checkpoint's were drawn without difficulty or curriculum; resume with the same sampling"
            )
        self.drawn = int(state["drawn"])
        self._counts = _unpacked(state["counts"], np.int32)
        self._rates = _unpacked(state["rates"], np.float32)
        self._weights[:] = 1.0
        for place in np.flatnonzero(self._counts):
            self._weigh(int(place))

    def _num_reachable(self) -> int:
        size = len(self._counts)
        if self._curriculum is None or self.drawn >= self._curriculum.steps:
            return size
        return max(1, math.ceil(size * (self.drawn + 1) / self._curriculum.steps))

    def _weigh(self, place: int) -> None:
        """From 1 at the target down to 0 at the pass rate furthest from it; 0 too while nothing was heard."""
        if self._difficulty is None:
            return
        target, rate = self._difficulty.target, float(self._rates[place])
        near = 1 - abs(rate - target) / max(target, 1 - target)
        self._weights[place] = 0.0 if math.isnan(rate) else max(near, 0.0)


def _easiest_first(tasks: Sequence[Task], by: str) -> np.ndarray[Any, Any]:
    found: list[float] = []
    for task in tasks:
        value = task.metadata.get(by)
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            has = ", ".join(task.metadata) or "nothing"
            raise ConfigError(
                f"task {task.id!r} of {task.domain}: {by!r} is not a number (got {value!r}; it has {has}); "
                "choose another field in tasks.curriculum.by"
            )
        found.append(value)
    return np.argsort(np.array(found, np.float64), kind="stable")


def _generator(key: str) -> np.random.Generator:
    digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "big")))


def _packed(row: np.ndarray[Any, Any]) -> str:
    """As text: numbers one by one would make a checkpoint slow and large."""
    return base64.b64encode(row.tobytes()).decode()


def _unpacked(text: str, kind: Any) -> np.ndarray[Any, Any]:
    return np.frombuffer(base64.b64decode(text), kind).copy()
