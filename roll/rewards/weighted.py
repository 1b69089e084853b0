"""Several rewards on one task: the weighted sum of their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from roll.errors import ConfigError
from roll.rewards.base import RewardAdapter
from roll.rewards.result import RewardResult, Unscored
from roll.types import Score, Span, Spec, Task


class Weighted:
    """A reward composed of rewards; if one of them has no score, there is none.

    `rewards` are mappings with `kind` and, optionally, `weight` (1), `name` (the kind) and the options of that kind.
    Each is logged unweighted as a part under its name, its own parts below that. The comment has the comment of each
    under its name.
    """

    def __init__(self, *, rewards: Sequence[Mapping[str, Any]]) -> None:
        self._parts: dict[str, tuple[float, RewardAdapter]] = {}
        self._started: list[RewardAdapter] = []
        if not rewards:
            raise ConfigError("reward 'weighted': an empty list; name a reward at least")
        for section in rewards:
            options = dict(section)
            kind, weight = options.pop("kind"), float(options.pop("weight", 1.0))
            name = options.pop("name", None) or kind
            if name in self._parts:
                raise ConfigError(f"reward 'weighted': two are called {name!r}; give one of them a 'name'")
            self._parts[name] = weight, RewardAdapter.load(Spec(kind, options))

    async def start(self) -> None:
        """Start all rewards; if one fails, stop those already started."""
        for _, reward in self._parts.values():
            failure = await reward.start()
            if failure is not None:
                await self.stop()
                raise _unscored(failure)
            self._started.append(reward)

    async def stop(self) -> None:
        """Stop all rewards, in reverse order of their starts, also if one of them fails."""
        async with AsyncExitStack() as stack:
            for reward in self._started:
                stack.push_async_callback(reward.stop)
            self._started.clear()

    async def score(self, task: Task, response: str) -> Score:
        """The weighted sum, with every reward as a part, and the weighted spans of all."""
        total, parts, comments, spans = 0.0, dict[str, float](), list[str](), list[Span]()
        for name, (weight, reward) in self._parts.items():
            result = await reward.score(task, response)
            if result.score is None:
                raise _unscored(result)
            total += weight * result.score.value
            parts[name] = result.score.total
            spans += [span._replace(value=weight * span.value) for span in result.score.spans]
            parts |= {f"{name}/{part}": value for part, value in result.score.parts.items()}
            if result.score.comment:
                comments.append(f"{name}: {result.score.comment}")
        return Score(total, parts, "\n\n".join(comments), tuple(spans))


def _unscored(failure: RewardResult) -> Unscored:
    assert failure.fault is not None, "every failure has a fault"
    return Unscored(failure.fault, failure.reason)
