"""A replacement without room waits for a node; losses of nodes are no failures of the workers."""

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

from roll.errors import NodeLost, NoRoom, RunStopped, WorkerDied
from roll.journal.events import GeneratorReplaced, NodeAwaited
from roll.journal.store import Journal
from roll.serving.node_wait import NodeWait
from tests.serving.test_replacement import open_scene


class Room:
    """Has room for a worker once `missing` attempts have failed."""

    def __init__(self, missing: int) -> None:
        self.missing = missing

    async def start(self) -> None:
        self.missing -= 1
        if self.missing >= 0:
            raise NoRoom("w 0: no node")


def wait(path: Path, room: Room, *, timeout_s: float, enough: bool = False) -> tuple[list[str], list[NodeAwaited]]:
    """The notices and events of a wait."""
    notices: list[str] = []
    with closing(Journal(path / "journal.db")) as journal:
        waiting = NodeWait(journal=journal, timeout_s=timeout_s, notice=notices.append)
        try:
            asyncio.run(waiting.start("w 0", room.start, enough=lambda: enough))
        finally:
            journal.flush()
            events = [entry.event for entry in journal.events(NodeAwaited)]
    return notices, events


def test_a_worker_with_room_starts_at_once_and_nothing_is_recorded(tmp_path: Path) -> None:
    assert wait(tmp_path, Room(0), timeout_s=0) == ([], [])


def test_a_worker_without_room_is_tried_again_within_the_timeout(tmp_path: Path) -> None:
    notices, (event,) = wait(tmp_path, Room(2), timeout_s=600)
    assert notices[0] == "w 0: no node; the run waits 600 s for one (ray.node_timeout_s)"
    assert len(notices) == 2 and notices[1].startswith("w 0 has a node after ")
    assert event.worker == "w 0" and event.reason == "w 0: no node" and event.seconds > 0


def test_after_the_timeout_the_run_stops_with_one_line_and_can_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(RunStopped, match=r"^w 0: no node, for 0 s \(ray.node_timeout_s\); start .* `roll resume`"):
        wait(tmp_path, Room(10**6), timeout_s=0)
    with closing(Journal(tmp_path / "journal.db")) as journal:
        assert len(list(journal.events(NodeAwaited))) == 1


def test_a_worker_that_is_not_needed_is_tried_without_a_limit(tmp_path: Path) -> None:
    notices, events = wait(tmp_path, Room(2), timeout_s=0, enough=True)
    assert "the run goes on without it until one has" in notices[0] and len(events) == 1


def test_generators_of_lost_nodes_do_not_count_as_failures(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_scene(tmp_path, most=1) as scene:
            for died in [NodeLost("generator 0: its node is lost")] * 3 + [WorkerDied("generator 0: ended")]:
                await scene.publisher.replace_generator(0, died)
            assert len(scene.events(GeneratorReplaced)) == 4
            with pytest.raises(RunStopped, match=r"ended \(1 generators were replaced before, see ray.max_repl"):
                await scene.publisher.replace_generator(0, WorkerDied("generator 0: ended"))

    asyncio.run(run())
