"""Rewards in this process: the adapter around reward code, and the service through which episodes use it.

A reward is a function `score(task, response, **options)`, or a class `Reward(**options)` with a method
`score(task, response)` and, optionally, `start()` before the first score and `stop()` after the last. `score` returns a
number or a `Score`. All three may be `async`. Task and response are passed by position.

| reward code | result |
|---|---|
| unknown name or options, or the import or `__init__` raises | `ConfigError`: no task could be scored |
| `start` raises | failed, infrastructure: a dependency is missing; the next score tries again |
| `stop` raises | a notice: all scores are given by then |
| `score` raises `ConfigError` | failed, task: it cannot be scored as it is |
| `score` raises another `RollError` | failed, infrastructure: a sandbox, a service, a judge |
| `score` raises anything else, or returns no number | failed, reward, with the line that raised |

A `ConfigError` from `score` costs one attempt, not the run: usually one task is at fault (no answer, broken tests), and
one bad row among thousands should not end a long run. An error that affects every task still ends the run soon, because
too many groups in a row fail.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol, TypeGuard, cast

import numpy as np

from roll.errors import ConfigError, RewardFailed, RollError, describe_error, one_line, source_of
from roll.journal.store import Journal
from roll.planted import fail_if_planted
from roll.registry import REWARDS
from roll.rewards.result import RewardFault, RewardResult, Unscored
from roll.types import Score, Span, Spec, Task

LARGEST = 1e6
"""Largest magnitude of a score or a part: far above any sensible reward, far below what spoils fp32 sums."""

MAX_COMMENT = 4000
"""Characters of a comment that are kept with its score; the rest is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardAdapter:
    """A resolved reward: user code that returns `RewardResult`s and never raises from `score`."""

    name: str
    function: Callable[..., Any]
    options: Mapping[str, Any]
    instance: Any = None
    """The object with a lifecycle; None for a function."""

    @classmethod
    def load(cls, reward: Spec) -> RewardAdapter:
        """Import the reward and, for a class, construct it; raises `ConfigError` where that is not possible."""
        where = f"reward {reward.name!r}"
        try:
            target: Any = REWARDS[reward.name]
            if not inspect.isclass(target):
                return cls(name=reward.name, function=_check_callable(target, where), options=reward.kwargs)
            instance = target(**reward.kwargs)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"{where}: cannot be made: {describe_error(error)}; fix it or its options") from error
        function = _check_callable(getattr(instance, "score", None), where)
        return cls(name=reward.name, function=function, options={}, instance=instance)

    async def start(self) -> RewardResult | None:
        """Call the reward's `start`, if it has one; None, or the failure."""
        try:
            await self._call_hook("start")
        except ConfigError:
            raise
        except Unscored as error:
            return RewardResult.failure(error.fault, str(error))
        except Exception as error:  # noqa: BLE001 - the border: any error becomes a reason
            reason = f"reward {self.name!r}: could not start: {describe_error(error, self._source)}; see what it needs"
            return RewardResult.failure(RewardFault.INFRASTRUCTURE, reason)
        return None

    async def stop(self) -> None:
        """Call the reward's `stop`, if it has one; raises `RewardFailed` where that fails."""
        try:
            await self._call_hook("stop")
        except RewardFailed:
            raise
        except (Exception, SystemExit) as error:
            what = describe_error(error, self._source)
            raise RewardFailed(f"reward {self.name!r}: stop failed: {what}; its scores are complete") from error

    async def score(self, task: Task, response: str) -> RewardResult:
        """The reward of `response`. The code runs in the caller's thread, so a breakpoint inside it works."""
        try:
            fail_if_planted("score")
            value = self.function(task, response, **self.options)
            if type(value) is not Score and inspect.isawaitable(value):
                value = await value
        except Unscored as error:
            return RewardResult.failure(error.fault, str(error))
        except ConfigError as error:
            return RewardResult.failure(RewardFault.TASK, f"{self._where(task)}: {one_line(str(error))}")
        except RollError as error:
            return RewardResult.failure(RewardFault.INFRASTRUCTURE, f"{self._where(task)}: {one_line(str(error))}")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the border: any error becomes a reason
            reason = f"{self._where(task)}: {describe_error(error, self._source)}; fix the reward"
            return RewardResult.failure(RewardFault.REWARD, reason)
        if _plain_score(value):
            return RewardResult.from_score(value)
        try:
            return RewardResult.from_score(_to_score(value, response))
        except ValueError as problem:
            return RewardResult.failure(RewardFault.REWARD, f"{self._where(task)}: {problem}")

    def _where(self, task: Task) -> str:
        return f"reward {self.name!r} on task {task.id!r}"

    async def _call_hook(self, name: str) -> None:
        hook = getattr(self.instance, name, None)
        value = None if hook is None else hook()
        if inspect.isawaitable(value):
            await value

    @property
    def _source(self) -> str | None:
        return source_of(self.function if self.instance is None else type(self.instance))


