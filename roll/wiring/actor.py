"""The actor from configuration: who trains its weights, and who samples with them."""

from __future__ import annotations

import copy
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from roll.cluster.handle import Cluster, Executor
from roll.cluster.inline import InlineCluster
from roll.config.schema import NativeInfer, Optimizer, Run
from roll.engines.base import Generator, Trainer
from roll.engines.decoder import Decoder
from roll.engines.infer.native import NativeGenerator
from roll.engines.native import Surroundings, settle
from roll.engines.origin import Origin, architecture, build
from roll.engines.train.native import NativeTrainer, ScoreSettings
from roll.engines.train.native import Settings as TrainSettings
from roll.errors import ConfigError
from roll.types import Call, Sampling
from roll.weights.inline import Mailbox, Shared
from roll.weights.plan import Layout, Plan, plan
from roll.wiring.data import settings_of
from roll.wiring.generators import build_generator, generator_call, native_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the native engines of one run are made of; devices are settled by whoever computes."""

    origin: Origin
    reading: ScoreSettings
    training: TrainSettings
    around: Surroundings
    """Of the trainer, and of the models beside the actor."""


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
    )
    training = TrainSettings(
        optimizer=optimizer,
        total_steps=total_steps,
        tokens_per_microbatch=reading.tokens_per_microbatch,
        sampling=reading.sampling,
        sampling_of=reading.sampling_of,
        device=reading.device,
    )
    origin = Origin(model=run.model, seed=run.seed)
    return Parts(origin=origin, reading=reading, training=training, around=_around(run, "actor_train"))


def build_actor(run: Run, parts: Parts) -> Actor:
    """In this process: over one module at `max_staleness` 0, over two above it, or where the backend has its own."""
    if run.actor_infer.devices not in ("auto", run.actor_train.devices):
        raise ConfigError(
            f"actor_infer.devices: with executor inline it is the trainer's ({run.actor_train.devices}), "
            f"got {run.actor_infer.devices!r}; leave it out"
        )
    device, decoder = settle(parts.around), build(parts.origin)
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


def place_actor(run: Run, parts: Parts, executor: Executor, weights: Path) -> Actor:
    """In processes of an executor, which pass weights on as the run says; all of them see the folder `weights`."""
    train, infer = run.actor_train, run.actor_infer
    given = {"origin": parts.origin, "settings": parts.training, "around": parts.around}
    leaving, arriving = _channel(run, weights)
    training = Call("roll.engines.native:trainer", {**given, "channel": leaving})
    with torch.device("meta"):  # names and shapes; no process but a worker holds weights
        layout = _layout(Decoder(architecture(run.model)))
    return Actor(
        trainers=executor.cluster(training, train.workers, role="actor_train", python=train.python),
        generators=executor.cluster(
            generator_call(run, parts.origin, arriving, _around(run, "actor_infer")),
            infer.workers,
            role="actor_infer",
            python=infer.python,
        ),
        plan=plan(layout, layout, together=run.publication.transport == "gloo"),
    )


def sampling_of(run: Run) -> Sampling:
    """What rollouts are drawn from, and trained under."""
    return Sampling(temperature=run.rollout.temperature, top_k=run.rollout.top_k, top_p=run.rollout.top_p)


def _channel(run: Run, weights: Path) -> tuple[Call, Call]:
    """Both ends of the way that weights take from one process to others."""
    if run.publication.transport == "disk":
        channel = Call("disk", {"directory": str(weights.absolute())})
        return channel, channel
    meeting = f"file://{weights.absolute()}-{uuid.uuid4().hex[:8]}"  # one that an earlier process left is of no use
    given = {"url": meeting, "num_receivers": run.actor_infer.workers}
    return Call("gloo", {**given, "sends": True}), Call("gloo", given)


def _around(run: Run, role: str) -> Surroundings:
    return Surroundings(
        place=f"{role}.devices",
        device=getattr(run, role).devices,
        threads=run.threads,
        deterministic=run.deterministic,
    )


def _layout(decoder: Decoder) -> Layout:
    return {name: tuple(tensor.shape) for name, tensor in decoder.named_tensors()}
