"""The trainer over many ranks by DeepSpeed ZeRO: models, losses, publication and checkpoints are those of fsdp2.

DeepSpeed divides optimizer state, gradients and weights, clips the gradient and refuses one that is not finite.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from roll.engines.base import Part
from roll.engines.deepspeed.model import ZeroDecoder, ZeroHuggingFace, shape_of
from roll.engines.deepspeed.package import check_package, deepspeed, start_engine
from roll.engines.deepspeed.ranks import ZeroLayout, ZeroRanks
from roll.engines.fsdp.trainer import FsdpTrainer
from roll.engines.native.build import WorkerContext, configure_torch
from roll.engines.native.model_spec import ModelSpec, architecture
from roll.engines.native.trainer import ForwardOutput, NativeTrainerSettings, build_optimizer, layer_of
from roll.errors import ConfigError
from roll.registry import CHANNELS
from roll.types import Batch, Sampling, Spec
from roll.weights.buckets import NamedTensor
from roll.weights.channel import Shared
from roll.weights.optimizer_state import MOMENTS, STEP, OptimizerState


class DeepspeedTrainer(FsdpTrainer):
    """`Trainer` and `AsyncSaver` on one of many ranks: an actor or a critic."""

    _engine: Any = None

    async def stop(self) -> None:
        if self._engine is not None:
            self._engine.destroy()
            self._engine = None
        await super().stop()

    def _empty_decoder(self, model_spec: ModelSpec) -> Any:
        if model_spec.engine == "hf":
            return ZeroHuggingFace(model_spec, self.ranks)
        return ZeroDecoder(architecture(model_spec.model), self.ranks, scored=model_spec.head != "logits")

    def _prepare(self) -> None:
        config, layout, half = self.settings.optimizer, self.ranks.layout, self.settings.precision.dtype is not None
        assert isinstance(layout, ZeroLayout)
        forward_pass = _ForwardPass(self.decoder)
        settings: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": layout.settings(),
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "gradient_clipping": config.max_grad_norm or 0.0,
            "bf16": {"enabled": half},
            "communication_data_type": "fp32",
            "steps_per_print": 2**62,
        }
        if half:
            settings["data_types"] = {"grad_accum_dtype": "fp32"}
        optimizer = build_optimizer(list(self.decoder.parameters()), config)
        self._engine = start_engine(forward_pass, optimizer, settings)
        self._optimizer = self._engine.optimizer
        if layout.stage == 3:
            for weight in (self.decoder.head, self.decoder.score_weight):
                if weight is not None:  # used outside of its module
                    deepspeed().zero.register_external_parameter(forward_pass, weight)

    def _move(self, parts: Sequence[Part], device: torch.device) -> None:
        if parts:
            raise ConfigError("actor_train: deepspeed moves no state between phases; choose its options for offloading")

    def _microbatches(self, batch: Batch) -> Iterator[tuple[list[int], Batch]]:
        microbatches = list(super()._microbatches(batch))
        for number, each in enumerate(microbatches, 1):
            self._engine.set_gradient_accumulation_boundary(number == len(microbatches))
            yield each

    def _forward(
        self, batch: Batch, needed: Tensor, *, sampling: Sampling | None = None, entropy_gradient: bool = False
    ) -> ForwardOutput:
        """In one module with the output layer, so that DeepSpeed gathers its weights too."""
        run = partial(super()._forward, batch, needed, sampling=sampling, entropy_gradient=entropy_gradient)
        logprobs, entropies, values = self._engine(run)
        return ForwardOutput(logprobs=logprobs, entropies=entropies, values=values)

    def _backward(self, loss: Tensor) -> None:
        """DeepSpeed averages over ranks, but token weights need a sum. All ranks skip a loss that is not finite."""
        size = torch.full_like(loss, self.ranks.layout.size)
        self._engine.backward(loss * torch.where(loss.detach().isfinite(), size, torch.nan))

    def _apply_gradient(self, lr: float, loss: Tensor) -> tuple[Tensor, bool]:
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._engine.step()
        return torch.as_tensor(self._engine.get_global_grad_norm()), bool(self._engine.was_step_applied())

    def _layer_norms(self) -> dict[str, float]:
        squares: dict[str, float] = {}
        for name, parameter in self.decoder.named_parameters():
            gradient, layer = deepspeed("utils").safe_get_full_grad(parameter), layer_of(name)
            squares[layer] = squares.get(layer, 0.0) + float(gradient.double().square().sum())
        return {f"loss/grad_norm/{layer}": square**0.5 for layer, square in squares.items()}

    def _state_entries(self) -> Iterator[NamedTensor]:
        if not (flat := self._flat_state()):
            return  # plain SGD has no state
        for name, parameter in self.decoder.named_parameters():
            for part in self.decoder.names_in(name, shape_of(parameter)):
                yield f"{STEP}/{part}", flat[0]["step"]
            for moment in MOMENTS:
                for part, tensor in self.decoder.parts_of(name, self.decoder.read(moment, parameter)):
                    yield f"{moment}/{part}", tensor

    def _read_state(self, saved: OptimizerState) -> None:
        """AdamW counts its steps per flat tensor here, so it counts those of the run."""
        for each in (flat := self._flat_state()):
            each["step"].fill_(float(saved.num_updates))
        for name, parameter in self.decoder.named_parameters() if flat else ():
            outline = torch.empty(shape_of(parameter), device="meta")
            for moment in MOMENTS:
                whole = self.decoder.whole_of(name, outline, saved.moment(moment))
                self.decoder.write(moment, parameter, whole.to(self.decoder.device))

    def _flat_state(self) -> list[dict[str, Tensor]]:
        """The state of each flat tensor that the optimizer works on, created if there was no update yet."""
        zero: Any = self._optimizer
        if not isinstance(zero.optimizer, torch.optim.AdamW):
            return []
        divided = self.decoder.divided
        tensors = zero.fp32_partitioned_groups_flat if divided else zero.single_partition_of_fp32_groups
        for tensor in tensors:
            if not zero.optimizer.state[tensor]:
                empty = {"step": torch.zeros((), device=tensor.device)}
                zero.optimizer.state[tensor] = empty | {key: torch.zeros_like(tensor) for key in MOMENTS}
        if not divided:
            zero._lazy_init_hp_params_optimizer_state()
        return [zero.optimizer.state[tensor] for tensor in tensors]


class _ForwardPass(nn.Module):
    """Runs a function, as a module whose weights DeepSpeed gathers for its duration."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, run: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        output = run()
        return output.logprobs, output.entropies, output.values


def trainer(
    rank: int,
    *,
    model_spec: ModelSpec,
    settings: NativeTrainerSettings,
    context: WorkerContext,
    layout: ZeroLayout,
    channel: Spec | None = None,
) -> DeepspeedTrainer:
    """One rank of a trainer; rank 0 sends weights through `channel`, unless it is None."""
    check_package()
    settings = replace(settings, device=configure_torch(context))
    sends = channel is not None and rank == 0
    end = CHANNELS[channel.name](rank, **channel.kwargs) if channel is not None and sends else Shared()
    return DeepspeedTrainer(model_spec, settings, ZeroRanks(layout, rank), end)
