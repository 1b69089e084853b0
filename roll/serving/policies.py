"""Several policies in one run, each behind the parts that a run with one has, to whoever drives them all at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from roll.serving.counts import Tally
from roll.serving.publisher import Publisher
from roll.serving.router import Router
from roll.types import ServedVersion


class Routers:
    """The routers of all policies, run and counted together. Who samples asks the one of its policy."""

    def __init__(self, routers: Sequence[Router]) -> None:
        self._routers = tuple(routers)
        for router in self._routers[1:]:
            router.waits = self._routers[0].waits  # attempts wait for environments, whoever is to speak next

    async def run(self) -> None:
        """Move requests and outputs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for router in self._routers:
                tasks.create_task(router.run())

    async def release(self, version: int) -> tuple[int, int]:
        """Go on, with every generator at this version; requests that go on, and tokens they have to be given again."""
        found = [await router.release(version) for router in self._routers]
        return sum(requests for requests, _ in found), sum(tokens for _, tokens in found)

    def whereabouts(self) -> dict[str, int]:
        """How many attempts are with generators, and how many wait for what."""
        found = Counter(self._routers[0].whereabouts())
        for router in self._routers[1:]:
            own = router.whereabouts().items()
            found.update({what: number for what, number in own if not what.startswith("waiting for ")})  # told already
        return dict(found)

    @property
    def tally(self) -> Tally:
        """What all of them have seen since it was last set."""
        found: Counter[str] = Counter()
        for router in self._routers:
            found.update(asdict(router.tally))
        return Tally(**found)

    @tally.setter
    def tally(self, fresh: Tally) -> None:
        for router in self._routers:
            router.tally = Tally(**asdict(fresh))


@dataclass(slots=True, kw_only=True)
class Publishers:
    """Brings every policy's generators to its own trainer's weights; all policies have the same version."""

    publishers: Mapping[str, Publisher]
    """By policy."""

    @property
    def version(self) -> int:
        """The one that is served; -1 before the first publication."""
        return min(publisher.version for publisher in self.publishers.values())

    @version.setter
    def version(self, version: int) -> None:
        for publisher in self.publishers.values():
            publisher.version = version

    @property
    def step_of(self) -> dict[int, int]:
        """How many steps the weights of each version have seen."""
        return next(iter(self.publishers.values())).step_of

    @step_of.setter
    def step_of(self, step_of: dict[int, int]) -> None:
        for publisher in self.publishers.values():
            publisher.step_of = dict(step_of)

    def serving(self) -> ServedVersion:
        """What the generators hold now."""
        return ServedVersion(self.version, self.step_of[self.version])

    async def publish(self, step: int) -> None:
        """Serve the weights as they are after `step` steps, policy by policy."""
        for publisher in self.publishers.values():
            await publisher.publish(step)
