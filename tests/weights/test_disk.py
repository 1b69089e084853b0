"""Weights through files."""

from pathlib import Path

import pytest
import torch

from roll.errors import RunStopped
from roll.weights.disk import Disk, disk


def tensors(value: float) -> list[tuple[str, torch.Tensor]]:
    return [("a", torch.full((2, 3), value).t()), ("b", torch.full((4,), value, dtype=torch.bfloat16))]


def test_what_was_sent_arrives_bit_by_bit_as_often_as_it_is_asked_for(tmp_path: Path) -> None:
    Disk(tmp_path / "weights").send(tensors(0.1), version=3)
    for rank in range(2):
        found = dict(disk(rank, directory=str(tmp_path / "weights")).receive(version=3))
        assert all(torch.equal(found[name], tensor) for name, tensor in tensors(0.1)) and found.keys() == {"a", "b"}


def test_only_the_newest_version_is_kept_and_no_half_of_one(tmp_path: Path) -> None:
    channel = Disk(tmp_path)
    (tmp_path / "version-0.part").touch()  # of a sender that died
    for version in range(3):
        channel.send(tensors(version), version=version)
    assert [path.name for path in tmp_path.iterdir()] == ["version-2.safetensors"]
    assert dict(channel.receive(version=2))["a"][0, 0] == 2


def test_a_version_that_is_not_there_is_named_with_the_folder(tmp_path: Path) -> None:
    Disk(tmp_path).send(tensors(1), version=1)
    with pytest.raises(RunStopped, match=f"version 2 is not in {tmp_path}"):
        list(Disk(tmp_path).receive(version=2))
