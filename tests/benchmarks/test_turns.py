"""The benchmark of turns at a small size: its counters agree with the journal."""

import asyncio
from contextlib import closing
from pathlib import Path

from benchmarks import turns
from roll.journal.events import TrajectoryEnded
from roll.journal.store import Journal
from roll.types import Status


def test_turns_go_through_the_environment_and_the_journal(tmp_path: Path) -> None:
    async def some() -> None:
        router, scheduler = turns._build(journal, slots=4)
        running = [asyncio.create_task(work) for work in (router.run(), scheduler.run(10**9))]
        consuming = asyncio.create_task(turns._consume(scheduler, num_groups=2))
        await router.release(0)
        async with asyncio.timeout(30):
            while turns.COUNTERS.turns < before + 300:
                await asyncio.sleep(0.01)
        assert turns.COUNTERS.live <= 4 * turns.SIBLINGS
        for task in (*running, consuming):
            task.cancel()
        await asyncio.gather(*running, consuming, return_exceptions=True)

    before = turns.COUNTERS.turns
    with closing(Journal(tmp_path / "journal.db")) as journal:
        asyncio.run(some())
        journal.flush()
        ended = [entry.event for entry in journal.events(TrajectoryEnded)]
    assert turns.COUNTERS.live == 0, "every started environment is closed"
    assert ended and {event.status for event in ended} <= {Status.FINISHED}
    tokens = sum(event.num_tokens for event in ended)
    assert tokens % 2 == 0 and tokens // 2 <= turns.COUNTERS.turns - before, (
        "a turn is a move and an end-of-sequence token"
    )
