"""The attempts of one group: which of them count, and what the journal stores of them while they run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from roll.engines.base import Output
from roll.journal.events import ReplayDiverged
from roll.journal.records import Chunk
from roll.journal.store import Journal
from roll.types import Trajectory, record


class SiblingRace:
    """Decides when enough siblings of a group are valid, or can no longer be."""

    def __init__(self, run: Callable[[int], Awaitable[Trajectory]], num_needed: int, num_spare: int) -> None:
        """`run` makes one attempt as the sibling of this number."""
        self.result: asyncio.Future[list[Trajectory] | str] = asyncio.get_running_loop().create_future()
        """The first valid trajectories in sibling order, or the reason why there are too few."""
        self._run, self._num_needed, self._num_spare = run, num_needed, num_spare
        self._valid: list[Trajectory] = []

    async def enter(self, sibling: int) -> None:
        """Run one sibling and count its trajectory."""
        try:
            self._count(await self._run(sibling))
        except asyncio.CancelledError:
            self.result.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - any error ends the group's wait
            if not self.result.done():
                self.result.set_exception(error)

    def _count(self, trajectory: Trajectory) -> None:
        if self.result.done():
            return
        if trajectory.status.valid:
            self._valid.append(trajectory)
            if len(self._valid) == self._num_needed:
                self.result.set_result(sorted(self._valid, key=lambda each: each.sibling))
        elif self._num_spare:
            self._num_spare -= 1
        else:
            self.result.set_result(trajectory.reason)


@record
class JournalRecorder:
    """Records the progress of an unfinished attempt in the journal."""

    journal: Journal
    group: int
    sibling: int
    attempt: int

    def record_output(self, turn: int, checksum: int, output: Output) -> None:
        self.journal.record_progress(
            Chunk(
                group=self.group,
                sibling=self.sibling,
                attempt=self.attempt,
                turn=turn,
                context=checksum,
                ids=output.ids,
                logprobs=output.logprobs,
                version=output.version,
            )
        )

    def record_divergence(self, turn: int) -> None:
        self.journal.record(ReplayDiverged(group=self.group, sibling=self.sibling, turn=turn))
