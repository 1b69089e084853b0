"""Builds the actor from the configuration: its trainers and its generators."""

from __future__ import annotations

import copy
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from roll.cluster.handle import Cluster, Executor
from roll.cluster.inline import InlineCluster
from roll.config.devices import one_device
from roll.config.fsdp import FsdpTrain
from roll.config.schema import NativeInfer, Optimizer, Run
from roll.engines.base import Generator, Trainer
from roll.engines.native.build import WorkerContext, configure_torch
from roll.engines.native.decoder import Decoder
from roll.engines.native.generator import NativeGenerator
from roll.engines.native.lora import attach
from roll.engines.native.mixed import Precision
from roll.engines.native.model_spec import ModelSpec, architecture, build
from roll.engines.native.trainer import LogprobSettings, NativeTrainer, NativeTrainerSettings
from roll.types import Sampling, Spec
from roll.weights.channel import Transport
from roll.weights.inline import Mailbox, Shared
from roll.wiring.data import source_settings
from roll.wiring.generators import build_generator, generator_call, native_settings
from roll.wiring.ranks import build_rank_group, rendezvous_url


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpecs:
    """What the native engines of one policy are built from; each worker sets its own device."""

    model_spec: ModelSpec
    scoring: LogprobSettings
    training: NativeTrainerSettings
    context: WorkerContext
    """Context of the trainer's workers, and by default of the other models'."""
    scratch: Path | None = None
    """Prefix of the rendezvous files of processes; None in a run with one process."""
    supervised: bool = False
    """Whether this is SFT, which needs no other models."""
    policy: str = ""
    """Name of the policy; empty in a run with one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorHandles:
    """Trainers and generators of one policy, and how weights move between them."""

    trainers: Cluster[Trainer]
    generators: Cluster[Generator]
    transport: Transport


def build_engine_specs(run: Run, optimizer: Optimizer, total_steps: int, *, supervised: bool) -> EngineSpecs:
    """The specs of one policy. `supervised` trains the unmodified distribution, as answers were not sampled."""
    scoring = LogprobSettings(
        tokens_per_microbatch=run.actor_train.tokens_per_microbatch,
        sampling=Sampling() if supervised else sampling_of(run),
        sampling_of={} if supervised else {each.name: source_settings(run, each).sampling for each in run.tasks},
        device=torch.device("cpu"),
        precision=Precision(
            dtype=None if run.actor_train.dtype == "float32" else torch.bfloat16,
            checkpointing=run.actor_train.activation_checkpointing,
            exact=getattr(run.actor_train, "float32_compute", False),
        ),
    )
    training = NativeTrainerSettings(
        optimizer=optimizer,
        total_steps=total_steps,
        tokens_per_microbatch=scoring.tokens_per_microbatch,
        sampling=scoring.sampling,
        sampling_of=scoring.sampling_of,
        device=scoring.device,
        precision=scoring.precision,
        base=run.model.path,
    )
    model_spec = ModelSpec(model=run.model, seed=run.seed)
    if (lora := run.actor_train.lora) is not None:
        model_spec = replace(model_spec, lora=lora, frozen=scoring.precision.dtype or torch.float32)
    context = worker_context(run, "actor_train")
    return EngineSpecs(
        model_spec=model_spec, scoring=scoring, training=training, context=context, supervised=supervised
    )


def build_actor(run: Run, specs: EngineSpecs) -> ActorHandles:
    """The actor in this process. Trainer and native generator share one module at `max_staleness` 0."""
    device = configure_torch(specs.context)
    decoder = build(specs.model_spec, device)
    shared = run.actor_infer.backend == "native" and run.rollout.max_staleness == 0
    channel = Shared() if shared else Mailbox()
    if isinstance(run.actor_infer, NativeInfer):
        settings = replace(native_settings(run, run.actor_infer), device=device)
        generator = NativeGenerator(decoder if shared else copy.deepcopy(decoder), settings, channel)
    else:
        generator = build_generator(run, specs.model_spec, channel)
    return ActorHandles(
        trainers=InlineCluster[Trainer]([NativeTrainer(decoder, replace(specs.training, device=device), channel)]),
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
    with torch.device("meta"):  # reject a model or adapter that the decoder cannot build before any process starts
        decoder = Decoder(architecture(run.model))
        if run.actor_train.lora is not None:
            attach(decoder, run.actor_train.lora)
    return ActorHandles(
        trainers=_trainers(run, specs, {**kwargs, "channel": sender}, executor, weights),
        generators=executor.cluster(
            generator_call(run, specs.model_spec, receiver, worker_context(run, "actor_infer")),
            infer.num_workers,
            role=worker_role("actor_infer", specs.policy),
            python=infer.python,
        ),
        transport=Transport(concurrent=run.weight_sync.transport != "disk"),
    )


def _trainers(
    run: Run, specs: EngineSpecs, kwargs: dict[str, Any], executor: Executor, weights: Path
) -> Cluster[Trainer]:
    """One process, or ranks that act as one trainer."""
    train, role = run.actor_train, worker_role("actor_train", specs.policy)
    if isinstance(train, FsdpTrain):
        spec = Spec("roll.engines.fsdp.trainer:trainer", kwargs)
        return build_rank_group(spec, train, role=role, executor=executor, scratch=weights)
    spec = Spec("roll.engines.native.build:trainer", kwargs)
    return executor.cluster(spec, train.num_workers, role=role, python=train.python)


def sampling_of(run: Run) -> Sampling:
    """Sampling parameters of rollouts, under which they are also trained."""
    return Sampling(temperature=run.rollout.temperature, top_k=run.rollout.top_k, top_p=run.rollout.top_p)


def _channel(run: Run, weights: Path) -> tuple[Spec, Spec]:
    """Sender and receiver of weights between processes."""
    if run.weight_sync.transport == "disk":
        channel = Spec("disk", {"directory": str(weights.absolute())})
        return channel, channel
    kind, kwargs = run.weight_sync.transport, {"num_receivers": run.actor_infer.num_workers}
    address = {"name": f"roll-{uuid.uuid4().hex}"} if kind == "ipc" else {"url": rendezvous_url(weights, "all")}
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
