"""Weight transfer through files."""

import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from roll.errors import RunStopped
from roll.weights.channel import Disk, disk


def tensors(value: float) -> list[tuple[str, torch.Tensor]]:
    return [("a", torch.full((2, 3), value).t()), ("b", torch.full((4,), value, dtype=torch.bfloat16))]


def test_a_version_can_be_received_more_than_once_bit_by_bit(tmp_path: Path) -> None:
    Disk(tmp_path / "weights").send(tensors(0.1), version=3)
    for rank in range(2):
        received = dict(disk(rank, directory=str(tmp_path / "weights")).receive(version=3))
        assert received.keys() == {"a", "b"}
        assert all(torch.equal(received[name], tensor) for name, tensor in tensors(0.1))


def test_only_the_newest_complete_version_is_kept(tmp_path: Path) -> None:
    channel = Disk(tmp_path)
    (tmp_path / "version-0.part").touch()  # left by a sender that died
    for version in range(3):
        channel.send(tensors(version), version=version)
    assert [path.name for path in tmp_path.iterdir()] == ["version-2.tensors"]
    assert dict(channel.receive(version=2))["a"][0, 0] == 2


def test_the_error_for_a_missing_version_names_the_directory(tmp_path: Path) -> None:
    Disk(tmp_path).send(tensors(1), version=1)
    with pytest.raises(RunStopped, match=f"version 2 is not in {tmp_path}"):
        list(Disk(tmp_path).receive(version=2))


def test_neither_end_has_two_tensors_in_memory(tmp_path: Path) -> None:
    alive: list[weakref.ref[torch.Tensor]] = []

    def one_by_one() -> Iterator[tuple[str, torch.Tensor]]:
        for name in "abc":
            tensor = torch.full((3, 2), float(len(alive)))
            alive.append(weakref.ref(tensor))
            yield name, tensor
            del tensor
            assert alive[-1]() is None

    channel = Disk(tmp_path)
    channel.send(one_by_one(), version=1)
    received = channel.receive(version=1)
    sizes = [tensor.untyped_storage().nbytes() for _, tensor in received]
    assert sizes == [24, 24, 24] and len(alive) == 3
