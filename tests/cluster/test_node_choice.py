"""Where the replacements of workers are placed, on nodes that are only described."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from roll.cluster.move import Move
from roll.cluster.ray.actor import WorkerSlot
from roll.cluster.ray.nodes import Nodes, NodeState, WorkerLocation
from roll.errors import NoRoom


class Described(Nodes):
    """Nodes of a test, which reply at one address unless they are dead."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address
        self.listed: list[NodeState] = []
        self.moves: list[Move] = []
        self.on_move = self.moves.append

    def add(self, name: str, *, cpus: float = 8, gpus: int = 0, draining: bool = False, dead: bool = False) -> None:
        address = "127.0.0.1:1" if dead else self.address
        self.listed = [node for node in self.listed if node.id != name]
        self.listed.append(NodeState(id=name, address=address, num_gpus=gpus, free_cpus=cpus, draining=draining))

    async def _list(self) -> list[NodeState]:
        return self.listed

    def replace(self, worker: str, slot: WorkerSlot, node: str) -> WorkerSlot:
        async def use() -> WorkerSlot:
            async with self.place(WorkerLocation(worker=worker, slot=slot, node=node)) as placed:
                return placed

        return asyncio.run(use())


@pytest.fixture
def nodes() -> Iterator[Described]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield Described(f"127.0.0.1:{server.getsockname()[1]}")


def test_a_worker_stays_on_a_node_that_is_usable(nodes: Described) -> None:
    nodes.add("a", cpus=0)
    nodes.add("b")
    assert nodes.replace("w 0", WorkerSlot(), "a") == WorkerSlot() and not nodes.moves


@pytest.mark.parametrize("state", [{"dead": True}, {"draining": True}, None])
def test_a_worker_leaves_a_node_that_is_dead_or_draining_or_unknown(nodes: Described, state: dict | None) -> None:
    if state is not None:
        nodes.add("a", **state)
    nodes.add("b", cpus=1)
    nodes.add("c", cpus=2)
    nodes.add("d", cpus=9, dead=True)
    nodes.add("e", cpus=9, draining=True)
    assert nodes.replace("w 0", WorkerSlot(), "a") == WorkerSlot(node="c"), "the one with most free CPUs that replies"
    assert [move.worker for move in nodes.moves] == ["w 0"]


def test_workers_that_shared_devices_share_them_again_and_no_device_is_given_twice(nodes: Described) -> None:
    nodes.add("b", gpus=4)
    nodes.slots["other 0"] = WorkerSlot(node="b", visible=(0,))
    lost = WorkerSlot(node="a", visible=(0,))
    assert nodes.replace("trainer 0", lost, "a") == WorkerSlot(node="b", visible=(1,))
    assert nodes.replace("generator 0", lost, "a") == WorkerSlot(node="b", visible=(1,)), "as before"
    pair = WorkerSlot(node="a", visible=(1, 2))
    assert nodes.replace("generator 1", pair, "a") == WorkerSlot(node="b", visible=(2, 3))
    with pytest.raises(NoRoom, match="generator 2: its node a is lost, and no other node has 1 free devices and a"):
        nodes.replace("generator 2", WorkerSlot(node="a", visible=(3,)), "a")


def test_one_cpu_is_given_once_while_workers_start(nodes: Described) -> None:
    nodes.add("b", cpus=1)

    async def use() -> None:
        async with nodes.place(WorkerLocation(worker="w 0", slot=WorkerSlot(), node="a")):
            with pytest.raises(NoRoom, match="no other node has a free CPU"):
                async with nodes.place(WorkerLocation(worker="w 1", slot=WorkerSlot(), node="a")):
                    raise AssertionError

    asyncio.run(use())


def test_a_worker_leaves_a_node_after_two_failures_there_only_if_another_has_room(nodes: Described) -> None:
    nodes.add("a")
    nodes.add("b", cpus=0)
    for _ in range(3):
        assert nodes.replace("w 0", WorkerSlot(), "a") == WorkerSlot()
    nodes.add("b", cpus=1)
    assert nodes.replace("w 0", WorkerSlot(), "a") == WorkerSlot(node="b")
    assert nodes.moves[0].reason == "is avoided after 4 failures of this worker there"


def test_workers_leave_a_draining_node_as_far_as_others_have_room(nodes: Described) -> None:
    nodes.add("a", draining=True)
    nodes.add("b", cpus=1)

    async def use() -> list[bool]:
        first, second = (WorkerLocation(worker=f"w {rank}", slot=WorkerSlot(), node="a") for rank in range(2))
        return [await nodes.plan_move(each) for each in (first, second, first)]

    assert asyncio.run(use()) == [True, False, True]
    assert nodes.replace("w 0", WorkerSlot(), "a") == WorkerSlot(node="b")
