"""Adapters in vLLM through its public calls: each version is a directory and a name, and replaces the one before.

vLLM multiplies B by alpha / rank when it loads an adapter. It therefore gets B with that factor applied, and a factor
of 1: its workers then hold bit by bit what the trainer counts, apart from zeros that pad the rank.
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
from roll.engines.native.lora import as_served
from roll.errors import ConfigError, RunStopped
from roll.weights.adapters import write_adapter
from roll.weights.digest import Digest, digest

_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM supports; an adapter of another rank is padded with zeros."""


def lora_arguments(lora: Lora | None) -> dict[str, Any]:
    """Engine arguments for serving adapters of this kind."""
    if lora is None:
        return {}
    max_rank = next((rank for rank in _RANKS if rank >= lora.rank), None)
    if max_rank is None:
        raise ConfigError(f"actor_train.lora.rank: vLLM serves at most {_RANKS[-1]} (got {lora.rank}); lower it")
    # By default vLLM would also prepare the output layer for adapters: logits would be rounded to 16 bits, and a
    # vocabulary smaller than the hidden size would fail at the start.
    targets = list(lora.target_modules)
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": max_rank, "lora_target_modules": targets}


class ServedAdapter:
    """The adapter that an engine serves: one at a time, in a directory that exists as long as it is served."""

    def __init__(self, engine: Any, lora: Lora, dtype: str) -> None:
        self._engine, self._lora, self._dtype = engine, lora, getattr(torch, dtype)
        self.request: Any = None
        """Passed with every request; None while the model is served without an adapter."""
        if lora.path is not None:
            self._add("beginning", 1, Path(lora.path))

    def replace(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Serve these tensors from now on. A distinct name per version separates prefix cache entries."""
        self.drop()
        directory = Path(tempfile.mkdtemp(prefix="roll-adapter-"))
        plain = self._lora.model_copy(update={"alpha": float(self._lora.rank)})
        write_adapter(directory, plain, as_served(tensors, self._lora.scale, self._dtype), base=None)
        self._add(f"version-{version}", version + 2, directory)

    def drop(self) -> None:
        """Serve the model without an adapter."""
        if self.request is None:
            return
        self._engine.remove_lora(self.request.lora_int_id)
        if self.request.lora_path != self._lora.path:
            shutil.rmtree(self.request.lora_path, ignore_errors=True)
        self.request = None

    def _add(self, name: str, number: int, directory: Path) -> None:
        request = importlib.import_module("vllm.lora.request").LoRARequest(name, number, str(directory))
        try:
            accepted = self._engine.add_lora(request)
        except (RuntimeError, ValueError, KeyError, OSError) as error:
            raise RunStopped(f"{name}: vLLM rejects the adapter ({error}); see the generator's log") from error
        if not accepted:
            raise RunStopped(f"{name}: vLLM already has an adapter of this name; see the generator's log")
        self.request = request


def attest_adapter(worker: Any) -> Digest:
    """Digest of the adapter in a vLLM worker, without parts that another worker counts too."""
    rank: int = importlib.import_module("vllm.distributed").get_tensor_model_parallel_rank()
    with torch.inference_mode():
        return digest(part.contiguous() for module in worker.get_model().modules() for part in _counted(module, rank))


def _counted(module: Any, rank: int) -> Iterator[torch.Tensor]:
    """A and B of a projection: on each rank where they are sharded, otherwise on the first rank only."""
    if not isinstance(getattr(module, "lora_a_stacked", None), tuple):
        return  # embeddings have no adapter
    linear = importlib.import_module("vllm.model_executor.layers.linear")
    base = module.base_layer
    by_rows = isinstance(base, linear.RowParallelLinear)
    replicated = rank % getattr(base, "num_kv_head_replicas", 1) != 0
    for number, (a, b) in enumerate(zip(module.lora_a_stacked, module.lora_b_stacked, strict=True)):
        if rank == 0 or by_rows:
            yield a
        if rank == 0 or not (by_rows or (replicated and number > 0)):
            yield b
