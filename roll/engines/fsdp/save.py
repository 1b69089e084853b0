"""Writing what a rank has copied to its host while it goes on: one save at a time, on a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor


class Writing:
    """The save that is under way, if there is one."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="save")
        self._work: Future[None] | None = None

    def begin(self, work: Callable[[], None]) -> None:
        assert self._work is None, "one save at a time: finish the last one first"
        self._work = self.pool.submit(work)

    def fault(self) -> str | None:
        """What went wrong with it; None while it is under way, nothing where it went well or there is none."""
        if self._work is None:
            return ""
        if not self._work.done():
            return None
        error = self._work.exception()
        return "" if error is None else f"{type(error).__name__}: {error}".splitlines()[0]

    def finish(self) -> None:
        """Wait for it, and raise what went wrong."""
        work, self._work = self._work, None
        if work is not None:
            work.result()

    def forget(self) -> None:
        """There is none any more, however it went."""
        self._work = None

    def close(self) -> None:
        """End the thread once it has written what it was given."""
        self.pool.shutdown()
        self.finish()


def copied(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """The same numbers on the host, whatever becomes of the originals."""
    for name, tensor in tensors:
        yield name, copy_of(tensor)


def copy_of(tensor: Tensor) -> Tensor:
    """One of them; of a sharded tensor the part that is here, still known as such."""
    if not isinstance(tensor, DTensor):
        return tensor.detach().to("cpu", copy=True)
    part: Any = tensor.to_local().detach().to("cpu", copy=True)
    make: Any = DTensor  # `from_local` would take it back to the device of the mesh
    return make(part, tensor._spec, requires_grad=False)