def module_functions(reward: Spec, name: str) -> list[Callable[..., Any]]:
    """The functions of this name in the modules of a reward, or of each reward of a list, with its options."""
    functions: list[Callable[..., Any]] = []
    for section in reward.kwargs.get("rewards") or [{"kind": reward.name, **reward.kwargs}]:
        options = {key: value for key, value in section.items() if key not in ("kind", "weight", "name")}
        kind = str(section["kind"])
        _: Any = REWARDS[kind]  # raises `ConfigError` if it cannot be imported
        function = getattr(importlib.import_module(REWARDS.locate(kind)[0]), name, None)
        if function is not None:
            functions.append(functools.partial(function, **options))
    return functions


def task_faults(reward: Spec, tasks: Iterable[Task]) -> Iterator[str]:
    """Rows that no response could score on, by `check_task(task, **options)` of the reward's module, if it has one."""
    checks = module_functions(reward, "check_task")
    for number, task in enumerate(tasks if checks else (), start=1):
        for check in checks:
            try:
                check(task)
            except ConfigError as error:
                yield f"row {number}: {error}"


async def score_once(reward: Spec, task: Task, response: str) -> RewardResult:
    """The named reward of one response; a reward with a lifecycle is constructed, started and stopped for it alone."""
    adapter = RewardAdapter.load(reward)
    failure = await adapter.start()
    if failure is not None:
        return failure
    try:
        return await adapter.score(task, response)
    finally:
        await adapter.stop()


def _check_callable(target: Any, where: str) -> Callable[..., Any]:
    if not callable(target):
        what = "has no method `score`" if target is None else f"is no function (got {reprlib.repr(target)})"
        raise ConfigError(f"{where}: {what}; name a function, or a class with a method `score`")
    return target


def _plain_score(value: Any) -> TypeGuard[Score]:
    """Whether the types alone show a valid score, as for most scores."""
    plain = type(value) is Score and type(value.value) is float and abs(value.value) <= LARGEST
    return plain and value.parts == {} and value.comment == "" and value.spans == ()


def _to_score(value: Any, response: str) -> Score:
    """A value returned for a response as a score; ValueError if it cannot be trained on."""
    if not isinstance(value, Score):
        if not _is_number(value):
            raise ValueError(f"not a number (got {reprlib.repr(value)}); return a float or a Score")
        return Score(_to_float(value, "value"))
    parts: Any = value.parts
    if not isinstance(parts, dict) or not all(isinstance(name, str) for name in cast(dict[Any, Any], parts)):
        raise ValueError(f"parts are not numbers by name (got {reprlib.repr(value.parts)}); give Score a dict")
    total = _to_float(value.value, "value")
    numbers = {name: _to_float(part, f"part {name!r}") for name, part in value.parts.items()}
    return Score(total, numbers, cut_comment(value.comment), _to_spans(value.spans, len(response)))


def cut_comment(comment: Any, max_chars: int = MAX_COMMENT) -> str:
    """The comment as storable text of at most `max_chars`, with the length of the whole where it is cut."""
    if not isinstance(comment, str):
        raise ValueError(f"comment is not text (got {reprlib.repr(comment)}); give Score a str")
    text = comment.strip()
    if len(text) > max_chars:
        note = f" [cut: {len(text)} characters]"
        text = text[: max(max_chars - len(note), 0)] + note
    return text.encode("utf-8", "replace").decode()  # half of a surrogate pair cannot be stored


