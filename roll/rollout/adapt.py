"""The controller of the asynchronous ratio, which moves staleness and redundancy by who waits for whom."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal, TypeAlias

from roll.journal.events import AsyncRatioChanged, Event, RolledBack

Knob: TypeAlias = Literal["max_staleness", "redundant_groups"]

_EVIDENCE = 4
"""Steps that a decision is based on."""
_WAITING = 0.05
"""Fraction of the time above which trainer or generators count as waiting."""
_MIN_GAIN = 0.03
"""Least reduction of the step time for which a higher value is kept."""
_COOL_DOWN = 3
"""Decisions for which a move that brought nothing is not tried again; doubled each time."""
_MAX_COOL_DOWN = 24
_SHIFT = 1.25
"""Factor between step times at one ratio that shows another workload, for which all moves are open again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncRatio:
    """How far generation may run ahead of training."""

    max_staleness: float
    redundant_groups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioBounds:
    """Lowest and highest value of each knob."""

    max_staleness: tuple[float, float]
    redundant_groups: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWaits:
    """How long one step took, and who waited."""

    seconds: float
    trainer_s: float
    """The trainer waited for groups."""
    generators_s: float
    """Mean over the generators of the time without any request."""
    num_lost: int = 0
    """Groups that became too old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioChange:
    """A decision with its reason."""

    ratio: AsyncRatio
    reason: str


@dataclass(frozen=True, slots=True)
class _RatioMove:
    """A step up or down of one knob."""

    knob: Knob
    up: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _RatioTrial:
    """A move that is not yet judged."""

    move: _RatioMove
    before: AsyncRatio
    seconds: float
    """Mean time of the steps before it."""


class RatioController:
    """Hill climbing with hysteresis: a move rests on several steps, must bring a gain, and is taken back otherwise.

    Where the trainer waits, values rise: staleness first if generators are idle, redundancy first to fall if they are
    busy and groups are lost. Where the trainer does not wait, values fall, since fresher tokens and fewer lost groups
    cost nothing then.
    """

    def __init__(self, bounds: RatioBounds, ratio: AsyncRatio) -> None:
        self.ratio = ratio
        self._bounds = bounds
        self._steps: list[StepWaits] = []
        self._settling = 0
        self._trial: _RatioTrial | None = None
        self._blocked: dict[_RatioMove, int] = {}
        """By move, the decisions for which it is not tried."""
        self._failures: dict[_RatioMove, int] = {}
        self._levels: dict[AsyncRatio, float] = {}
        """Step time when each ratio was last decided on."""

    def observe(self, step: StepWaits) -> RatioChange | None:
        """Take a finished step into account; a change, if it is time for one."""
        if self._settling > 0:  # groups of the time before a change are still in flight
            self._settling -= 1
            return None
        self._steps.append(step)
        if len(self._steps) < _EVIDENCE:
            return None
        steps, self._steps = self._steps, []
        seconds = fmean(each.seconds for each in steps)
        change = self._judge(steps, seconds)
        self._note_level(seconds)
        if change is None:
            change = self._propose(steps, seconds)
        if change is not None:
            self._settling = math.ceil(max(change.ratio.max_staleness, self.ratio.max_staleness)) + 1
            self.ratio = change.ratio
        return change

    def _judge(self, steps: Sequence[StepWaits], seconds: float) -> RatioChange | None:
        """Take the last move back unless it has proved itself."""
        trial, self._trial = self._trial, None
        if trial is None:
            return None
        gain = 1 - seconds / trial.seconds
        waits = _share(steps, "trainer_s") > _WAITING
        if gain >= _MIN_GAIN if trial.move.up else (not waits or gain > -_MIN_GAIN):
            self._failures.pop(trial.move, None)
            return None
        number = self._failures[trial.move] = self._failures.get(trial.move, 0) + 1
        self._blocked[trial.move] = min(_COOL_DOWN * 2 ** (number - 1), _MAX_COOL_DOWN)
        reason = (
            f"{trial.move.knob} back to {getattr(trial.before, trial.move.knob):g}: steps took {seconds:.3g} s with "
            f"{getattr(self.ratio, trial.move.knob):g} and {trial.seconds:.3g} s before"
        )
        return RatioChange(ratio=trial.before, reason=reason)

    def _note_level(self, seconds: float) -> None:
        if not 1 / _SHIFT < seconds / self._levels.get(self.ratio, seconds) < _SHIFT:
            self._blocked.clear()
            self._failures.clear()
            self._levels.clear()
        self._levels[self.ratio] = seconds
        self._blocked = {move: number - 1 for move, number in self._blocked.items() if number > 0}

    def _propose(self, steps: Sequence[StepWaits], seconds: float) -> RatioChange | None:
        """The first move that the waits call for and that is not blocked."""
        trainer, generators = _share(steps, "trainer_s"), _share(steps, "generators_s")
        waits = f"the trainer waited {100 * trainer:.0f} % of the last {len(steps)} steps, generators were idle "
        waits += f"{100 * generators:.0f} %"
        more, less = _RatioMove("max_staleness", True), _RatioMove("redundant_groups", False)
        if trainer <= _WAITING:
            moves = [less, _RatioMove("max_staleness", False)]
        elif generators > _WAITING or not any(step.num_lost for step in steps):
            moves = [more, _RatioMove("redundant_groups", True)]
        else:
            moves = [less, more, _RatioMove("redundant_groups", True)]
        for move in moves:
            ratio = self._moved(move)
            if ratio != self.ratio and not self._blocked.get(move):
                self._trial = _RatioTrial(move=move, before=self.ratio, seconds=seconds)
                values = f"{getattr(self.ratio, move.knob):g} to {getattr(ratio, move.knob):g}"
                return RatioChange(ratio=ratio, reason=f"{move.knob} from {values}: {waits}")
        return None

    def _moved(self, move: _RatioMove) -> AsyncRatio:
        """The ratio after this move, within the bounds."""
        sign = 1 if move.up else -1
        if move.knob == "max_staleness":
            low, high = self._bounds.max_staleness
            return replace(self.ratio, max_staleness=min(max(self.ratio.max_staleness + sign, low), high))
        fewest, most = self._bounds.redundant_groups
        stride = max(1, (most - fewest) // 4)
        return replace(self.ratio, redundant_groups=min(max(self.ratio.redundant_groups + sign * stride, fewest), most))


def last_ratio(events: Iterable[Event], initial: AsyncRatio, to_step: int) -> AsyncRatio:
    """The ratio after this step; `events` are those of the journal, in order."""
    changes: list[AsyncRatioChanged] = []
    for event in events:
        match event:
            case AsyncRatioChanged():
                changes.append(event)
            case RolledBack(to_step=step):
                changes = [change for change in changes if change.step <= step]
            case _:
                pass
    valid = [change for change in changes if change.step <= to_step]
    if not valid:
        return initial
    return AsyncRatio(max_staleness=valid[-1].max_staleness, redundant_groups=valid[-1].redundant_groups)


def _share(steps: Sequence[StepWaits], name: Literal["trainer_s", "generators_s"]) -> float:
    return sum(getattr(step, name) for step in steps) / max(sum(step.seconds for step in steps), 1e-9)
