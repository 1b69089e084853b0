"""Arguments and results as bytes, with large arrays and tensors out of band, so that pickling copies none of them.

Functions and classes are pickled by name: an object without an importable name cannot be sent. The receiver owns its
copy and may write into it; an array that was read-only stays so.
"""

from __future__ import annotations

import io
import pickle
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_OUT_OF_BAND = 4096
"""Bytes from which an array is stored outside the pickle; many small ones are cheaper inside."""


@dataclass(frozen=True, slots=True)
class Payload:
    """One pickled object."""

    head: bytes
    """The pickle without the contents of large arrays."""
    buffers: tuple[NDArray[np.uint8], ...]

    @property
    def compact(self) -> Payload | bytes:
        """The head alone if there are no buffers: plain bytes are not pickled again when they are sent."""
        return self if self.buffers else self.head

    @property
    def num_bytes(self) -> int:
        return len(self.head) + sum(buffer.nbytes for buffer in self.buffers)


@dataclass(frozen=True, slots=True)
class CallResult:
    """Outcome of a call."""

    ok: bool
    value: Any
    """The result, or the error."""


def pack(value: Any) -> Payload:
    """The value in a form that can be sent to another process; raises `TypeError` if that is impossible."""
    buffers: list[NDArray[np.uint8]] = []

    def in_band(buffer: pickle.PickleBuffer) -> bool:
        contents = buffer.raw()
        if contents.nbytes < _OUT_OF_BAND:
            return True
        buffers.append(np.frombuffer(contents, np.uint8))
        return False

    file = io.BytesIO()
    try:
        _Pickler(file, protocol=5, buffer_callback=in_band).dump(value)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        inner = value.value if isinstance(value, CallResult) else value
        raise TypeError(f"{type(inner).__name__} cannot be sent to another process ({error}): {inner!r}") from None
    return Payload(file.getvalue(), tuple(buffers))


def unpack(payload: Payload | bytes) -> Any:
    """The object again. Its arrays are copied, because the buffers may be shared with other readers."""
    if isinstance(payload, bytes):
        return pickle.loads(payload)
    return pickle.loads(payload.head, buffers=[buffer.copy() for buffer in payload.buffers])


class _Pickler(pickle.Pickler):
    """Pickles tensors as arrays."""

    def reducer_override(self, obj: Any, /) -> Any:
        torch = sys.modules.get("torch")  # if torch is not imported, there is no tensor
        if torch is None or type(obj) is not torch.Tensor or obj.layout is not torch.strided:
            return NotImplemented
        flat = obj.detach().cpu().contiguous().reshape(-1)
        contents = flat.view(torch.uint8) if flat.numel() else flat.new_empty(0, dtype=torch.uint8)
        return _build_tensor, (contents.numpy(), str(obj.dtype).removeprefix("torch."), tuple(obj.shape))


def _build_tensor(contents: NDArray[np.uint8], dtype: str, shape: tuple[int, ...]) -> Any:
    import torch as _torch

    torch: Any = _torch
    if not contents.size:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    return torch.from_numpy(contents).view(getattr(torch, dtype)).view(shape)