def _to_spans(spans: Any, size: int) -> tuple[Span, ...]:
    """The spans of a response with `size` characters; ValueError if one is outside of it."""
    if not isinstance(spans, tuple | list):
        raise ValueError(f"spans are not a tuple (got {reprlib.repr(spans)}); give Score (start, end, value) tuples")
    return tuple(_to_span(span, size) for span in cast(Sequence[Any], spans))


def _to_span(span: Any, size: int) -> Span:
    fields = cast(Sequence[Any], span) if isinstance(span, tuple | list) else ()
    if len(fields) != 3:
        raise ValueError(f"a span is not (start, end, value) (got {reprlib.repr(cast(object, span))}); give all three")
    start, end, value = fields
    if not (_is_index(start) and _is_index(end) and 0 <= start < end <= size):
        raise ValueError(
            f"a span is not within the response (got {start!r} to {end!r} of {size} characters); "
            "give 0 <= start < end <= len(response)"
        )
    return Span(int(start), int(end), _to_float(value, f"the value of span {start} to {end}"))


def _is_index(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return type(value) is float or isinstance(value, Real | np.bool_)


def _to_float(value: Any, name: str) -> float:
    if not _is_number(value):
        raise ValueError(f"{name} is not a number (got {reprlib.repr(value)}); give Score floats")
    if not abs(value.item() if hasattr(value, "item") else value) <= LARGEST:  # numpy's float16 cannot hold the bound
        got = reprlib.repr(value)
        raise ValueError(f"{name} is not finite and at most {LARGEST:g} (got {got}); return such a number or raise")
    return float(value)


class Stoppable(Protocol):
    """A service, or a reward."""

    async def stop(self) -> None: ...


class RewardService(Protocol):
    """Scores responses with any reward; keeps one instance of each reward and its options per process."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def score(self, reward: Spec, task: Task, response: str) -> RewardResult:
        """The named reward of a response; raises `ConfigError` if there is no such reward."""
        ...

    def record_activity(self, journal: Journal) -> None:
        """From now on, record in the journal what each worker process is doing."""
        ...


class LocalRewards:
    """`RewardService` in the caller's thread: breakpoints work, and a reward that hangs blocks the caller.

    Starting a reward is a separate call, because it may take longer than a score may.
    """

    def __init__(self, rank: int = 0, *, max_retries: int = 0) -> None:
        self.rank, self.max_retries = rank, max_retries
        self._started: dict[str, RewardAdapter] = {}
        self._starting = asyncio.Lock()

    async def start(self) -> None: ...

    async def score(self, reward: Spec, task: Task, response: str) -> RewardResult:
        """The reward of `response`; the reward is started first if need be. Infrastructure failures are retried."""
        num_left = self.max_retries
        while True:
            adapter = self._started.get(_key(reward))
            result = await (self.start_reward(reward) if adapter is None else adapter.score(task, response))
            if result is None:
                continue  # the reward has been started
            if num_left <= 0 or result.fault is not RewardFault.INFRASTRUCTURE:
                return result
            num_left -= 1

    async def start_reward(self, reward: Spec) -> RewardResult | None:
        """Load and start the reward, unless that was done before; None, or the failure."""
        async with self._starting:
            if _key(reward) in self._started:
                return None
            adapter = RewardAdapter.load(reward)
            failure = await adapter.start()
            if failure is None:
                self._started[_key(reward)] = adapter
            return failure

    async def score_if_started(self, reward: Spec, task: Task, response: str) -> RewardResult | None:
        """The reward of `response`; None if the reward has not been started in this process."""
        adapter = self._started.get(_key(reward))
        return None if adapter is None else await adapter.score(task, response)

    async def stop(self) -> None:
        """Stop every reward, in reverse order of their starts; raises `RewardFailed` at the end if one fails."""
        async with AsyncExitStack() as stack:
            for adapter in self._started.values():
                stack.push_async_callback(adapter.stop)
            self._started.clear()

    def record_activity(self, journal: Journal) -> None:
        """There are no workers: rewards count as the controller's time."""


async def stop_rewards(service: Stoppable, notice: Callable[[str], object]) -> None:
    """Stop a service or a reward; a reward whose `stop` fails becomes a notice, because its scores are given."""
    try:
        await service.stop()
    except RewardFailed as error:
        notice(str(error))


def _key(reward: Spec) -> str:
    return repr(reward) if reward.kwargs else reward.name
