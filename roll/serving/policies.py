"""Routers and publishers of all policies of a run, driven together. A run with one policy names it ""."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from roll.serving.counts import GenerationCounts
from roll.serving.elastic import ElasticGenerators
from roll.serving.lending import Lender
from roll.serving.publisher import Publisher
from roll.serving.router import Router


@dataclass(frozen=True, slots=True)
class ServedVersion:
    """The weights of the generators."""

    version: int
    step: int
    """Number of training steps of these weights. Versions only increase; steps go back when a run is resumed."""


@dataclass(slots=True)
class Routers:
    """The routers of all policies. An agent samples from the router of its policy."""

    by_policy: Mapping[str, Router]
    """They share their `idle_reasons`."""

    async def run(self) -> None:
        """Move requests and outputs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for router in self.by_policy.values():
                tasks.create_task(router.run())

    async def release(self, version: int) -> tuple[int, int]:
        """Resume every generator at this version; numbers of continued requests and of tokens to prefill for them."""
        resumed = [await router.release(version) for router in self.by_policy.values()]
        return sum(requests for requests, _ in resumed), sum(tokens for _, tokens in resumed)

    def inflight_counts(self) -> dict[str, int]:
        """Numbers of attempts on generators, waiting for dispatch, for environments and for rewards; without zeros."""
        first, *others = (router.inflight_counts() for router in self.by_policy.values())
        total = Counter(first)
        for counts in others:  # idle reasons are shared, so those of the first count for all
            total.update({state: number for state, number in counts.items() if not state.startswith("waiting for ")})
        return dict(total)

    def drain_idle_s(self, now: float) -> float:
        """Mean seconds per generator without any request, since the last call."""
        routers = self.by_policy.values()
        idle_s = sum(router.activities.idle_time.drain(now) for router in routers)
        return idle_s / max(1, sum(len(router.balancer.num_requests) - len(router.absent) for router in routers))

    @property
    def counts(self) -> GenerationCounts:
        """The sum over all policies."""
        total: Counter[str] = Counter()
        for router in self.by_policy.values():
            total.update(asdict(router.counts))
        return GenerationCounts(**total)

    @counts.setter
    def counts(self, counts: GenerationCounts) -> None:
        for router in self.by_policy.values():
            router.counts = GenerationCounts(**asdict(counts))


@dataclass(frozen=True, slots=True)
class Publishers:
    """The publishers of all policies, which share one version number."""

    by_policy: Mapping[str, Publisher]
    elastic: ElasticGenerators | None = None
    """Adds and removes generators; None: their number is constant."""
    lender: Lender | None = None
    """Lends devices of the trainer; None: nothing is lent."""

    async def run(self) -> None:
        """Add and remove generators, and lend devices, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for part in (self.elastic, self.lender):
                if part is not None:
                    tasks.create_task(part.run())

    @property
    def version(self) -> int:
        """The served version; -1 before the first publication."""
        return min(publisher.version for publisher in self.by_policy.values())

    @property
    def step_of(self) -> Mapping[int, int]:
        """Training steps behind the weights of each version."""
        return next(iter(self.by_policy.values())).step_of

    def serving(self) -> ServedVersion:
        """The version that the generators serve, and its training step."""
        return ServedVersion(self.version, self.step_of[self.version])

    async def publish(self, step: int) -> None:
        """Serve the weights of step `step`, one policy after the other."""
        for publisher in self.by_policy.values():
            await publisher.publish(step)
