"""The interface of a weight channel, the facts that a publisher needs about one, and channels without a connection."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from roll.errors import RunStopped
from roll.weights.buckets import Entry, NamedTensor, in_memory_order

_INDEX_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """How a publisher has to call the two ends of a channel."""

    concurrent: bool = False
    """Whether send and receive must run at the same time, as in a broadcast; otherwise send completes first."""
    moves: bool = True
    """Whether tensors are copied at all; False where trainer and generator share one module."""
    meeting: Path | None = None
    """The file of `open_meeting` of a broadcast."""


class Channel(Protocol):
    """Moves named tensors from a trainer to its generators."""

    def send(self, tensors: Iterable[NamedTensor], *, version: int) -> None: ...

    def receive(self, *, version: int) -> Iterable[NamedTensor]:
        """The tensors of `version`, each valid until the next is read; none where both sides share a module."""
        ...


class Shared:
    """Trainer and generator are two views of one module: the optimizer step is the publication."""

    def send(self, tensors: Iterable[NamedTensor], *, version: int) -> None:
        """Nothing to move."""

    def receive(self, *, version: int) -> Iterable[NamedTensor]:
        return ()


class Mailbox:
    """Holds one version of the trainer's tensors, by reference, until the generator has copied them."""

    def __init__(self) -> None:
        self._letter: tuple[int, list[NamedTensor]] | None = None

    def send(self, tensors: Iterable[NamedTensor], *, version: int) -> None:
        self._letter = (version, list(tensors))

    def receive(self, *, version: int) -> Iterable[NamedTensor]:
        assert self._letter is not None and self._letter[0] == version, f"version {version} was not sent"
        _, tensors = self._letter
        self._letter = None
        return tensors


class Disk:
    """Files in a directory that all processes see, which holds the newest version; readers never see half of a file.

    Neither end has more than one tensor in memory: a file has the bytes of each tensor as it arrives, then the entries
    of all, then the size of these. Sending a version deletes the one before: by then every receiver has loaded it.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def send(self, tensors: Iterable[NamedTensor], *, version: int) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        file = self._file(version)
        partial = file.with_suffix(".part")
        entries: list[Entry] = []
        with partial.open("wb") as out:
            for name, tensor in tensors:
                stored, order = in_memory_order(tensor.detach().cpu())
                dtype = str(stored.dtype).removeprefix("torch.")
                entries.append(Entry(name, dtype, tuple(stored.shape), order, out.tell()))
                out.write(stored.contiguous().view(-1).view(torch.uint8).numpy().data)
                del tensor, stored  # before the trainer gathers the next one
            index = json.dumps([astuple(entry) for entry in entries]).encode()
            out.write(index + len(index).to_bytes(_INDEX_BYTES, "little"))
        partial.rename(file)
        for old in self.directory.glob("version-*"):
            if old != file:
                old.unlink()

    def receive(self, *, version: int) -> Iterator[NamedTensor]:
        path = self._file(version)
        if not path.is_file():
            raise RunStopped(
                f"weights: version {version} is not in {self.directory}; "
                "put the run's directory on a file system that every machine of the cluster sees"
            )
        with path.open("rb") as file:
            for entry in _entries(path):
                memory = torch.empty(entry.num_bytes, dtype=torch.uint8)
                file.seek(entry.begin)
                file.readinto(memory.numpy().data)
                yield entry.name, replace(entry, begin=0).tensor(memory)

    def _file(self, version: int) -> Path:
        return self.directory / f"version-{version}.tensors"


def _entries(path: Path) -> list[Entry]:
    """The entries at the end of a file."""
    with path.open("rb") as file:
        file.seek(-_INDEX_BYTES, os.SEEK_END)
        size = int.from_bytes(file.read(_INDEX_BYTES), "little")
        file.seek(-_INDEX_BYTES - size, os.SEEK_END)
        return [Entry(*entry) for entry in json.loads(file.read(size))]


def disk(rank: int, *, directory: str) -> Disk:
    """Either end of the channel, the same for every rank."""
    return Disk(Path(directory))
