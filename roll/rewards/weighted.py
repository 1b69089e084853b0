"""Several rewards on one task: what counts is the sum of their scores, each times its weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roll.errors import ConfigError
from roll.rewards.base import Reward
from roll.rewards.outcome import Unscored
from roll.types import Call, Score, Task


class Weighted:
    """A reward made of rewards; where one of them has no score, there is none.

    `rewards` are mappings with `kind` and, if need be, `weight` (1), `name` (the kind) and the options of that kind.
    Each is logged unweighted as a part by its name, and its own parts below that.
    """

    def __init__(self, *, rewards: Sequence[Mapping[str, Any]]) -> None:
        self._parts: dict[str, tuple[float, Reward]] = {}
        self._started: list[Reward] = []
        if not rewards:
            raise ConfigError("reward 'weighted': an empty list; name a reward at least")
        for given in rewards:
            options = dict(given)
            kind, weight = options.pop("kind"), float(options.pop("weight", 1.0))
            name = options.pop("name", None) or kind
            if name in self._parts:
                raise ConfigError(f"reward 'weighted': two are called {name!r}; give one of them a 'name'")
            self._parts[name] = weight, Reward.made(Call(kind, options))

    async def start(self) -> None:
        """Start them all, or none."""
        for _, reward in self._parts.values():
            failed = await reward.start()
            if failed is not None:
                await self.stop()
                assert failed.fault is not None, "no failure without a fault"
                raise Unscored(failed.fault, failed.reason)
            self._started.append(reward)

    async def stop(self) -> None:
        while self._started:
            await self._started.pop().stop()

    async def score(self, task: Task, reply: str) -> Score:
        """The weighted sum, and what it is made of."""
        total, parts = 0.0, dict[str, float]()
        for name, (weight, reward) in self._parts.items():
            outcome = await reward.score(task, reply)
            if outcome.score is None:
                assert outcome.fault is not None, "no failure without a fault"
                raise Unscored(outcome.fault, outcome.reason)
            total += weight * outcome.score.value
            parts[name] = outcome.score.value
            parts |= {f"{name}/{part}": value for part, value in outcome.score.parts.items()}
        return Score(total, parts)
