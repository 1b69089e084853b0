"""Builds the actor from the configuration: its trainers, its generators of any backend, and their canary."""

from __future__ import annotations

import copy
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from roll.cluster.handle import Cluster, Executor, RankGroup, Replaceable
from roll.cluster.inline import InlineCluster
from roll.config.backends import RANKED, FsdpTrain, MegatronTrain, SglangInfer, VllmInfer
from roll.config.deepspeed import DeepspeedTrain
from roll.config.devices import one_device
from roll.config.roles import GeneratorConfig, RoleConfig
from roll.config.router_losses import RouterLosses
from roll.config.schema import NativeInfer, Optimizer, Run
from roll.engines.base import Generator, Trainer
from roll.engines.deepspeed.ranks import ZeroLayout
from roll.engines.fsdp.ranks import ParallelLayout
from roll.engines.megatron.ranks import MegatronLayout
from roll.engines.native import fp8
from roll.engines.native.build import WorkerContext, generator_of, training_device
from roll.engines.native.decoder import Decoder
from roll.engines.native.distillation import NativeDistiller
from roll.engines.native.fp8 import Fp8
from roll.engines.native.generator import NativeGeneratorSettings
from roll.engines.native.lora import attach
from roll.engines.native.mixed import Precision
from roll.engines.native.model_spec import ModelSpec, architecture, build, engine_for
from roll.engines.native.trainer import NativeTrainerSettings
from roll.engines.sglang.generator import SglangGenerator, SglangSettings
from roll.engines.vllm.generator import VllmGenerator, VllmSettings
from roll.serving.canary import Canary, canary_for
from roll.serving.recovery import RecoveringCluster
from roll.types import Sampling, Spec
from roll.weights.channel import Mailbox, Shared, Transport
from roll.wiring.data import source_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpecs:
    """What the native engines of one policy are built from; each worker sets its own device."""

    model_spec: ModelSpec
    training: NativeTrainerSettings
    """Settings of the actor."""
    context: WorkerContext
    """Context of the trainer's workers, and by default of the other models'."""
    scratch: Path | None = None
    """Prefix of the rendezvous files of processes; None in a run with one process."""
    supervised: bool = False
    """Whether this is SFT, which needs no other models."""
    policy: str = ""
    """Name of the policy; empty in a run with one."""

    @property
    def other_models(self) -> NativeTrainerSettings:
        """Settings of models besides the actor: those of its forward pass, without products in fp8."""
        return replace(self.training, precision=replace(self.training.precision, fp8=None))


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorHandles:
    """Trainers and generators of one policy, and how weights move between them."""

    trainers: Cluster[Trainer]
    generators: Cluster[Generator]
    transport: Transport


def build_engine_specs(run: Run, optimizer: Optimizer, total_steps: int, *, supervised: bool) -> EngineSpecs:
    """The specs of one policy. `supervised` trains the unmodified distribution, as answers were not sampled."""
    training = NativeTrainerSettings(
        optimizer=optimizer,
        total_steps=total_steps,
        tokens_per_microbatch=run.actor_train.tokens_per_microbatch,
        sampling=Sampling() if supervised else sampling_of(run),
        sampling_of={} if supervised else {each.name: source_settings(run, each).sampling for each in run.tasks},
        device=torch.device("cpu"),
        precision=Precision(
            dtype=None if run.actor_train.dtype == "float32" else torch.bfloat16,
            checkpointing=run.actor_train.activation_checkpointing,
            exact=getattr(run.actor_train, "float32_compute", False),
            fp8=_fp8(getattr(run.actor_train, "fp8_products", "none")),
        ),
        base=run.model.path,
        router_losses=getattr(run.actor_train, "router_losses", RouterLosses()),
        quantization=getattr(run.actor_infer, "quantization", None),
    )
    model_spec = ModelSpec(
        model=run.model,
        seed=run.seed,
        engine=engine_for(run.model, run.rollout.max_seq_len),
        replays_experts=isinstance(run.actor_infer, VllmInfer) and run.actor_infer.router_replay,
    )
    if training.precision.fp8 is not None:
        fp8.check_model(architecture(run.model), model_spec.engine)
    if (lora := run.actor_train.lora) is not None:
        model_spec = replace(model_spec, lora=lora, frozen=training.precision.dtype or torch.float32)
    context = worker_context(run, "actor_train")
    return EngineSpecs(model_spec=model_spec, training=training, context=context, supervised=supervised)


def _fp8(products: str) -> Fp8 | None:
    return None if products == "none" else Fp8(forward=products == "all")


