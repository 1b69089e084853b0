"""Buckets over gloo, with all members as threads of one process: their groups do not know."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from roll.errors import RunStopped
from roll.registry import CHANNELS
from roll.weights.gloo import GlooChannel, Meeting

Named = tuple[str, torch.Tensor]
NOISE = torch.Generator().manual_seed(3)
TENSORS: list[Named] = [
    ("large", torch.randn(70, 50, generator=NOISE)),
    ("sent from where it lies", torch.randn(1100, 1000, generator=NOISE)),
    ("and turned", torch.randn(1100, 1000, generator=NOISE).t()),
    ("a part of it", torch.randn(30, 40, generator=NOISE).t()[3:9]),
    ("three ways", torch.randn(3, 4, 5, generator=NOISE).permute(1, 2, 0)),
    ("one way", torch.randn(30, generator=NOISE)[::2]),
    ("turned", torch.randn(30, 40, generator=NOISE).t()),
    ("large and turned", torch.randn(90, 60, generator=NOISE).t()),
    ("short", torch.randn(3, generator=NOISE).to(torch.bfloat16)),
    ("bytes", torch.arange(5, dtype=torch.int8)),
    ("one", torch.tensor(4.0, dtype=torch.float64)),
    ("none", torch.zeros(0, 4)),
    *((f"small {number}", torch.randn(11, 13, generator=NOISE)) for number in range(40)),
]


def members(path: Path, num_receivers: int, *, timeout_s: float = 20.0, bucket_bytes: int = 4096) -> list[GlooChannel]:
    url, size = f"file://{path}/meeting", num_receivers + 1
    return [
        GlooChannel(Meeting(url=url, rank=rank, size=size, timeout_s=timeout_s), bucket_bytes=bucket_bytes)
        for rank in range(size)
    ]


def taken(channel: GlooChannel, version: int) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in channel.receive(version=version)}


def test_every_tensor_arrives_everywhere_as_it_was_in_every_version(tmp_path: Path) -> None:
    sender, *receivers = members(tmp_path, 2)
    with ThreadPoolExecutor() as threads:
        for version in range(3):
            tensors = [(name, tensor + version if tensor.numel() else tensor) for name, tensor in TENSORS]
            arriving = [threads.submit(taken, channel, version) for channel in receivers]
            sender.send(iter(tensors), version=version)
            for found in (each.result(timeout=20) for each in arriving):
                assert found.keys() == {name for name, _ in tensors}
                for name, tensor in tensors:
                    assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


def test_tensors_travel_while_later_ones_are_still_gathered(tmp_path: Path) -> None:
    sender, receiver = members(tmp_path, 1)
    arrived = threading.Event()

    def gathered() -> Iterator[Named]:
        yield from TENSORS[:30]
        assert arrived.wait(timeout=20), "nothing was sent before everything was gathered"
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
        assert reading.result(timeout=20) == len(TENSORS)


def test_those_that_are_called_with_different_versions_do_not_meet(tmp_path: Path) -> None:
    sender, receiver = members(tmp_path, 1, timeout_s=1.0)
    with ThreadPoolExecutor() as threads:
        arriving = threads.submit(taken, receiver, 4)
        with pytest.raises(RunStopped, match="version 3 did not get through"):
            sender.send(TENSORS[3:6], version=3)
        with pytest.raises(RunStopped, match="version 4 did not get through"):
            arriving.result(timeout=20)


def test_after_a_gap_in_the_versions_one_that_came_later_is_in_the_place_of_one_that_is_gone(tmp_path: Path) -> None:
    sender, stays, goes = members(tmp_path, 2)
    with ThreadPoolExecutor() as threads:
        for version, receivers in ((0, [stays, goes]), (1, [stays, goes]), (3, [stays, members(tmp_path, 2)[2]])):
            arriving = [threads.submit(taken, channel, version) for channel in receivers]
            sender.send([(name, tensor + version) for name, tensor in TENSORS[:3]], version=version)
            for each in arriving:
                assert torch.equal(each.result(timeout=20)["large"], TENSORS[0][1] + version)


def test_a_receiver_that_never_comes_is_one_line(tmp_path: Path) -> None:
    sender, _ = members(tmp_path, 1, timeout_s=0.5)
    with pytest.raises(RunStopped, match=r"weights: version 7 did not get through .*see the logs"):
        sender.send(TENSORS, version=7)


def test_a_sender_that_dies_midway_is_one_line(tmp_path: Path) -> None:
    sender, receiver = members(tmp_path, 1, timeout_s=1.0)

    def gathered() -> Iterator[Named]:
        yield from TENSORS[:10]
        raise ZeroDivisionError

    with ThreadPoolExecutor() as threads:
        arriving = threads.submit(taken, receiver, 0)
        with pytest.raises(ZeroDivisionError):
            sender.send(gathered(), version=0)
        with pytest.raises(RunStopped, match="version 0 did not get through"):
            arriving.result(timeout=20)


def test_workers_of_two_roles_find_each_other_by_their_ranks(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/meeting"
    sender = CHANNELS["gloo"](0, url=url, num_receivers=2, sends=True)
    receivers = [CHANNELS["gloo"](rank, url=url, num_receivers=2) for rank in range(2)]
    assert [channel.meeting.rank for channel in (sender, *receivers)] == [0, 1, 2]
    with ThreadPoolExecutor() as threads:
        arriving = [threads.submit(taken, channel, 0) for channel in receivers]
        sender.send(TENSORS[-2:], version=0)
        assert all(set(each.result(timeout=20)) == {"small 38", "small 39"} for each in arriving)
