"""The experts that vLLM chooses for each token, so that a trainer can choose the same ones.

On a GPU vLLM returns them (`enable_return_routed_experts`). On the CPU it cannot, and its routers report them to a
`Recorder` in the worker instead; prefixes are then not cached, since cached tokens pass no router.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from roll.types import Experts

_RECORDER = "roll_experts"


class Recorder:
    """Experts by request, position and layer, of the passes of one worker."""

    def __init__(self, runner: Any, model: Any) -> None:
        layers: Any = importlib.import_module("vllm.model_executor.layers.fused_moe.layer")
        self._runner, self._num_layers = runner, runner.model_config.get_total_num_hidden_layers()
        self._pass: dict[int, torch.Tensor] = {}
        """Experts of the running pass by layer."""
        self._rows: dict[str, list[tuple[int, Experts]]] = {}
        """Of each request the first position and the experts of each of its passes."""
        for module in model.modules():
            if isinstance(module, layers.MoERunner):
                if module._quant_method.is_monolithic:
                    raise ValueError("the kernel of its experts does not report them")
                module.router.set_capture_fn(partial(self._add, module.layer_id))
        model.register_forward_hook(self._divide)

    def take(self, name: str) -> Experts | None:
        """[positions, layers, k] of a request; None if it had no pass, or ended before the last one."""
        passes = self._rows.pop(name, None)
        if passes is None:
            return None
        size = max(start + len(rows) for start, rows in passes)
        experts = np.full((size, *passes[0][1].shape[1:]), -1, np.int16)
        for start, rows in passes:  # a preempted request computes some positions again
            experts[start : start + len(rows)] = rows
        return experts

    def _add(self, layer: int, chosen: torch.Tensor) -> None:
        self._pass[layer] = chosen

    def _divide(self, *_: Any) -> None:
        """Assign the rows of a pass to its requests."""
        chosen, self._pass = self._pass, {}
        context: Any = importlib.import_module("vllm.forward_context").get_forward_context()
        if not chosen or not context.attn_metadata:  # a trial pass at the start
            return
        metadata = next(iter(context.attn_metadata.values()))
        first = next(iter(chosen.values()))
        experts = np.full((len(first), self._num_layers, first.shape[1]), -1, np.int16)
        for layer, rows in chosen.items():
            experts[:, layer] = rows.to(torch.int16).numpy()
        for name in self._rows.keys() - self._runner.requests.keys():
            del self._rows[name]
        bounds: list[int] = metadata.query_start_loc.tolist()
        batch = self._runner.input_batch
        for index, name in enumerate(batch.req_ids):
            rows = experts[bounds[index] : bounds[index + 1]]
            self._rows.setdefault(name, []).append((int(batch.num_computed_tokens_cpu[index]), rows))


def record(worker: Any) -> None:
    """Begin to record in a worker that does not return them."""
    setattr(worker, _RECORDER, Recorder(worker.model_runner, worker.get_model()))


def take(worker: Any, names: list[str]) -> list[Experts | None]:
    """What was recorded of these requests since they began."""
    return [getattr(worker, _RECORDER).take(name) for name in names]
