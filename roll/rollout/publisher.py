"""The version-change protocol: take everything back, move the weights, prove that they arrived, go on."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import pairwise

from roll.cluster.handle import Cluster
from roll.engines.base import Generator, Trainer
from roll.errors import RunStopped
from roll.journal.events import Published, Resumed
from roll.journal.store import Journal
from roll.rollout.buffer import Serving
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
    version: int = -1
    """The one that is served; -1 before the first publication."""
    step_of: dict[int, int] = field(default_factory=dict[int, int])
    """How many steps the weights of each version have seen."""

    def serving(self) -> Serving:
        """What the generators hold now."""
        return Serving(self.version, self.step_of[self.version])

    async def publish(self, step: int) -> None:
        """Serve the weights as they are after `step` steps. Rewards and environments go on meanwhile."""
        version, times = self.version + 1, [time.perf_counter()]
        await self.router.hold()
        times.append(time.perf_counter())
        sent = (await self.trainers.each(Trainer.send, self.plan, version))[0]
        times.append(time.perf_counter())
        received = await self.generators.each(Generator.receive, self.plan, version)
        times.append(time.perf_counter())
        for rank, found in enumerate(received):
            if found != sent:
                raise RunStopped(
                    f"version {version}: generator {rank} does not hold the trainer's weights "
                    f"(trainer {_text(sent)}, generator {_text(found)}); nothing was sampled with them"
                )
        spent = [end - begin for begin, end in pairwise(times)]
        seconds: dict[str, float] = dict(zip(("hold", "send", "receive"), spent, strict=True))
        self.journal.record(Published(version=version, step=step, digest=_text(sent), seconds=seconds))
        self.journal.flush(durable=True)
        self.version = version
        self.step_of[version] = step
        requests, tokens = await self.router.release(version)
        self.journal.record(Resumed(version=version, requests=requests, tokens=tokens))


def _text(digest: Digest) -> str:
    return " ".join(f"{kind}:{first:016x}:{second:016x}" for kind, (first, second) in sorted(digest.sums.items()))
