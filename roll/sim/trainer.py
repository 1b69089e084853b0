"""A trainer whose update takes time and computes nothing."""

from __future__ import annotations

import asyncio

from roll.algorithms.recipe import Objective
from roll.engines.fake import FakeTrainer
from roll.types import Batch


class SimTrainer(FakeTrainer):
    """`Trainer` whose updates each take `update_s`; it stores no batches."""

    def __init__(self, update_s: float) -> None:
        super().__init__()
        self.update_s = update_s

    async def update(self, batch: Batch, objective: Objective) -> dict[str, float]:
        await asyncio.sleep(self.update_s)
        self.num_updates += 1
        return {"loss/policy": 0.0, "loss/grad_norm": 0.0, "loss/refused": 0.0}
