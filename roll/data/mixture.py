"""Which task comes next: several sources by share, each in an order of its own.

The sequence is a pure function of the seed, the sources and what was observed, so its state is small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from roll.data.orders import Curriculum, Difficulty, Observed, Order, Shuffled
from roll.errors import ConfigError, RunStopped
from roll.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One task, drawn."""

    task: Task
    source: str
    """The name of the source it came from."""
    attempt: int
    """How often this task was drawn before."""
    index: int
    """Where it stands in its source."""
    returned: int = 0
    """How often attempts at it came too late, so that it was given back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One source of a mixture."""

    name: str
    tasks: Sequence[Task]
    share: float = 1.0
    """Relative to the other parts."""
    difficulty: Difficulty | None = None
    curriculum: Curriculum | None = None
    """Without either, the tasks are shuffled anew every time they are through."""


class Mixture:
    """An endless sequence of tasks from several sources.

    After any number of draws every source has had its share of them to within one, those forgone apart. No task of a
    shuffled source is drawn again before all of its others were.
    """

    def __init__(self, parts: Sequence[Part], *, seed: int) -> None:
        assert parts and all(part.tasks and part.share > 0 for part in parts), "every source needs tasks and a share"
        total = sum(Fraction(str(part.share)) for part in parts)  # by decimals: 0.1 is a tenth, and nothing drifts
        self._parts = tuple(parts)
        self._shares = [Fraction(str(part.share)) / total for part in parts]
        self._orders = [_order(part, seed) for part in parts]
        self._place = {part.name: place for place, part in enumerate(parts)}
        self._forgone = [0] * len(parts)

    def draw(self) -> Draw:
        """The next task."""
        chosen = self._next_part()
        part = self._parts[chosen]
        index, attempt = self._orders[chosen].draw()
        try:
            task = part.tasks[index]
        except (IndexError, StopIteration) as error:
            raise RunStopped(
                f"tasks: source {part.name!r} ended early: it said it has {len(part.tasks)} tasks and has no number "
                f"{index}; mend the data, then `roll resume` the run"
            ) from error
        return Draw(task=task, source=part.name, attempt=attempt, index=index)

    def forgo(self, draw: Draw) -> None:
        """This draw comes to nothing: its source is owed another, so that shares hold over what is trained."""
        self._forgone[self._place[draw.source]] += 1

    def recall(self, source: str, *, index: int, attempt: int, returned: int) -> Draw:
        """A draw that was made before."""
        part = self._parts[self._place[source]]
        return Draw(task=part.tasks[index], source=source, attempt=attempt, index=index, returned=returned)

    def observe(self, draw: Draw, rewards: Sequence[float]) -> None:
        """The group of this draw has ended with these rewards, whatever becomes of it; failed attempts have none."""
        if rewards:
            self._orders[self._place[draw.source]].observe(draw.index, rewards)

    def state(self) -> dict[str, Any]:
        """Where the sequence stands, for `restore`; JSON can hold it."""
        return {
            part.name: {**order.state(), "tasks": len(part.tasks), "forgone": forgone}
            for part, order, forgone in zip(self._parts, self._orders, self._forgone, strict=True)
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where the mixture that gave `state` stood; it must have had the same sources."""
        ours = {part.name: len(part.tasks) for part in self._parts}
        theirs = {name: entry["tasks"] for name, entry in state.items()}
        if ours != theirs:
            raise ConfigError(
                f"tasks: not those of the checkpoint (got {ours}, it had {theirs}); resume with the same data"
            )
        for part, order in zip(self._parts, self._orders, strict=True):
            order.restore(state[part.name])
        self._forgone = [int(state[part.name]["forgone"]) for part in self._parts]

    def _next_part(self) -> int:
        """Of the sources that are behind their share, the one whose next draw is due first.

        Drawing the one that is furthest behind instead strays by more than one where shares are very unequal.
        """
        if len(self._parts) == 1:
            return 0
        drawn = [order.drawn - forgone for order, forgone in zip(self._orders, self._forgone, strict=True)]
        num_draws = sum(drawn) + 1
        behind = [i for i, share in enumerate(self._shares) if drawn[i] < share * num_draws]
        return min(behind, key=lambda i: (drawn[i] + 1) / self._shares[i])


def _order(part: Part, seed: int) -> Order:
    key = f"{seed}/{part.name}"
    if part.difficulty is None and part.curriculum is None:
        return Shuffled(len(part.tasks), key)
    return Observed(part.tasks, key, difficulty=part.difficulty, curriculum=part.curriculum)
