"""The parameters of a model under the names of its checkpoint files.

In memory, `transformers` keeps some tensors in another form than in files: the experts of a layer are one tensor. Files
and other engines have one per expert. Each of these is a view of a parameter, so reading a file copies into the model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from roll.errors import ConfigError

LARGE = 2**20
"""Entries above which only a slice of a tensor is converted."""
_THIN = 8


class View(NamedTuple):
    """A tensor of the checkpoint as a part of a parameter."""

    name: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


def checkpoint_views(model: Any) -> dict[str, list[View]]:
    """For each entry of the model's state, without tied copies, the tensors of the checkpoint that are views of it."""
    known: dict[tuple[str, tuple[int, ...]], list[View]] = {}
    views: dict[str, list[View]] = {}
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    for name, tensor in model.state_dict(keep_vars=True).items():
        if name in tied:
            continue
        numbers = re.findall(r"\d+", name)
        pattern = re.sub(r"\d+", "#", name), tuple(tensor.shape)
        if pattern not in known:  # layers differ only in their numbers
            known[pattern] = [_generic(view, name) for view in _views(model, name, tensor)]
        views[name] = [view._replace(name=_numbered(view.name, numbers)) for view in known[pattern]]
    return views


def named_tensors(model: Any, views: dict[str, list[View]]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of the checkpoint, as views of the model's parameters."""
    state = model.state_dict(keep_vars=True)
    for name, parts in views.items():
        for view in parts:
            whole = state[name]
            same = view.size == tuple(whole.shape) and view.stride == whole.stride() and not view.offset
            yield view.name, whole if same else whole.detach().as_strided(view.size, view.stride, view.offset)


def _views(model: Any, name: str, tensor: Tensor) -> list[View]:
    """Found by converting a tensor whose entries are their own positions in memory.

    Of large tensors a thin slice is converted, since conversions treat all entries of the last dimension alike. Where
    they do not, the tensors that come out are not whole slices, and the whole tensor is converted.
    """
    shape = tuple(tensor.shape)
    if tensor.numel() > LARGE and shape[-1] > _THIN and (found := _thin_views(model, name, shape)) is not None:
        return found
    places = torch.arange(tensor.numel(), device="cpu").view(shape)
    return [_view(name, each) for name, each in _reverted(model, name, places).items()]


def _thin_views(model: Any, name: str, shape: tuple[int, ...]) -> list[View] | None:
    """The views, from the first entries of the last dimension; None if a view does not have all of these, in order."""
    width = shape[-1]
    places = torch.arange(math.prod(shape[:-1]) * _THIN, device="cpu").view(*shape[:-1], _THIN)
    views: list[View] = []
    try:
        thin = [_view(part, each) for part, each in _reverted(model, name, places).items()]
    except (ConfigError, RuntimeError):
        return None
    for view in thin:
        if view.size[-1:] != (_THIN,) or view.stride[-1] != 1:
            return None
        if any(each % _THIN for each in (view.offset, *view.stride[:-1])):
            return None
        stride = (*(each // _THIN * width for each in view.stride[:-1]), 1)
        views.append(View(view.name, (*view.size[:-1], width), stride, view.offset // _THIN * width))
    return views


def _reverted(model: Any, name: str, places: Tensor) -> dict[str, Tensor]:
    from transformers.core_model_loading import revert_weight_conversion  # takes seconds

    return revert_weight_conversion(model, {name: places})


def _view(name: str, places: Tensor) -> View:
    """The strides that lead to these positions; raises `ConfigError` if no strides do."""
    offset = int(places.flatten()[0])
    strides = tuple(
        int(places.narrow(dim, 1, 1).flatten()[0]) - offset if size > 1 else 1 for dim, size in enumerate(places.shape)
    )
    steps = [torch.arange(size) * stride for size, stride in zip(places.shape, strides, strict=True)]
    expected = torch.full_like(places, offset)
    for dim, step in enumerate(steps):
        expected += step.view([-1 if other == dim else 1 for other in range(places.ndim)])
    if not torch.equal(expected, places):
        raise ConfigError(f"model: tensor {name} of its files is not a part of one parameter; choose another model")
    return View(name, tuple(places.shape), strides, offset)


def _generic(view: View, name: str) -> View:
    """The view with the numbers of the parameter's own name replaced by marks."""
    numbers = re.findall(r"\d+", name)
    seen = iter(range(len(numbers)))

    def mark(match: re.Match[str]) -> str:
        at = next(seen, None)
        return match[0] if at is None or match[0] != numbers[at] else f"\0{at}\0"

    return view._replace(name=re.sub(r"\d+", mark, view.name))


def _numbered(name: str, numbers: list[str]) -> str:
    return re.sub(r"\0(\d+)\0", lambda match: numbers[int(match[1])], name)
