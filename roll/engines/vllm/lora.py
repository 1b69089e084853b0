"""Adapters inside vLLM, through its public calls: a directory and a name for every version, the one before removed.

vLLM multiplies B with alpha / rank when it reads one, so it is given B with that number in it already and a number of
1: what lies in its workers is then what the trainer counts, bit by bit, but for zeros that fill up its ranks.
"""

from __future__ import annotations

import importlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from roll.config.lora import Lora
from roll.engines.native.lora import served
from roll.errors import ConfigError, RunStopped
from roll.types import Digest
from roll.weights.adapters import write_adapter
from roll.weights.digest import digest

_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Those that vLLM makes room for; an adapter between two of them is filled up with zeros."""


def lora_arguments(lora: Lora | None) -> dict[str, Any]:
    """What the engine is to be told so that it can be given adapters of this kind."""
    if lora is None:
        return {}
    room = next((rank for rank in _RANKS if rank >= lora.rank), None)
    if room is None:
        raise ConfigError(f"actor_train.lora.rank: vLLM serves at most {_RANKS[-1]} (got {lora.rank}); lower it")
    # Where it would also make room beside the output layer, logits are rounded to 16 bits, and a vocabulary that is
    # smaller than the model is wide ends its start.
    targets = list(lora.targets)
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": room, "lora_target_modules": targets}


class Served:
    """The adapter that an engine serves: one at a time, each in a directory of its own for as long."""

    def __init__(self, engine: Any, lora: Lora, dtype: str) -> None:
        self._engine, self._lora, self._dtype = engine, lora, getattr(torch, dtype)
        self.request: Any = None
        """What goes with every request; None while the model is served as it is."""
        if lora.path is not None:
            self._add("beginning", 1, Path(lora.path))

    def take(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Serve these from now on. A name of its own salts the prefix cache."""
        self.drop()
        folder = Path(tempfile.mkdtemp(prefix="roll-adapter-"))
        plain = self._lora.model_copy(update={"alpha": float(self._lora.rank)})
        write_adapter(folder, plain, served(tensors, self._lora.scale, self._dtype), base=None)
        self._add(f"version-{version}", version + 2, folder)

    def drop(self) -> None:
        """Serve the model as it is."""
        if self.request is None:
            return
        self._engine.remove_lora(self.request.lora_int_id)
        if self.request.lora_path != self._lora.path:
            shutil.rmtree(self.request.lora_path, ignore_errors=True)
        self.request = None

    def _add(self, name: str, number: int, folder: Path) -> None:
        request = importlib.import_module("vllm.lora.request").LoRARequest(name, number, str(folder))
        try:
            taken = self._engine.add_lora(request)
        except (RuntimeError, ValueError, KeyError, OSError) as error:
            raise RunStopped(f"{name}: vLLM does not take the adapter ({error}); see the generator's log") from error
        if not taken:
            raise RunStopped(f"{name}: vLLM has an adapter of this name already; see the generator's log")
        self.request = request


def attest_adapter(worker: Any) -> Digest:
    """Of the adapter that lies in one of vLLM's workers, without what another one counts as well."""
    rank: int = importlib.import_module("vllm.distributed").get_tensor_model_parallel_rank()
    with torch.inference_mode():
        return digest(part.contiguous() for module in worker.get_model().modules() for part in _own(module, rank))


def _own(module: Any, rank: int) -> Iterator[torch.Tensor]:
    """A and B of a projection, each where it is divided among ranks, and on the first rank where it is not."""
    if not isinstance(getattr(module, "lora_a_stacked", None), tuple):
        return  # embeddings have no adapter of ours
    linear = importlib.import_module("vllm.model_executor.layers.linear")
    base = module.base_layer
    by_rows = isinstance(base, linear.RowParallelLinear)
    repeated = rank % getattr(base, "num_kv_head_replicas", 1) != 0
    for number, (a, b) in enumerate(zip(module.lora_a_stacked, module.lora_b_stacked, strict=True)):
        if rank == 0 or by_rows:
            yield a
        if rank == 0 or not (by_rows or (repeated and number > 0)):
            yield b
