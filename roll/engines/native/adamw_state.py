"""AdamW's state of the native trainer under the names of files: moments are viewed as the parameters are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from roll.weights.buckets import NamedTensor
from roll.weights.optimizer_state import MOMENTS, STEP, OptimizerState


class _TensorSlots(NamedTuple):
    """The state of a tensor of the files, which may be a part of a parameter."""

    name: str
    view: Tensor
    parameter: Tensor
    slots: dict[str, Any]

    def moment(self, name: str) -> Tensor:
        offset = self.view.storage_offset() - self.parameter.storage_offset()
        return self.slots[name].as_strided(self.view.size(), self.view.stride(), offset)


def state_entries(optimizer: Any, tensors: Iterable[NamedTensor]) -> Iterator[NamedTensor]:
    """The entries of a save; `tensors` are views of parameters by their names in files."""
    for each in _slots(optimizer, tensors):
        yield f"{STEP}/{each.name}", each.slots["step"]
        for moment in MOMENTS:
            yield f"{moment}/{each.name}", each.moment(moment)


@torch.no_grad()
def read_state(optimizer: Any, tensors: Iterable[NamedTensor], saved: OptimizerState) -> None:
    """Read a save of any trainer."""
    for each in _slots(optimizer, tensors):
        each.slots["step"].fill_(saved.step([each.name]))
        for moment in MOMENTS:
            each.moment(moment).copy_(saved.moment(moment)[each.name])


def _slots(optimizer: Any, tensors: Iterable[NamedTensor]) -> Iterator[_TensorSlots]:
    """The state of each trained tensor, which is created if it has had no gradient yet."""
    parameters: dict[int, list[Tensor]] = {}
    for parameter in (each for group in optimizer.param_groups for each in group["params"]):
        parameters.setdefault(parameter.untyped_storage().data_ptr(), []).append(parameter)
    for name, view in tensors:
        for parameter in parameters.get(view.untyped_storage().data_ptr(), ()):
            if 0 <= view.storage_offset() - parameter.storage_offset() < parameter.numel():
                slots = optimizer.state[parameter]
                if not slots:
                    slots["step"] = torch.zeros((), device=parameter.device)
                    slots.update({moment: torch.zeros_like(parameter.detach()) for moment in MOMENTS})
                yield _TensorSlots(name, view, parameter, slots)
