"""Megatron-Core's optimizer over this rank's part of the model: gradients in 32 bits, state sharded over data ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from roll.config.schema import Optimizer
from roll.engines.megatron.masters import MasterWeights
from roll.engines.megatron.model import MegatronModel
from roll.engines.megatron.package import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    OptimizerConfig,
    finalize_model_grads,
    get_megatron_optimizer,
)
from roll.errors import ConfigError


class MegatronOptimizer:
    """The wrapped module, whose gradients it owns, and the optimizer."""

    def __init__(self, model: MegatronModel, config: Optimizer) -> None:
        if config.custom is not None:
            raise ConfigError(f"optimizer {config.kind!r}: megatron has adamw and sgd alone; choose one of them")
        adam = config.kind == "adamw"
        settings = DistributedDataParallelConfig(
            use_distributed_optimizer=adam, overlap_grad_reduce=False, grad_reduce_in_fp32=True
        )
        half = model.core.params_dtype == torch.bfloat16
        self.module: Any = DistributedDataParallel(model.core, settings, model.module)
        model.core.finalize_model_grads_func = _finalize
        options = OptimizerConfig(
            optimizer="adam" if adam else "sgd",
            lr=config.lr,
            weight_decay=config.weight_decay,
            adam_beta1=config.betas[0],
            adam_beta2=config.betas[1],
            adam_eps=config.eps,
            sgd_momentum=0.0,
            bf16=half,
            params_dtype=model.core.params_dtype,
            use_distributed_optimizer=adam,
            clip_grad=0.0,  # clipped here, so that a refused update changes nothing
        )
        self._optimizer: Any = get_megatron_optimizer(options, [self.module], use_gloo_process_groups=False)
        model.masters = MasterWeights(self.parts) if half else None

    @property
    def parts(self) -> list[Any]:
        """The optimizers of dense parameters and of experts, which have different data-parallel groups."""
        return list(getattr(self._optimizer, "chained_optimizers", [self._optimizer]))

    def norm(self) -> Tensor:
        """The norm of the whole gradient, over all groups. The gradient is ready for `step` from here."""
        self._optimizer.prepare_grads()
        return torch.as_tensor(self._optimizer.get_grad_norm(), dtype=torch.float32)

    def scale(self, factor: float) -> None:
        """Multiply the gradient that `step` uses."""
        for part in self.parts:
            for parameter in part.get_parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)

    def step(self, lr: float) -> None:
        """Update the weights of all ranks."""
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = lr
        self._optimizer.step_with_ready_grads()

    def zero(self) -> None:
        """Discard the gradient."""
        self.module.zero_grad_buffer()
        self._optimizer.zero_grad()


def _finalize(modules: Any, _: Any = None, **kwargs: Any) -> None:
    """Sum gradients over ranks. Megatron-Core would divide them by the number of tokens, which is done already."""
    finalize_model_grads(modules, None, **kwargs)
