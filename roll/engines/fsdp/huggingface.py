"""A model of transformers, sharded over ranks by FSDP2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from roll.engines.fsdp.ranks import Ranks
from roll.engines.fsdp.sharded import ShardedModel
from roll.engines.hf.decoder import HuggingFaceDecoder, empty_model, layers_of
from roll.engines.hf.names import View
from roll.engines.native.decoder import Attend
from roll.engines.native.lora import is_adapter
from roll.engines.native.mixed import Precision
from roll.engines.native.model_spec import ModelSpec, architecture
from roll.errors import ConfigError

_PREFIX = "decoder.model."
"""Of the names of the model's own parameters."""


class ShardedHuggingFace(ShardedModel):
    """A model of transformers, sharded. Its layers are not divided: neither tensor nor context parallelism."""

    def __init__(self, model_spec: ModelSpec, ranks: Ranks) -> None:
        config = architecture(model_spec.model)
        super().__init__(config, ranks, model_spec.lora)
        if ranks.layout.tp * ranks.layout.cp > 1:
            raise ConfigError("actor_train.parallel: models of engine hf have neither tp nor cp; set both to 1")
        with _without_memory():
            model = empty_model(config, trust_remote_code=model_spec.model.trust_remote_code)
            self.decoder = HuggingFaceDecoder(model, scored=model_spec.head != "logits")
            if model_spec.lora is not None:
                self.decoder.attach(model_spec.lora)
        self.config = self.decoder.config
        self.logit_cap = self.decoder.logit_cap
        self._views: dict[str, list[View]] = {f"{_PREFIX}{name}": views for name, views in self.decoder.views.items()}

    @property
    def head(self) -> Tensor:
        """[vocab, hidden]; whole from a forward pass until the end of the backward pass, or `reshard`."""
        return self.decoder.head

    @property
    def score(self) -> Tensor | None:
        """[1, hidden]; None for a language model."""
        return self.decoder.score

    @property
    def score_weight(self) -> Tensor | None:
        """[1, hidden]; None for a language model."""
        return self.decoder.score

    def shard(self, device: torch.device, precision: Precision) -> None:
        """Allocate this rank's shard; layers are gathered only while they are computed."""
        for layer in layers_of(self.decoder.model):
            layer.forward.precision = Precision(checkpointing=precision.checkpointing)  # FSDP2 casts the weights
        self.allocate(layers_of(self.decoder.model), device, precision)

    def forward(self, ids: Tensor, positions: Tensor, attend: Attend, experts: Tensor | None = None) -> Tensor:
        """[tokens] ids at [tokens] positions -> [tokens, hidden], normalised and scaled for `head`."""
        return self.decoder.run(ids, positions, attend, experts=experts)

    def fill(self, tensors: Mapping[str, Tensor], *, adapters: bool | None = None) -> None:
        super().fill(tensors, adapters=adapters)
        if adapters is not True:
            for name, buffer in self._saved_buffers():
                if self.ranks.rank == 0:
                    buffer.copy_(self.whole_of(name, buffer, tensors))
                dist.broadcast(buffer, 0)

    def named_tensors(
        self, *, adapters: bool = False, dtype: torch.dtype | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        yield from super().named_tensors(adapters=adapters, dtype=dtype)
        if not adapters:
            for name, buffer in self._saved_buffers():
                yield from self.parts_of(name, buffer)

    def local_parts(self, *, adapters: bool = False, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        yield from super().local_parts(adapters=adapters, dtype=dtype)
        if not adapters and self.ranks.rank == 0:
            yield from self._saved_buffers()

    def _saved_buffers(self) -> list[tuple[str, Tensor]]:
        """Buffers that belong to the weights, such as the biases of experts."""
        return [(name, buffer) for name, buffer in self.named_buffers() if name in self._views]

    def whole_of(self, name: str, parameter: Any, tensors: Mapping[str, Tensor]) -> Tensor:
        if name not in self._views:
            return tensors[_file_name(name)]
        whole = torch.empty(parameter.shape)
        for view in self._views[name]:
            whole.as_strided(view.size, view.stride, view.offset).copy_(tensors[view.name])
        return whole

    def parts_of(self, name: str, whole: Tensor) -> Iterator[tuple[str, Tensor]]:
        if name not in self._views:
            yield _file_name(name), whole
            return
        for view in self._views[name]:
            yield view.name, whole.contiguous().as_strided(view.size, view.stride, view.offset)


def _file_name(name: str) -> str:
    """The name of an adapter or of the score head outside of this module."""
    return name.removeprefix(_PREFIX) if is_adapter(name) else "score.weight"


@contextmanager
def _without_memory() -> Iterator[None]:
    """Parameters made in this block have no memory; buffers do, since `transformers` computes some of them."""
    register = nn.Module.register_parameter

    def without(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not param.is_meta:  # tied ones stay one object
            param = nn.Parameter(param.data.to("meta"), requires_grad=param.requires_grad)
        register(self, name, param)

    nn.Module.register_parameter = without
    try:
        yield
    finally:
        nn.Module.register_parameter = register
