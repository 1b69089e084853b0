"""The border to reward code: a function or an object of the user's becomes a number to train on, or a reason.

A reward is a function `score(task, reply, **options)`, or a class made as `Reward(**options)` with a method
`score(task, reply)` and, if it likes, `async start()` before the first score and `async stop()` after the last. What
it returns is a number or a `Score`; it may be `async`.

| what reward code does | what becomes of it |
|---|---|
| its name or its options do not fit, its import or `__init__` raises | `ConfigError`: no task could be scored |
| `start` raises | failed, infrastructure: what it reaches for is not there; the next score tries again |
| `score` raises `ConfigError` | failed, the task's fault: it cannot be judged as it stands |
| `score` raises another `RollError` | failed, infrastructure: a sandbox, a service, a judge |
| `score` raises anything else, or returns no number | failed, the reward's fault, with the line that raised |

A `ConfigError` out of `score` costs one attempt and not the run: as a rule it is about one task (no answer, broken
tests), and one bad row among thousands should not end a night's work. One that is about all of them soon ends it all
the same: too many groups in a row fail.
"""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeGuard, cast

import numpy as np

from roll.errors import ConfigError, RollError, described, one_line, source_of
from roll.registry import REWARDS
from roll.rewards.outcome import Fault, Outcome, Unscored
from roll.types import Call, Score, Task

LARGEST = 1e6
"""Most that a score or a part may be away from 0: far above any meant, and far below what spoils sums in fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """A reward that can be asked."""

    name: str
    ask: Callable[..., Any]
    arguments: Mapping[str, Any]
    instance: Any = None
    """What has the lifecycle; None for a function."""

    @classmethod
    def made(cls, reward: Call) -> Reward:
        """The reward of that name with its options; raises `ConfigError` if there can be none."""
        place = f"reward {reward.name!r}"
        try:
            found: Any = REWARDS[reward.name]
            if not inspect.isclass(found):
                return cls(name=reward.name, ask=_callable(found, place), arguments=reward.arguments)
            instance = found(**reward.arguments)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"{place}: cannot be made: {described(error)}; mend it or its options") from error
        return cls(
            name=reward.name, ask=_callable(getattr(instance, "score", None), place), arguments={}, instance=instance
        )

    async def start(self) -> Outcome | None:
        """Let it begin, if it has a beginning; None, or why it could not."""
        try:
            await _settled(getattr(self.instance, "start", _nothing)())
        except ConfigError:
            raise
        except Unscored as error:
            return Outcome.failed(error.fault, str(error))
        except Exception as error:  # noqa: BLE001 - the border: whatever it is becomes a reason
            reason = f"reward {self.name!r}: could not start: {described(error, self._source)}; see what it needs"
            return Outcome.failed(Fault.INFRASTRUCTURE, reason)
        return None

    async def stop(self) -> None:
        """Let it end, if it has an end."""
        await _settled(getattr(self.instance, "stop", _nothing)())

    async def score(self, task: Task, reply: str) -> Outcome:
        """What it thinks of `reply`. It runs in the caller's thread, so a breakpoint inside it works."""
        try:
            found = self.ask(task, reply, **self.arguments)
            if type(found) is not Score and inspect.isawaitable(found):
                found = await found
        except Unscored as error:
            return Outcome.failed(error.fault, str(error))
        except ConfigError as error:
            return Outcome.failed(Fault.TASK, f"{self._place(task)}: {one_line(str(error))}")
        except RollError as error:
            return Outcome.failed(Fault.INFRASTRUCTURE, f"{self._place(task)}: {one_line(str(error))}")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the border: whatever it is becomes a reason
            return Outcome.failed(
                Fault.REWARD, f"{self._place(task)}: {described(error, self._source)}; mend the reward"
            )
        if _plain_score(found):
            return Outcome.of(found)
        wrong = _wrong(found)
        if wrong:
            return Outcome.failed(Fault.REWARD, f"{self._place(task)}: {wrong}")
        return Outcome.of(_plain(found))

    def _place(self, task: Task) -> str:
        return f"reward {self.name!r} on task {task.id!r}"

    @property
    def _source(self) -> str | None:
        return source_of(self.ask if self.instance is None else type(self.instance))


async def call(reward: Call, task: Task, reply: str) -> Outcome:
    """What the named reward thinks of one reply; one with a lifecycle is made, started and stopped for it alone."""
    made = Reward.made(reward)
    unready = await made.start()
    if unready is not None:
        return unready
    try:
        return await made.score(task, reply)
    finally:
        await made.stop()


def _callable(found: Any, place: str) -> Callable[..., Any]:
    if not callable(found):
        what = "has no method `score`" if found is None else f"is no function (got {reprlib.repr(found)})"
        raise ConfigError(f"{place}: {what}; name a function, or a class with a method `score`")
    return found


async def _settled(found: Any) -> Any:
    return await found if inspect.isawaitable(found) else found


def _nothing() -> None:
    """Stands for a `start` or a `stop` that a reward does not have."""


def _plain_score(found: Any) -> TypeGuard[Score]:
    """Whether a look at the types is enough, as it is for most scores."""
    return type(found) is Score and type(found.value) is float and found.parts == {} and abs(found.value) <= LARGEST


def _wrong(found: Any) -> str:
    """Why what a reward returned cannot be trained on, if so."""
    if not isinstance(found, Score):
        if _number(found):
            return _out_of_bounds("value", found)
        return f"not a number (got {reprlib.repr(found)}); return a float or a Score"
    parts: Any = found.parts
    if not isinstance(parts, dict) or not all(isinstance(name, str) for name in cast(dict[Any, Any], parts)):
        return f"parts are not numbers by name (got {reprlib.repr(found.parts)}); give Score a dict"
    if wrong := _not_a_part("value", found.value):
        return wrong
    wrongs = (_not_a_part(f"part {name!r}", value) for name, value in found.parts.items())
    return next((wrong for wrong in wrongs if wrong), "")


def _not_a_part(name: str, value: Any) -> str:
    if _number(value):
        return _out_of_bounds(name, value)
    return f"{name} is not a number (got {reprlib.repr(value)}); give Score floats"


def _number(found: Any) -> TypeGuard[Real]:
    return type(found) is float or isinstance(found, Real | np.bool_)


def _out_of_bounds(name: str, value: Any) -> str:
    if abs(value.item() if hasattr(value, "item") else value) <= LARGEST:  # the bound does not fit numpy's halves
        return ""
    got = reprlib.repr(value)
    return f"{name} is not finite and at most {LARGEST:g} (got {got}); return such a number or raise"


def _plain(found: Any) -> Score:
    if isinstance(found, Score):
        return Score(float(found.value), {name: float(value) for name, value in found.parts.items()})
    return Score(float(found))
