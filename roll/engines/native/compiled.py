"""Functions of flat tokens, compiled once for any number of them, where there is a compiler for the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """The function, whose first argument and other tensors as long as it may have any length the next time.

    On a GPU it is compiled at its first call; elsewhere it is called as it is. All other sizes should stay the same.
    """

    @cache
    def made() -> Callable[P, R]:
        return torch.compile(function)

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        rows = list(_rows(args))
        if rows[0].device.type != "cuda":
            return function(*args, **kwargs)
        dynamo = cast(Any, torch)._dynamo
        for row in rows:
            if len(row) == len(rows[0]):
                dynamo.maybe_mark_dynamic(row, 0)
                dynamo.mark_static(row, list(range(1, row.ndim)))
        return made()(*args, **kwargs)

    return called


def _rows(values: Iterable[Any]) -> Iterator[Tensor]:
    """All tensors that have a length and are no weights."""
    for value in values:
        if isinstance(value, tuple):
            yield from _rows(cast("tuple[Any, ...]", value))
        elif isinstance(value, Tensor) and value.ndim and not isinstance(value, torch.nn.Parameter):
            yield value
