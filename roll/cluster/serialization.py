"""Arguments and answers as bytes, with the arrays and tensors in them beside, so that none is copied to be pickled.

Functions and classes travel by name: what has no importable name cannot be sent. What arrives is the receiver's own,
to be written into; an array that was read-only stays so.
"""

from __future__ import annotations

import io
import pickle
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BESIDE = 4096
"""Bytes from which on an array lies beside the pickle; many small ones are cheaper inside."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """One pickled object."""

    head: bytes
    """All of it but the contents of large arrays."""
    buffers: tuple[NDArray[np.uint8], ...]

    @property
    def wire(self) -> Parcel | bytes:
        """The same as it travels best: bytes alone are not pickled once more on their way."""
        return self if self.buffers else self.head

    @property
    def num_bytes(self) -> int:
        return len(self.head) + sum(buffer.nbytes for buffer in self.buffers)


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a call."""

    fine: bool
    found: Any
    """The answer, or the error."""


def packed(found: Any) -> Parcel:
    """What can be sent to another process; raises `TypeError` for what cannot."""
    buffers: list[NDArray[np.uint8]] = []

    def inside(buffer: pickle.PickleBuffer) -> bool:
        contents = buffer.raw()
        if contents.nbytes < _BESIDE:
            return True
        buffers.append(np.frombuffer(contents, np.uint8))
        return False

    file = io.BytesIO()
    try:
        _Pickler(file, protocol=5, buffer_callback=inside).dump(found)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        what = found.found if isinstance(found, Answer) else found
        raise TypeError(f"{type(what).__name__} cannot be sent to another process ({error}): {what!r}") from None
    return Parcel(file.getvalue(), tuple(buffers))


def unpacked(parcel: Parcel | bytes) -> Any:
    """The object again; its arrays are copied, for others may read from where they lay."""
    if isinstance(parcel, bytes):
        return pickle.loads(parcel)
    return pickle.loads(parcel.head, buffers=[buffer.copy() for buffer in parcel.buffers])


class _Pickler(pickle.Pickler):
    """Writes tensors as the arrays that they are."""

    def reducer_override(self, obj: Any, /) -> Any:
        torch = sys.modules.get("torch")  # where nobody has imported it, there is no tensor
        if torch is None or type(obj) is not torch.Tensor or obj.layout is not torch.strided:
            return NotImplemented
        flat = obj.detach().cpu().contiguous().reshape(-1)
        plain = flat.view(torch.uint8) if flat.numel() else flat.new_empty(0, dtype=torch.uint8)
        return _tensor, (plain.numpy(), str(obj.dtype).removeprefix("torch."), tuple(obj.shape))


def _tensor(contents: NDArray[np.uint8], kind: str, shape: tuple[int, ...]) -> Any:
    import torch as _torch

    torch: Any = _torch
    if not contents.size:
        return torch.empty(shape, dtype=getattr(torch, kind))
    return torch.from_numpy(contents).view(getattr(torch, kind)).view(shape)
