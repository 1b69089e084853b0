"""What megatron-core needs to run without CUDA: substitutes for `torch.cuda`, and host tensors in place of CUDA ones.

Megatron-Core names CUDA devices, streams and types directly. The substitutes are process-wide, so `install` is called
only in processes that hold a rank, and does nothing where a GPU is visible.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, cast

import torch
import torch.cuda.random
import torch.distributed as dist

_FACTORIES = (
    *("zeros", "ones", "empty", "full", "tensor", "arange", "rand", "randn", "randint", "zeros_like", "empty_like"),
    *("ones_like", "full_like", "eye", "as_tensor", "linspace", "empty_strided"),
)
_TYPES = ("FloatTensor", "LongTensor", "IntTensor", "BFloat16Tensor")
_CPU = torch.device("cpu")
_installed = False


def install() -> None:
    """Install the substitutes, before `megatron.core` is imported; once per process."""
    global _installed
    if _installed or torch.cuda.is_available():
        return
    _installed = True
    import torch._dynamo as compiler  # takes a second

    cast(Any, compiler).config.disable = True  # Megatron-Core compiles small functions, which takes minutes here
    _replace_cuda()
    for name in _FACTORIES:
        setattr(torch, name, _on_host(getattr(torch, name)))
    for name in _TYPES:
        setattr(torch.cuda, name, getattr(torch, name))
    _replace_tensor_methods()
    _replace_all_to_all()


def complete(moe: Any, latent: Any, random: Any) -> None:
    """Correct names that modules of megatron-core leave undefined without Transformer Engine."""
    if not hasattr(moe, "te_general_gemm"):
        moe.te_general_gemm = None
    if not isinstance(getattr(latent, "TELinear", None), type):
        latent.TELinear = _Absent
    if _installed:
        random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
        random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)


class _Absent:
    """A class without instances."""


class _HostStream:
    """A stream or an event: on a host all work is done when a call returns."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = _CPU

    def _nothing(self, *_: Any) -> None:
        pass

    wait_stream = wait_event = synchronize = record = wait = _nothing

    def record_event(self, *_: Any) -> _HostStream:
        return _HostStream()

    def query(self) -> bool:
        return True

    def __enter__(self) -> _HostStream:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _replace_cuda() -> None:
    cuda: Any = torch.cuda
    for name in ("set_device", "synchronize", "empty_cache"):
        setattr(cuda, name, lambda *_, **__: None)
    for name in ("memory_allocated", "max_memory_allocated"):
        setattr(cuda, name, lambda *_, **__: 0)
    for name in ("Stream", "Event", "current_stream", "stream", "default_stream"):
        setattr(cuda, name, _HostStream)
    modules: tuple[Any, ...] = (cuda, torch.cuda.random)
    for module in modules:
        module.get_rng_state = lambda *_, **__: torch.get_rng_state()
        module.set_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    cuda.current_device = lambda: _CPU
    cuda.device_count = lambda: 1
    cuda.get_device_capability = lambda *_, **__: (8, 0)
    cuda.manual_seed = torch.manual_seed
    cuda.nvtx.range_push = cuda.nvtx.range_pop = lambda *_, **__: None


def _is_cuda(device: Any) -> bool:
    return isinstance(device, (str, torch.device)) and str(device).startswith("cuda")


def _on_host(make: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(make)
    def on_host(*args: Any, **kwargs: Any) -> Any:
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = _CPU
        if kwargs.get("pin_memory"):
            del kwargs["pin_memory"]
        return make(*args, **kwargs)

    return on_host


def _replace_tensor_methods() -> None:
    tensor: Any = torch.Tensor
    to, kind = tensor.to, tensor.type

    def to_host(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = _CPU
        return to(self, *(_CPU if _is_cuda(each) else each for each in args), **kwargs)

    def cuda_type(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Optimizers compare the name of the type with names of CUDA types."""
        if args or kwargs:
            return kind(self, *args, **kwargs)
        return kind(self).replace("torch.", "torch.cuda.", 1)

    tensor.to, tensor.type = to_host, cuda_type
    tensor.cuda = lambda self, *_, **__: self
    torch.nn.Module.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]


def _replace_all_to_all() -> None:
    """The dispatcher of tokens passes sizes as tensors, which it converts to lists only if they are on a GPU."""
    exchange: Any = dist.all_to_all_single

    def with_lists(
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Any = None,
        input_split_sizes: Any = None,
        **kwargs: Any,
    ) -> Any:
        sizes = (output_split_sizes, input_split_sizes)
        lists = [each.tolist() if isinstance(each, torch.Tensor) else each for each in sizes]
        return exchange(output, input, *lists, **kwargs)

    dist.all_to_all_single = with_lists
