"""Lends devices of the trainer to the generators on them while it waits.

Such a generator gets the served version and attests it before it serves. When the trainer has its batch, it returns
its requests with their tokens, which continue on other generators (`lent_devices.py`).

| call | waits for | woken by |
|---|---|---|
| `run` | the trainer to wait, and the rule | a publication; the clock |
| a move | the workers, then a publication in progress | the workers; the publisher |
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from roll.errors import NodeLost, WorkerDied
from roll.journal.events import DevicesLent
from roll.serving.lent_devices import LentDevices
from roll.serving.publisher import Publisher

_POLL_S = 0.25


@dataclass(slots=True, kw_only=True)
class Lender:
    """Lends devices while the trainer waits, requests queue, and the rule says that the moves pay."""

    devices: LentDevices
    publisher: Publisher
    notice: Callable[[str], None]
    """Callback for user-facing notices."""
    poll_s: float = _POLL_S

    async def run(self) -> None:
        """Lend devices until cancelled."""
        while True:
            await self.devices.waiting.wait()
            if self._pays():
                await self.lend()
            await asyncio.sleep(self.poll_s)

    def _pays(self) -> bool:
        devices = self.devices
        return (
            bool(devices.ranks)
            and not devices.serving
            and devices.router.num_waiting > 0
            and devices.rule.pays(devices.waited_s)
        )

    async def lend(self) -> None:
        """Move the trainer's parts away, and let the generators serve that attest the served version."""
        devices, began = self.devices, _now()
        async with devices.moving:
            if not devices.waiting.is_set():
                return
            await devices.move("rollout")
            if not devices.waiting.is_set():  # the batch is complete; the trainer's turn moves everything back
                return
            async with self.publisher.changing:
                deaths = await asyncio.gather(*map(self._serve, devices.ranks))
                version, digest = self.publisher.version, self.publisher.attested
            for rank, died in zip(devices.ranks, deaths, strict=True):
                if died is not None:
                    await self._replace(rank, died)
            seconds = _now() - began
            if not any(deaths):  # the start of a process says nothing about the next move
                devices.rule.record_lend(seconds)
            event = DevicesLent(generators=devices.serving, version=version, digest=digest, seconds=seconds)
            devices.journal.record(event)

    async def _replace(self, rank: int, died: WorkerDied) -> None:
        """Replace a generator that died. One whose node is lost leaves: the trainer cannot wait for another node."""
        if not isinstance(died, NodeLost):
            await self.publisher.replace_generator(rank, died)
            return
        self.devices.ranks = tuple(each for each in self.devices.ranks if each != rank)
        self.notice(f"generator {rank}: its device is not lent any more, the run continues without it: {died.what}")

    async def _serve(self, rank: int) -> WorkerDied | None:
        """Let a generator serve the served version, or return how it died."""
        try:
            await self.publisher.catch_up(rank)
        except WorkerDied as died:
            return died
        return None


def _now() -> float:
    return asyncio.get_running_loop().time()
