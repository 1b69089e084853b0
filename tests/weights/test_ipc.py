"""Members of a transfer between processes of one GPU: how they meet, and meet again.

The memory is that of the host and the events do nothing, so this needs no GPU; tests/engines/test_gpu_ipc.py has both.
"""

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from roll.errors import RunStopped
from roll.weights import ipc
from roll.weights.ipc import IpcAddress, IpcReceiver, IpcSender

pytestmark = pytest.mark.slow

NamedTensor = tuple[str, torch.Tensor]
TENSORS: list[NamedTensor] = [(f"{number}", torch.full((300,), float(number))) for number in range(20)]


class NoEvent:
    """Copies on a host are complete when they return."""

    def ipc_handle(self) -> bytes:
        return b""

    def record(self) -> None: ...

    def wait(self) -> None: ...

    def synchronize(self) -> None: ...


@pytest.fixture(autouse=True)
def host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IpcSender, "_device", "cpu")
    monkeypatch.setattr(ipc, "_new_events", lambda: [NoEvent() for _ in range(3)])
    monkeypatch.setattr(ipc, "_import_event", lambda handle: NoEvent())


def address(num_receivers: int, arrival_s: float = 60.0) -> IpcAddress:
    return IpcAddress(name=f"roll-{uuid.uuid4().hex}", num_receivers=num_receivers, timeout_s=60, arrival_s=arrival_s)


def receive_all(channel: IpcReceiver, version: int) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in channel.receive(version=version)}


def publish(sender: IpcSender, receivers: list[IpcReceiver], version: int) -> None:
    with ThreadPoolExecutor() as threads:
        arriving = [threads.submit(receive_all, channel, version) for channel in receivers]
        sender.send([(name, tensor + version) for name, tensor in TENSORS], version=version)
        for received in (each.result(timeout=300) for each in arriving):
            assert received.keys() == {name for name, _ in TENSORS}
            assert all(torch.equal(received[name], tensor + version) for name, tensor in TENSORS)


def test_after_a_gap_in_the_versions_any_member_may_be_new() -> None:
    where = address(2)
    sender, stays, goes = IpcSender(where, bucket_bytes=4096), IpcReceiver(where), IpcReceiver(where)
    publish(sender, [stays, goes], 0)
    publish(sender, [stays, goes], 1)
    comes = IpcReceiver(where)
    publish(sender, [stays, comes], 3)
    publish(sender, [stays, comes], 4)
    publish(IpcSender(where, bucket_bytes=4096), [stays, comes], 6)


@pytest.mark.parametrize("fails", ["sender", "receiver"])
def test_a_transfer_cut_midway_fails_at_both_ends_and_the_next_one_succeeds(fails: str) -> None:
    where = address(1)
    sender, receiver = IpcSender(where, bucket_bytes=4096), IpcReceiver(where)

    def cut(tensors: Iterator[NamedTensor]) -> Iterator[NamedTensor]:
        for number, tensor in enumerate(tensors):
            if number == 10:
                raise ZeroDivisionError
            yield tensor

    def read() -> None:
        arriving = receiver.receive(version=0)
        for _ in cut(iter(arriving)) if fails == "receiver" else arriving:
            pass

    with ThreadPoolExecutor() as threads:
        reading = threads.submit(read)
        sent = iter(TENSORS)
        with pytest.raises(ZeroDivisionError if fails == "sender" else RunStopped):
            sender.send(cut(sent) if fails == "sender" else sent, version=0)
        with pytest.raises(ZeroDivisionError if fails == "receiver" else RunStopped):
            reading.result(timeout=300)
    publish(sender, [receiver], 2)


def test_a_receiver_that_never_arrives_gives_an_error_of_one_line() -> None:
    with pytest.raises(RunStopped, match=r"weights: version 7 was not transferred .*see the logs"):
        IpcSender(address(1, arrival_s=0.2), bucket_bytes=4096).send(TENSORS, version=7)


def test_a_sender_that_never_arrives_gives_an_error_of_one_line() -> None:
    with pytest.raises(RunStopped, match=r"weights: version 7 was not transferred .*see the logs"):
        receive_all(IpcReceiver(address(1, arrival_s=0.2)), 7)