def build_actor(run: Run, specs: EngineSpecs) -> ActorHandles:
    """The actor in this process."""
    device = training_device(specs.training, specs.context)
    decoder = build(specs.model_spec, device)
    shared = run.shares_module
    channel = Shared() if shared else Mailbox()
    if isinstance(run.actor_infer, NativeInfer):
        settings = replace(native_settings(run, run.actor_infer), device=device)
        generator = generator_of(decoder if shared else copy.deepcopy(decoder), settings, channel)
    elif isinstance(run.actor_infer, SglangInfer):
        generator = SglangGenerator(specs.model_spec, sglang_settings(run, run.actor_infer), channel)
    else:
        generator = VllmGenerator(specs.model_spec, vllm_settings(run, run.actor_infer), channel)
    return ActorHandles(
        trainers=InlineCluster[Trainer]([NativeDistiller(decoder, replace(specs.training, device=device), channel)]),
        generators=InlineCluster[Generator]([generator]),
        transport=Transport(moves=not shared),
    )


def worker_role(section: str, policy: str) -> str:
    """The role name of a section's workers, with the policy in a run with several."""
    return f"{section}-{policy}" if policy else section


def place_actor(run: Run, specs: EngineSpecs, executor: Executor, weights: Path) -> ActorHandles:
    """The actor in processes of an executor, all of which can access the folder `weights`."""
    infer = run.actor_infer
    kwargs = {"model_spec": specs.model_spec, "settings": specs.training, "context": specs.context}
    sender, receiver = _channel(run, weights)
    if specs.model_spec.engine == "native":
        with torch.device("meta"):  # reject a model or adapter that cannot be built before any process starts
            decoder = Decoder(architecture(run.model))
            if run.actor_train.lora is not None:
                attach(decoder, run.actor_train.lora)
    return ActorHandles(
        trainers=build_workers(
            "trainer",
            {**kwargs, "channel": sender},
            run.actor_train,
            role=worker_role("actor_train", specs.policy),
            executor=executor,
            scratch=weights,
        ),
        generators=executor.cluster(
            generator_call(run, specs.model_spec, receiver, worker_context(run, "actor_infer")),
            infer.num_workers,
            role=worker_role("actor_infer", specs.policy),
            python=infer.python,
        ),
        transport=Transport(
            concurrent=run.weight_sync.transport != "disk",
            meeting=Path(sender.kwargs["meeting"]) if "meeting" in sender.kwargs else None,
        ),
    )


def is_sharded(section: RoleConfig) -> bool:
    """Whether the workers of a role share one model as ranks of a group."""
    return isinstance(section, RANKED) or getattr(section, "sharded", False)


def build_workers(
    kind: str, kwargs: dict[str, Any], section: RoleConfig, *, role: str, executor: Executor, scratch: Path | None
) -> Cluster[Any]:
    """The workers of a role, each built by the factory `kind`: independent ones, or ranks that act as one worker.

    Ranks share a model that is sharded over them; they rendezvous in a file with the prefix `scratch`.
    """
    size, python = section.num_workers, section.python
    if scratch is None or not is_sharded(section):
        cluster = executor.cluster(Spec(f"roll.engines.native.build:{kind}", kwargs), size, role=role, python=python)
        return cluster if scratch is None else _recovering(cluster, kwargs.get("channel"), role, scratch)

    def spec() -> Spec:
        return _rank_spec(kind, kwargs, section, url=_rendezvous_url(scratch, role), role=role)

    ranks = RankGroup[Any](executor.cluster(spec(), size, role=role, python=python), spec)
    return _recovering(ranks, kwargs.get("channel"), role, scratch)


def _rank_spec(kind: str, kwargs: dict[str, Any], section: RoleConfig, *, url: str, role: str) -> Spec:
    """A rank of a sharded model, built by the factory `kind` of its backend."""
    common: dict[str, Any] = {"url": url, "size": section.num_workers, "role": role}
    package = "fsdp"
    if isinstance(section, MegatronTrain):
        package, layout = "megatron", MegatronLayout(**common, **section.parallel.model_dump())
    elif isinstance(section, DeepspeedTrain):
        common |= {"offload": section.offload_parameters, "offload_optimizer": section.offload_optimizer}
        package, layout = "deepspeed", ZeroLayout(**common, stage=section.zero_stage)
    elif isinstance(section, FsdpTrain):
        layout = ParallelLayout(**common, tp=section.parallel.tp, cp=section.parallel.cp, offload=section.offload)
    else:
        layout = ParallelLayout(**common)
    return Spec(f"roll.engines.{package}.trainer:{kind}", {**kwargs, "layout": layout})


