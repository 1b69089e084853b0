"""The parameters of a model under the names of its checkpoint files.

In memory, `transformers` keeps some tensors in another form than in files: the experts of a layer are one tensor. Files
and other engines have one per expert. Each of these is a view of a parameter, so reading a file copies into the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from roll.errors import ConfigError


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
    """Found by converting a tensor whose entries are their own positions in memory."""
    places = torch.arange(tensor.numel(), device="cpu").view(tensor.shape)
    reverted: dict[str, Tensor] = revert_weight_conversion(model, {name: places})
    return [_view(name, each) for name, each in reverted.items()]


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
