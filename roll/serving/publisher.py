"""The version-change protocol: take everything back, move the weights, prove that they arrived, go on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from roll.cluster.handle import Cluster
from roll.engines.base import Generator, Trainer
from roll.errors import RunStopped, WorkerDied
from roll.journal.events import Published, Replaced, Resumed
from roll.journal.store import Journal
from roll.serving.canary import Canary, named
from roll.serving.device_sharing import Turns
from roll.serving.router import Router
from roll.types import Digest, ServedVersion
from roll.weights.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Spare:
    """Generators to come in the place of dead ones."""

    replace: Callable[[int], Awaitable[None]]
    """Puts a fresh one where that rank was."""
    most: int
    """How many may die in one run."""
    notice: Callable[[str], None]
    """Hears of each."""


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
    turns: Turns | None = None
    """Who makes room on shared devices; None: all of it fits."""
    version: int = -1
    """The one that is served; -1 before the first publication."""
    step_of: dict[int, int] = field(default_factory=dict[int, int])
    """How many steps the weights of each version have seen."""
    policy: str = ""
    """Whose weights, where a run has several policies."""
    spare: Spare | None = None
    """Where generators come from that take the place of dead ones; None: a death ends the run."""
    _digests: dict[int, Digest] = field(default_factory=dict[int, Digest])
    """Of what was published, to name what a generator holds instead."""
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while any generator is between two versions."""
    _num_replaced: int = 0

    def serving(self) -> ServedVersion:
        """What the generators hold now."""
        return ServedVersion(self.version, self.step_of[self.version])

    async def publish(self, step: int) -> None:
        """Serve the weights as they are after `step` steps. Rewards and environments go on meanwhile."""
        async with self._changing:
            await self._publish(step)

    async def mend(self, rank: int, died: WorkerDied) -> None:
        """Put a generator that holds what is served in the place of one that died, or end the run past the budget."""
        spare = self.spare
        if spare is None or self._num_replaced >= spare.most:
            raise RunStopped(f"{died} ({self._num_replaced} generators were replaced before, see ray.max_replaced)")
        self._num_replaced += 1
        spare.notice(f"generator {rank} is being replaced, its requests go elsewhere: {died}")
        if self.plan.together:
            async with self._changing:  # no version can go out without it
                await self._bring_up(spare, rank)
                await self._publish(self.step_of[self.version], joined=rank)
        else:
            await self._bring_up(spare, rank)
            async with self._changing:
                await self._catch_up(rank)
        self.journal.record(Replaced(generator=rank, version=self.version, why=str(died)))

    async def _bring_up(self, spare: Spare, rank: int) -> None:
        await spare.replace(rank)
        await self.generators.at(rank, Generator.start)

    async def _catch_up(self, rank: int) -> None:
        """Bring one generator to the version that is served; nobody else is held up."""
        await self.generators.at(rank, Generator.pause)
        found = await self.generators.at(rank, Generator.receive, self.plan, self.version)
        self._attest(self.version, self._digests[self.version], {rank: found})
        await self.generators.at(rank, Generator.resume, self.version)
        self.router.rejoin(rank)

    async def _publish(self, step: int, *, joined: int | None = None) -> None:
        """With `joined`, a generator that was not there before: its version does not follow on the last one."""
        version, clock = self.version + (1 if joined is None else 2), Clock()
        await self.router.hold()
        if joined is not None:
            await self.generators.at(joined, Generator.pause)
            self.router.rejoin(joined)
        clock.lap("hold")
        if self.turns is not None:
            await self.turns.enter("publication")
            clock.lap("make room")
        sent, received = await self._move(version, clock)
        self._attest(version, sent, received)
        if self.canary is not None and (self.plan.travels or not self._digests):
            canary = self.canary
            heard = await self.router.each(lambda rank: canary.probe(self.generators, rank))
            await canary.check(self.trainers, heard, version=version, kinds=sent.sums, policy=self.policy)
            clock.lap("canary")
        digest = f"{self.policy} {_text(sent)}" if self.policy else _text(sent)
        self.journal.record(Published(version=version, step=step, digest=digest, seconds=clock.laps))
        self.journal.flush(durable=True)
        self.version = version
        self.step_of[version] = step
        self._digests[version] = sent
        if self.turns is not None:
            await self.turns.enter("rollout")
        requests, tokens = await self.router.release(version)
        self.journal.record(Resumed(version=version, requests=requests, tokens=tokens))

    async def _move(self, version: int, clock: Clock) -> tuple[Digest, dict[int, Digest]]:
        """What the trainer holds, and what each generator holds once it has taken that over."""
        sending = self.trainers.each(Trainer.send, self.plan, version)

        def receive(rank: int) -> Awaitable[Digest]:
            return self.generators.at(rank, Generator.receive, self.plan, version)

        if self.plan.together:
            sent, received = await asyncio.gather(sending, self.router.each(receive))
            clock.lap("move")
            return sent[0], received
        sent = (await sending)[0]
        clock.lap("send")
        received = await self.router.each(receive)
        clock.lap("receive")
        return sent, received

    def _attest(self, version: int, sent: Digest, received: Mapping[int, Digest]) -> None:
        """Refuse to go on where a generator holds anything but what the trainer sent."""
        for rank, found in received.items():
            if found != sent:
                fault = self._fault(found, sent)
                raise RunStopped(
                    f"{named(version, self.policy)}: generator {rank} does not hold the trainer's weights: {fault} "
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
    return " ".join(f"{kind}:{first:08x}:{second:08x}" for kind, (first, second) in sorted(digest.sums.items()))