def _recovering(cluster: Cluster[Any], channel: Spec | None, role: str, scratch: Path) -> Cluster[Any]:
    """The cluster with replacement of lost workers, if it can replace them."""
    kind = "" if channel is None else channel.name
    if not isinstance(cluster, Replaceable):
        return cluster
    snapshots = scratch.with_name(f"{scratch.name}-state-{role}")
    return RecoveringCluster(
        cluster, role=role, snapshots=snapshots, sends=bool(kind), broadcasts=kind not in ("", "disk")
    )


def _rendezvous_url(scratch: Path, name: str) -> str:
    """A file in which processes rendezvous; a new one each time, since a used file cannot be reused."""
    return f"file://{scratch.absolute()}-{name}-{uuid.uuid4().hex[:8]}"


def sampling_of(run: Run) -> Sampling:
    """Sampling parameters of rollouts, under which they are also trained."""
    return Sampling(temperature=run.rollout.temperature, top_k=run.rollout.top_k, top_p=run.rollout.top_p)


def _channel(run: Run, weights: Path) -> tuple[Spec, Spec]:
    """Sender and receiver of weights between processes."""
    if run.weight_sync.transport == "disk":
        channel = Spec("disk", {"directory": str(weights.absolute())})
        return channel, channel
    kind, kwargs = run.weight_sync.transport, {"num_receivers": run.actor_infer.num_workers}
    address = {"name": f"roll-{uuid.uuid4().hex}"} if kind == "ipc" else {"meeting": f"{weights.absolute()}-meeting"}
    return Spec(kind, {**kwargs, **address, "sends": True}), Spec(kind, {**kwargs, **address})


def worker_context(run: Run, role: str) -> WorkerContext:
    """The context of this role's workers: the device that its section names, else the first visible one."""
    devices = getattr(run, role).devices
    return WorkerContext(
        device_key=f"{role}.devices",
        device=devices if one_device(devices) else "auto",
        threads=run.threads,
        deterministic=run.deterministic,
    )


def generator_call(run: Run, model_spec: ModelSpec, channel: Spec, context: WorkerContext) -> Spec:
    """A worker of the role `actor_infer`, for any executor; `channel` delivers its weights."""
    kwargs: dict[str, Any] = {"model_spec": model_spec, "channel": channel}
    if isinstance(run.actor_infer, VllmInfer):
        kwargs["settings"] = vllm_settings(run, run.actor_infer)
        return Spec("roll.engines.vllm.generator:generator", kwargs)
    if isinstance(run.actor_infer, SglangInfer):
        kwargs["settings"] = sglang_settings(run, run.actor_infer)
        return Spec("roll.engines.sglang.generator:generator", kwargs)
    settings = native_settings(run, run.actor_infer)
    return Spec("roll.engines.native.build:generator", {**kwargs, "settings": settings, "context": context})


def native_settings(run: Run, section: NativeInfer) -> NativeGeneratorSettings:
    """Settings of the native generator; the worker sets the device."""
    return NativeGeneratorSettings(
        max_num_seqs=section.max_num_seqs,
        max_seq_len=run.rollout.max_seq_len,
        max_num_batched_tokens=section.max_num_batched_tokens,
        progress_interval=section.progress_interval,
        device=torch.device("cpu"),
        dtype=getattr(torch, run.actor_train.dtype),
        kv_cache_gib=section.kv_cache_gib,
    )


def vllm_settings(run: Run, section: VllmInfer) -> VllmSettings:
    """Settings of vLLM."""
    passed = section.model_dump(exclude={"backend", "parallel", "dtype", *GeneratorConfig.model_fields})
    return VllmSettings(
        max_seq_len=run.rollout.max_seq_len,
        tp=section.parallel.tp,
        dtype=run.actor_train.dtype if section.dtype == "auto" else section.dtype,
        **passed,
    )


def without_quantization(run: Run) -> Run:
    """The run with a generator that computes with the weights as they are, for SFT and evaluation."""
    infer = run.actor_infer
    if not isinstance(infer, VllmInfer) or infer.quantization is None:
        return run
    return run.model_copy(update={"actor_infer": infer.model_copy(update={"quantization": None})})


def sglang_settings(run: Run, section: SglangInfer) -> SglangSettings:
    """Settings of SGLang."""
    passed = section.model_dump(exclude={"backend", "dtype", *GeneratorConfig.model_fields})
    return SglangSettings(
        max_seq_len=run.rollout.max_seq_len,
        dtype=run.actor_train.dtype if section.dtype == "auto" else section.dtype,
        **passed,
    )


def build_canary(run: Run) -> Canary | None:
    """The canary that checks every version before it is served; None if switched off."""
    if not run.weight_sync.canary:
        return None
    exact = run.actor_train.dtype == "float32" and getattr(run.actor_infer, "quantization", None) is None
    vocab = architecture(run.model).vocab_size
    return canary_for(vocab=vocab, max_seq_len=run.rollout.max_seq_len, exact=exact)
