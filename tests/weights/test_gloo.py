"""Transfers over gloo, with all members as threads of one process."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from roll.errors import RunStopped
from roll.registry import CHANNELS
from roll.weights.broadcast import GlooChannel, NcclChannel, Rendezvous
from roll.weights.meeting import cancel_transfer, is_cancelled, open_meeting

pytestmark = pytest.mark.slow

NamedTensor = tuple[str, torch.Tensor]
NOISE = torch.Generator().manual_seed(3)
TENSORS: list[NamedTensor] = [
    ("large", torch.randn(70, 50, generator=NOISE)),
    ("sent in place", torch.randn(1100, 1000, generator=NOISE)),
    ("sent in place, transposed", torch.randn(1100, 1000, generator=NOISE).t()),
    ("slice", torch.randn(30, 40, generator=NOISE).t()[3:9]),
    ("three dimensions", torch.randn(3, 4, 5, generator=NOISE).permute(1, 2, 0)),
    ("strided", torch.randn(30, generator=NOISE)[::2]),
    ("transposed", torch.randn(30, 40, generator=NOISE).t()),
    ("large sent in place, transposed", torch.randn(90, 60, generator=NOISE).t()),
    ("short", torch.randn(3, generator=NOISE).to(torch.bfloat16)),
    ("int8", torch.arange(5, dtype=torch.int8)),
    ("scalar", torch.tensor(4.0, dtype=torch.float64)),
    ("empty", torch.zeros(0, 4)),
    *((f"small {number}", torch.randn(11, 13, generator=NOISE)) for number in range(40)),
]


class TwoGroups(NcclChannel):
    """As `NcclChannel`, with a second group of gloo in place of NCCL's."""

    _device = "cpu"

    def _form_payload_group(self, store: Any, timeout: timedelta) -> Any:
        return dist.ProcessGroupGloo(store, self.rendezvous.rank, self.rendezvous.size, timeout)


KINDS = pytest.mark.parametrize("kind", [GlooChannel, TwoGroups])


def members(
    path: Path,
    num_receivers: int,
    *,
    timeout_s: float = 20.0,
    arrival_s: float | None = None,
    bucket_bytes: int = 4096,
    kind: type[GlooChannel] = GlooChannel,
) -> list[GlooChannel]:
    meeting, size = path / "meeting", num_receivers + 1
    if not meeting.exists():
        open_meeting(meeting)
    return [
        kind(
            Rendezvous(meeting=meeting, rank=rank, size=size, timeout_s=timeout_s, arrival_s=arrival_s or timeout_s),
            bucket_bytes=bucket_bytes,
        )
        for rank in range(size)
    ]


def receive_all(channel: GlooChannel, version: int) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in channel.receive(version=version)}


@KINDS
def test_every_receiver_gets_every_tensor_of_every_version_unchanged(kind: type[GlooChannel], tmp_path: Path) -> None:
    sender, *receivers = members(tmp_path, 2, kind=kind)
    with ThreadPoolExecutor() as threads:
        for version in range(3):
            tensors = [(name, tensor + version if tensor.numel() else tensor) for name, tensor in TENSORS]
            arriving = [threads.submit(receive_all, channel, version) for channel in receivers]
            sender.send(iter(tensors), version=version)
            for received in (each.result(timeout=300) for each in arriving):
                assert received.keys() == {name for name, _ in tensors}
                for name, tensor in tensors:
                    assert received[name].dtype == tensor.dtype and torch.equal(received[name], tensor), name


def test_the_first_tensors_are_sent_while_later_ones_are_still_gathered(tmp_path: Path) -> None:
    sender, receiver = members(tmp_path, 1)
    arrived = threading.Event()

    def gathered() -> Iterator[NamedTensor]:
        yield from TENSORS[:30]
        assert arrived.wait(timeout=300), "nothing was sent before everything was gathered"
        yield from TENSORS[30:]

    def read() -> int:
        num = 0
        for _ in receiver.receive(version=0):
            arrived.set()
            num += 1
        return num

    with ThreadPoolExecutor() as threads:
        reading: Future[int] = threads.submit(read)
        sender.send(gathered(), version=0)
        assert reading.result(timeout=300) == len(TENSORS)


def test_members_called_with_different_versions_time_out(tmp_path: Path) -> None:
    sender, receiver = members(tmp_path, 1, timeout_s=1.0)
    with ThreadPoolExecutor() as threads:
        arriving = threads.submit(receive_all, receiver, 4)
        with pytest.raises(RunStopped, match="version 3 was not transferred"):
            sender.send(TENSORS[3:6], version=3)
        with pytest.raises(RunStopped, match="version 4 was not transferred"):
            arriving.result(timeout=300)


