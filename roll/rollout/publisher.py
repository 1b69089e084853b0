"""The version-change protocol: take everything back, move the weights, prove that they arrived, go on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from roll.cluster.handle import Cluster
from roll.engines.base import Generator, Trainer
from roll.errors import RunStopped
from roll.journal.events import Published, Resumed
from roll.journal.store import Journal
from roll.rollout.buffer import Serving
from roll.rollout.canary import Canary
from roll.rollout.router import Router
from roll.types import Digest
from roll.weights.plan import Plan


@dataclass(slots=True, kw_only=True)
class Publisher:
    """Brings every generator to the trainer's weights. A version is a counter that only grows."""

    trainers: Cluster[Trainer]
    generators: Cluster[Generator]
    router: Router
    journal: Journal
    plan: Plan
    canary: Canary | None = None
    """None: digests alone attest what is served. Where nothing travels it is tried once: no delivery can spoil it."""
    version: int = -1
    """The one that is served; -1 before the first publication."""
    step_of: dict[int, int] = field(default_factory=dict[int, int])
    """How many steps the weights of each version have seen."""
    _digests: dict[int, Digest] = field(default_factory=dict[int, Digest])
    """Of what was published, to name what a generator holds instead."""

    def serving(self) -> Serving:
        """What the generators hold now."""
        return Serving(self.version, self.step_of[self.version])

    async def publish(self, step: int) -> None:
        """Serve the weights as they are after `step` steps. Rewards and environments go on meanwhile."""
        version, clock = self.version + 1, Clock()
        await self.router.hold()
        clock.lap("hold")
        sent, received = await self._move(version, clock)
        self._attest(version, sent, received)
        if self.canary is not None and (self.plan.travels or not self._digests):
            await self.canary.check(self.trainers, self.generators, version=version, kinds=sent.sums)
            clock.lap("canary")
        self.journal.record(Published(version=version, step=step, digest=_text(sent), seconds=clock.laps))
        self.journal.flush(durable=True)
        self.version = version
        self.step_of[version] = step
        self._digests[version] = sent
        requests, tokens = await self.router.release(version)
        self.journal.record(Resumed(version=version, requests=requests, tokens=tokens))

    async def _move(self, version: int, clock: Clock) -> tuple[Digest, list[Digest]]:
        """What the trainer holds, and what each generator holds once it has taken that over."""
        sending = self.trainers.each(Trainer.send, self.plan, version)
        if self.plan.together:
            sent, received = await asyncio.gather(sending, self.generators.each(Generator.receive, self.plan, version))
            clock.lap("move")
            return sent[0], received
        sent = (await sending)[0]
        clock.lap("send")
        received = await self.generators.each(Generator.receive, self.plan, version)
        clock.lap("receive")
        return sent, received

    def _attest(self, version: int, sent: Digest, received: Sequence[Digest]) -> None:
        """Refuse to go on where a generator holds anything but what the trainer sent."""
        for rank, found in enumerate(received):
            if found != sent:
                fault = self._fault(found, sent)
                raise RunStopped(
                    f"version {version}: generator {rank} does not hold the trainer's weights: {fault} "
                    f"(trainer {_text(sent)}, generator {_text(found)}); nothing was sampled with them"
                )

    def _fault(self, found: Digest, sent: Digest) -> str:
        """What went wrong, by what is held instead."""
        if found.sums.keys() != sent.sums.keys():
            kinds = [", ".join(sorted(side.sums)) for side in (found, sent)]
            return f"it has {kinds[0]} where {kinds[1]} was sent, see actor_infer.dtype"
        for old, digest in self._digests.items():
            if digest == found:
                return f"nothing was delivered, it still holds version {old}"
        return "it holds what was never published, so a part is stale or was changed on the way"


class Clock:
    """Seconds from one lap to the next."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name], self._last = now - self._last, now


def _text(digest: Digest) -> str:
    return " ".join(f"{kind}:{first:016x}:{second:016x}" for kind, (first, second) in sorted(digest.sums.items()))
