"""The actor from configuration: who trains its weights, and who samples with them."""

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
from roll.engines.native.build import Surroundings, settle
from roll.engines.native.decoder import Decoder
from roll.engines.native.generator import NativeGenerator
from roll.engines.native.lora import adapter_tensors, attach
from roll.engines.native.mixed import Reading
from roll.engines.native.model_spec import Origin, architecture, build
from roll.engines.native.trainer import NativeTrainer, ScoreSettings
from roll.engines.native.trainer import Settings as TrainSettings
from roll.types import Call, Sampling
from roll.weights.inline import Mailbox, Shared
from roll.weights.plan import Layout, Plan, plan
from roll.wiring.data import settings_of
from roll.wiring.generators import build_generator, generator_call, native_settings
from roll.wiring.ranks import meeting, spread_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the native engines of one run are made of; devices are settled by whoever computes."""

    origin: Origin
    reading: ScoreSettings
    training: TrainSettings
    around: Surroundings
    """Of the trainer, and of the models beside the actor."""
    scratch: Path | None = None
    """What the names of files begin with where processes meet; None where there is one process."""
    supervised: bool = False
    """Whether answers are learnt, and no other model is asked."""
    policy: str = ""
    """Whose they are, where a run has several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Both sides of the policy, and how weights get from one to the other."""

    trainers: Cluster[Trainer]
    generators: Cluster[Generator]
    plan: Plan


def build_parts(run: Run, optimizer: Optimizer, total_steps: int, *, supervised: bool) -> Parts:
    """With `supervised` the plain distribution is trained, since answers are nobody's samples."""
    reading = ScoreSettings(
        tokens_per_microbatch=run.actor_train.tokens_per_microbatch,
        sampling=Sampling() if supervised else sampling_of(run),
        sampling_of={} if supervised else {each.name: settings_of(run, each).sampling for each in run.tasks},
        device=torch.device("cpu"),
        reading=Reading(
            dtype=None if run.actor_train.dtype == "float32" else torch.bfloat16,
            checkpointing=run.actor_train.checkpointing,
            exact=getattr(run.actor_train, "exact", False),
        ),
    )
    training = TrainSettings(
        optimizer=optimizer,
        total_steps=total_steps,
        tokens_per_microbatch=reading.tokens_per_microbatch,
        sampling=reading.sampling,
        sampling_of=reading.sampling_of,
        device=reading.device,
        reading=reading.reading,
        base=run.model.path,
    )
    origin = Origin(model=run.model, seed=run.seed)
    if (lora := run.actor_train.lora) is not None:
        origin = replace(origin, lora=lora, frozen=reading.reading.dtype or torch.float32)
    around = around_of(run, "actor_train")
    return Parts(origin=origin, reading=reading, training=training, around=around, supervised=supervised)


def build_actor(run: Run, parts: Parts) -> Actor:
    """In this process: over one module at `max_staleness` 0, over two above it, or where the backend has its own."""
    device = settle(parts.around)
    decoder = build(parts.origin, device)
    shared = run.actor_infer.backend == "native" and run.rollout.max_staleness == 0
    channel = Shared() if shared else Mailbox()
    if isinstance(run.actor_infer, NativeInfer):
        settings = replace(native_settings(run, run.actor_infer), device=device)
        generator = NativeGenerator(decoder if shared else copy.deepcopy(decoder), settings, channel)
    else:
        generator = build_generator(run, parts.origin, channel)
    layout = _layout(decoder)
    return Actor(
        trainers=InlineCluster[Trainer]([NativeTrainer(decoder, replace(parts.training, device=device), channel)]),
        generators=InlineCluster[Generator]([generator]),
        plan=plan(layout, layout, travels=not shared),
    )


def role_of(section: str, policy: str) -> str:
    """What the workers of a section are called; those of several policies are told apart."""
    return f"{section}-{policy}" if policy else section


def place_actor(run: Run, parts: Parts, executor: Executor, weights: Path) -> Actor:
    """In processes of an executor, which pass weights on as the run says; all of them see the folder `weights`."""
    infer = run.actor_infer
    given = {"origin": parts.origin, "settings": parts.training, "around": parts.around}
    leaving, arriving = _channel(run, weights)
    with torch.device("meta"):  # names and shapes; no process but a worker holds weights
        decoder = Decoder(architecture(run.model))
        layout = _layout(decoder if run.actor_train.lora is None else attach(decoder, run.actor_train.lora))
    return Actor(
        trainers=_trainers(run, parts, {**given, "channel": leaving}, executor, weights),
        generators=executor.cluster(
            generator_call(run, parts.origin, arriving, around_of(run, "actor_infer")),
            infer.num_workers,
            role=role_of("actor_infer", parts.policy),
            python=infer.python,
        ),
        plan=plan(layout, layout, together=run.publication.transport != "disk"),
    )


def _trainers(run: Run, parts: Parts, given: dict[str, Any], executor: Executor, weights: Path) -> Cluster[Trainer]:
    """One process, or ranks that are one trainer to all others."""
    train, role = run.actor_train, role_of("actor_train", parts.policy)
    if isinstance(train, FsdpTrain):
        call = Call("roll.engines.fsdp.trainer:trainer", given)
        return spread_out(call, train, role=role, executor=executor, scratch=weights)
    call = Call("roll.engines.native.build:trainer", given)
    return executor.cluster(call, train.num_workers, role=role, python=train.python)


def sampling_of(run: Run) -> Sampling:
    """What rollouts are drawn from, and trained under."""
    return Sampling(temperature=run.rollout.temperature, top_k=run.rollout.top_k, top_p=run.rollout.top_p)


def _channel(run: Run, weights: Path) -> tuple[Call, Call]:
    """Both ends of the way that weights take from one process to others."""
    if run.publication.transport == "disk":
        channel = Call("disk", {"directory": str(weights.absolute())})
        return channel, channel
    kind, given = run.publication.transport, {"num_receivers": run.actor_infer.num_workers}
    place = {"name": f"roll-{uuid.uuid4().hex}"} if kind == "ipc" else {"url": meeting(weights, "all")}
    return Call(kind, {**given, **place, "sends": True}), Call(kind, {**given, **place})


def around_of(run: Run, role: str) -> Surroundings:
    """Where a worker of this role computes: on what its section names in one word, else on the first it is shown."""
    devices = getattr(run, role).devices
    return Surroundings(
        place=f"{role}.devices",
        device=devices if one_device(devices) else "auto",
        threads=run.threads,
        deterministic=run.deterministic,
    )


def _layout(decoder: Decoder) -> Layout:
    """Of what travels: all of a model, or the adapters that stand beside it."""
    tensors = decoder.named_tensors() if decoder.lora is None else adapter_tensors(decoder)
    return {name: tuple(tensor.shape) for name, tensor in tensors}
