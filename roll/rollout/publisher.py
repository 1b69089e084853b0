"""The version-change protocol: take everything back, move the weights, prove that they arrived, go on."""

from __future__ import annotations

from dataclasses import dataclass, field

from roll.cluster.handle import Cluster
from roll.engines.base import Generator, Trainer
from roll.errors import RunStopped
from roll.journal.events import Published
from roll.journal.store import Journal
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

    async def publish(self, step: int) -> None:
        """Serve the weights as they are after `step` steps. Rewards and environments go on meanwhile."""
        version = self.version + 1
        await self.router.hold()
        sent = (await self.trainers.each(Trainer.send, self.plan, version))[0]
        received = await self.generators.each(Generator.receive, self.plan, version)
        for rank, found in enumerate(received):
            if found != sent:
                raise RunStopped(
                    f"version {version}: generator {rank} does not hold the trainer's weights "
                    f"(trainer {_text(sent)}, generator {_text(found)}); nothing was sampled with them"
                )
        self.journal.record(Published(version=version, step=step, digest=_text(sent)))
        self.journal.flush(durable=True)
        self.version = version
        self.step_of[version] = step
        await self.router.release(version)


def _text(digest: Digest) -> str:
    return " ".join(f"{kind}:{first:016x}:{second:016x}" for kind, (first, second) in sorted(digest.sums.items()))