@KINDS
def test_after_a_gap_in_the_versions_a_replacement_takes_the_rank_of_a_dead_receiver(
    kind: type[GlooChannel], tmp_path: Path
) -> None:
    sender, stays, goes = members(tmp_path, 2, kind=kind)
    with ThreadPoolExecutor() as threads:
        for version, receivers in (
            (0, [stays, goes]),
            (1, [stays, goes]),
            (3, [stays, members(tmp_path, 2, kind=kind)[2]]),
        ):
            arriving = [threads.submit(receive_all, channel, version) for channel in receivers]
            sender.send([(name, tensor + version) for name, tensor in TENSORS[:3]], version=version)
            for each in arriving:
                assert torch.equal(each.result(timeout=300)["large"], TENSORS[0][1] + version)


@KINDS
def test_in_a_new_meeting_earlier_members_form_a_group_with_new_ones_at_the_next_version(
    kind: type[GlooChannel], tmp_path: Path
) -> None:
    sender, stays, goes = members(tmp_path, 2, kind=kind)
    with ThreadPoolExecutor() as threads:
        for version, receivers in ((0, [stays, goes]), (1, [stays, members(tmp_path, 2, kind=kind)[2]])):
            arriving = [threads.submit(receive_all, channel, version) for channel in receivers]
            sender.send([(name, tensor + version) for name, tensor in TENSORS[:3]], version=version)
            for each in arriving:
                assert torch.equal(each.result(timeout=300)["large"], TENSORS[0][1] + version)
            open_meeting(tmp_path / "meeting")


def test_without_a_meeting_the_error_names_the_file(tmp_path: Path) -> None:
    sender, _ = members(tmp_path, 1)
    (tmp_path / "meeting").unlink()
    with pytest.raises(RunStopped, match="meeting is missing; put the run's directory on a file system"):
        sender.send(TENSORS, version=0)


def test_a_member_that_never_arrives_gives_an_error_of_one_line(tmp_path: Path) -> None:
    sender, receiver = members(tmp_path, 1, timeout_s=600.0, arrival_s=0.5)
    with pytest.raises(RunStopped, match=r"weights: version 7 was not transferred .*see the logs"):
        sender.send(TENSORS, version=7)
    with pytest.raises(RunStopped, match="weights: version 9 was not transferred"):
        receive_all(receiver, 9)


def test_members_that_wait_for_a_cancelled_transfer_give_up_and_join_the_next(tmp_path: Path) -> None:
    sender, receiver = members(tmp_path, 1, timeout_s=600.0)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(receive_all, receiver, 7)
        cancel_transfer(tmp_path / "meeting", 7)
        with pytest.raises(RunStopped, match=r"version 7 was not transferred .another member ended before it arrived"):
            waiting.result(timeout=300)
        arriving = threads.submit(receive_all, receiver, 9)
        sender.send(TENSORS[:2], version=9)
        assert set(arriving.result(timeout=300)) == {name for name, _ in TENSORS[:2]}


def test_a_new_meeting_has_no_cancelled_transfers(tmp_path: Path) -> None:
    meeting = tmp_path / "meeting"
    open_meeting(meeting)
    cancel_transfer(meeting, 7)
    assert is_cancelled(meeting, 6) and is_cancelled(meeting, 7) and not is_cancelled(meeting, 8)
    open_meeting(meeting)
    assert not is_cancelled(meeting, 7)


@KINDS
def test_a_sender_that_dies_midway_gives_an_error_of_one_line(kind: type[GlooChannel], tmp_path: Path) -> None:
    sender, receiver = members(tmp_path, 1, kind=kind)

    def gathered() -> Iterator[NamedTensor]:
        yield from TENSORS[:10]
        raise ZeroDivisionError

    with ThreadPoolExecutor() as threads:
        arriving = threads.submit(receive_all, receiver, 0)
        with pytest.raises(ZeroDivisionError):
            sender.send(gathered(), version=0)
        with pytest.raises(RunStopped, match="version 0 was not transferred"):
            arriving.result(timeout=300)


def test_trainer_and_generators_meet_by_their_ranks(tmp_path: Path) -> None:
    meeting = str(tmp_path / "meeting")
    open_meeting(Path(meeting))
    sender = CHANNELS["gloo"](0, meeting=meeting, num_receivers=2, sends=True)
    receivers = [CHANNELS["gloo"](rank, meeting=meeting, num_receivers=2) for rank in range(2)]
    assert [channel.rendezvous.rank for channel in (sender, *receivers)] == [0, 1, 2]
    with ThreadPoolExecutor() as threads:
        arriving = [threads.submit(receive_all, channel, 0) for channel in receivers]
        sender.send(TENSORS[-2:], version=0)
        assert all(set(each.result(timeout=300)) == {"small 38", "small 39"} for each in arriving)
