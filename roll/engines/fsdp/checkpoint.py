"""Saves of trainers over ranks: the state of a sharded optimizer, and the thread that writes a save.

Rank 0 writes the model. Each rank writes whole moments of some tensors, so ranks in any layout can read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from transformers import PretrainedConfig

from roll.engines.fsdp.ranks import Ranks
from roll.engines.fsdp.sharded import ShardedModel
from roll.errors import one_line
from roll.weights.buckets import NamedTensor
from roll.weights.huggingface import write_sharded_model
from roll.weights.optimizer_state import MOMENTS, STEP, OptimizerState, write_optimizer_state

_FILE_BYTES = 4 * 2**30
"""Approximate size of the files of a saved model, which bounds the memory that rank 0 needs for a save."""


def state_entries(model: ShardedModel, optimizer: torch.optim.AdamW) -> Iterator[NamedTensor]:
    """The state of the optimizer, whole, entry by entry, on every rank: all ranks must iterate to the end."""
    for name, parameter, slots in _slots(model, optimizer):
        for part in model.names_in(name, parameter.shape):
            yield f"{STEP}/{part}", slots["step"]
        for moment in MOMENTS:
            whole = slots[moment].to(model.device).full_tensor()
            for part, tensor in model.parts_of(name, whole):
                yield f"{moment}/{part}", tensor


@torch.no_grad()
def read_state(model: ShardedModel, optimizer: torch.optim.AdamW, saved: OptimizerState) -> None:
    """Read this rank's shards."""
    for name, parameter, slots in _slots(model, optimizer):
        slots["step"].fill_(saved.step(model.names_in(name, parameter.shape)))
        for moment in MOMENTS:
            whole = model.whole_of(name, parameter, saved.moment(moment))
            slots[moment].to_local().copy_(model.shard_of(parameter, whole))


def _slots(model: ShardedModel, optimizer: torch.optim.AdamW) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Each trained parameter with its state, which is created if it has had no gradient yet."""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        slots = optimizer.state[parameter]
        if not slots:
            slots["step"] = torch.zeros((), device=parameter.device)
            slots.update({moment: torch.zeros_like(parameter.detach()) for moment in MOMENTS})
        yield name, parameter, slots


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedParts:
    """What a rank writes; all ranks iterate over both to the end."""

    config: PretrainedConfig
    model: Iterable[NamedTensor]
    """The tensors of the model, which rank 0 writes; empty: no model is written."""
    state: Iterable[NamedTensor] = ()
    """This rank's entries of the optimizer's state."""
    optimizer: str | None = None
    """Kind of the optimizer; None: no state is written."""
    num_updates: int = 0

    def on_host(self, rank: int) -> SavedParts:
        """Copies of what this rank writes."""
        copies = [(name, tensor.detach().to("cpu", copy=True)) for name, tensor in self.model if rank == 0]
        state = [(key, tensor.detach().to("cpu", copy=True)) for key, tensor in self.state]
        return SavedParts(
            config=self.config, model=copies, state=state, optimizer=self.optimizer, num_updates=self.num_updates
        )

    def write(self, path: Path, rank: int) -> None:
        """Write this rank's files."""
        tensors, entries = iter(self.model), iter(self.state)
        try:
            first = next(tensors, None)
            if first is not None and rank == 0:
                write_sharded_model(path, self.config, chain([first], tensors), file_bytes=_FILE_BYTES)
        finally:
            _drain(tensors)
        try:
            if self.optimizer is not None:
                options = {"optimizer": self.optimizer, "num_updates": self.num_updates, "rank": rank}
                write_optimizer_state(path, entries, **options)
        finally:
            _drain(entries)


def _drain(tensors: Iterator[Any]) -> None:
    """Take part in gathering tensors that this rank does not write."""
    for _ in tensors:
        pass


class RankSaver:
    """Writes saves of one rank, in the foreground or in a thread; all ranks must make the same calls."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks, self.background = ranks, BackgroundSave()

    def save(self, path: Path, parts: SavedParts, *, wait: bool) -> None:
        """Write a save; without `wait`, return once this rank's part is copied to the host."""
        self.background.settle()
        if not wait:
            copies, rank = parts.on_host(self._ranks.rank), self._ranks.rank
            self.background.begin(lambda: copies.write(path, rank))
            return
        error: Exception | None = None
        try:
            parts.write(path, self._ranks.rank)
        except (OSError, SafetensorError) as failure:
            error = failure
        faults = self._of_all("" if error is None else _text(error))
        if error is not None:
            raise error
        _raise_first(faults)

    def completed(self) -> bool:
        """Whether the last save without `wait` is on disk on all ranks; raises the error it failed with."""
        faults = self._of_all(self.background.fault())
        if None in faults:
            return False
        self.background.forget()
        _raise_first(faults)
        return True

    def _of_all(self, fault: str | None) -> list[str | None]:
        faults: list[str | None] = [None] * self._ranks.layout.size
        dist.all_gather_object(faults, fault)
        return faults


def _raise_first(faults: Sequence[str | None]) -> None:
    if fault := next(filter(None, faults), None):
        raise OSError(fault)


def _text(error: BaseException) -> str:
    return one_line(f"{type(error).__name__}: {error}")


class BackgroundSave:
    """At most one save that a thread is writing; its outcome stays until `forget`."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="save")
        self._work: Future[None] | None = None

    def begin(self, work: Callable[[], None]) -> None:
        assert self._work is None or self._work.done(), "one save at a time: wait for the last one first"
        self._work = self.pool.submit(work)

    def fault(self) -> str | None:
        """The error of the save; None while it is running, empty if it succeeded."""
        assert self._work is not None, "no save without `wait` has begun"
        if not self._work.done():
            return None
        error = self._work.exception()
        return "" if error is None else _text(error)

    def settle(self) -> None:
        """Wait for the save, whether it succeeds or not."""
        if self._work is not None:
            self._work.exception()

    def forget(self) -> None:
        """Wait for the save and drop its outcome."""
        self.settle()
        self._work = None

    def close(self) -> None:
        """Finish the save, end the thread, and raise the error of a save whose outcome nobody has asked for."""
        self.pool.shutdown()
        if self._work is not None:
            self._work.result()
