"""Functions of flat tokens, compiled once for any number of tokens on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function whose first argument, and tensors of equal length, may have another length in each call.

    On a GPU it is compiled at its first call; elsewhere it runs uncompiled. All other sizes should stay the same.
    """

    @cache
    def compile_once() -> Callable[P, R]:
        return torch.compile(function)

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        rows = list(_rows(args))
        if rows[0].device.type != "cuda":
            return function(*args, **kwargs)
        dynamo = cast(Any, torch)._dynamo
        for row in rows:
            if len(row) == len(rows[0]):
                dynamo.maybe_mark_dynamic(row, 0)
                dynamo.mark_static(row, list(range(1, row.ndim)))
        return compile_once()(*args, **kwargs)

    return run


def _rows(values: Iterable[Any]) -> Iterator[Tensor]:
    """All tensors with a length, except parameters."""
    for value in values:
        if isinstance(value, tuple):
            yield from _rows(cast("tuple[Any, ...]", value))
        elif isinstance(value, Tensor) and value.ndim and not isinstance(value, torch.nn.Parameter):
            yield value
