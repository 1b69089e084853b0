"""Layers of vLLM with weights in eight bits: they begin with random ones, and get the trainer's at every publication.

vLLM quantises nothing itself. Its engine is created for a model that is quantised already (`compressed-tensors`), and
the tensors that the trainer has quantised are put in place: on a GPU copied into the memory that kernels and CUDA
graphs read, on the CPU packed again for their kernel.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from roll.config.quantization import Quantization
from roll.errors import ConfigError
from roll.weights.buckets import NamedTensor
from roll.weights.quantization import SCALE, is_quantised

_FUSED = {
    **{name: ("qkv_proj", part) for part, name in enumerate(("q_proj", "k_proj", "v_proj"))},
    **{name: ("gate_up_proj", part) for part, name in enumerate(("gate_proj", "up_proj"))},
}
"""Projections that vLLM computes together: the layer, and the position among its rows."""
_OLDEST_FP8 = (8, 9)
"""Compute capability of Ada; Hopper has 9.0."""
_READ_ERROR = {torch.float32: 0.01}
"""Largest distance from a whole number at which a weight is read back; 0.3 for computation in 16 bits."""


def quantised_arguments(kind: Quantization | None, dtype: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Engine arguments and config values for weights in eight bits; raises `ConfigError` if the device lacks them."""
    if kind is None:
        return {}, {}
    _check_device(kind, dtype)
    number = {"num_bits": 8, "type": "float" if kind == "fp8" else "int", "symmetric": True}
    config = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized" if kind == "fp8" else "int-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {
            "layers": {
                "targets": ["Linear"],
                "weights": {**number, "strategy": "channel", "dynamic": False},
                "input_activations": {**number, "strategy": "token", "dynamic": True},
            }
        },
    }
    return {"load_format": "dummy"}, {"quantization_config": config}


def _check_device(kind: Quantization, dtype: str) -> None:
    on_cpu = importlib.import_module("vllm.platforms").current_platform.is_cpu()
    if not on_cpu and dtype == "float32":
        raise ConfigError(
            f"actor_infer.quantization ({kind}): GPUs multiply eight bits into 16, not into {dtype}; set "
            "actor_train.dtype to bfloat16, or remove it"
        )
    if kind == "fp8" and (on_cpu or torch.cuda.get_device_capability() < _OLDEST_FP8):
        device = "the CPU" if on_cpu else torch.cuda.get_device_name()
        raise ConfigError(
            f"actor_infer.quantization (fp8): only GPUs from Ada and Hopper on compute with it (got {device}); set it "
            "to int8, or remove it"
        )


def is_quantised_layer(module: Any) -> bool:
    """Whether a module of vLLM computes in eight bits."""
    return getattr(module, "scheme", None) is not None and hasattr(module, "weight_scale")


def attested_parts(module: Any, *, packed: bool) -> Iterator[torch.Tensor]:
    """The tensors that a quantised layer computes with; `packed`: its kernel has the weight in a layout of its own."""
    yield _unpack(module) if packed else module.weight
    yield module.weight_scale
    if module.bias is not None:
        yield module.bias


def _unpack(module: Any) -> torch.Tensor:
    """[out, in] int8: the weight of a layer in the layout of its kernel, from its outputs for unit vectors.

    A unit vector is quantised without error, so its output is a row of weights times their scales.
    """
    unit = torch.eye(module.input_size_per_partition, dtype=module.params_dtype)
    weight = module.quant_method.apply(module, unit, None).t().float() / module.weight_scale.view(-1, 1)
    rounded = weight.round()
    if not (weight - rounded).abs().max() <= _READ_ERROR.get(module.params_dtype, 0.3):  # also false for NaN
        raise ValueError(f"the kernel of {module.prefix} multiplies by other scales than the layer holds")
    return rounded.to(torch.int8)


def load_quantised(model: Any, tensors: Iterable[NamedTensor], *, repack: bool) -> None:
    """Put quantised weights and their scales in place, and load all other tensors as usual.

    `repack`: kernels hold copies of the weights, and have to be given new ones, as on the CPU.
    """
    modules = dict(model.named_modules())
    arrived: dict[str, dict[str, torch.Tensor]] = {}

    def others() -> Iterator[NamedTensor]:
        for name, tensor in tensors:
            weight = name.removesuffix(SCALE)
            if not is_quantised(weight):
                yield name, tensor
                continue
            path, part = _target(weight)
            module, kind = modules[path], "weight" if name == weight else "weight_scale"
            if repack and path not in arrived:
                arrived[path] = _empty(module, tensor.dtype)
            whole = arrived[path][kind] if repack else _in_memory(module, path, kind)
            begin = sum(module.logical_widths[:part])
            whole[begin : begin + module.logical_widths[part]].copy_(tensor)

    model.load_weights(others())
    for path, parts in arrived.items():
        module = modules[path]
        for kind, whole in parts.items():
            setattr(module, kind, torch.nn.Parameter(whole, requires_grad=False))
        _pack(module)


def _pack(module: Any) -> None:
    """Give a layer's weights to its kernel on the CPU.

    On CPUs with matrix tiles vLLM chooses a kernel that takes 16 bits alone; layers in 32 bits get its other one.
    """
    kernel = module.scheme.kernel
    if module.params_dtype == torch.float32 and hasattr(kernel, "process_weights_for_onednn"):
        kernel.linear_method = kernel._apply_weights_onednn
        kernel.process_weights_for_onednn(module)
    else:
        module.quant_method.process_weights_after_loading(module)


def _target(name: str) -> tuple[str, int]:
    """The layer that computes with the weight of this name, and its position among the weights of that layer."""
    path, _, projection = name.removesuffix(".weight").rpartition(".")
    layer, part = _FUSED.get(projection, (projection, 0))
    return f"{path}.{layer}", part


def _empty(module: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    num_rows = sum(module.logical_widths)
    return {
        "weight": torch.empty(num_rows, module.input_size_per_partition, dtype=dtype),
        "weight_scale": torch.empty(num_rows, 1),
    }


def _in_memory(module: Any, path: str, kind: str) -> torch.Tensor:
    """The rows of a weight, or of its scales, in the memory that its kernel reads: weights are stored by rows."""
    num_rows, tensor = sum(module.logical_widths), getattr(module, kind).data
    rows = tensor.view(-1, 1) if kind == "weight_scale" else tensor.t()
    expected = (num_rows, 1 if kind == "weight_scale" else module.input_size_per_partition)
    if tuple(rows.shape) != expected or not rows.is_contiguous():
        raise ValueError(f"the kernel of {path} stores its {kind} in a layout that is not supported")
    return rows
