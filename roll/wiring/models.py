"""Models and the engines over them, from configuration."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from roll.cluster.handle import Cluster
from roll.cluster.inline import InlineCluster
from roll.config.schema import Model, Optimizer, Run
from roll.data.templates import Template, character_tokenizer, load_tokenizer
from roll.engines.base import Generator, Scorer, Trainer
from roll.engines.decoder import Decoder
from roll.engines.infer.native import NativeGenerator
from roll.engines.infer.native import Settings as InferSettings
from roll.engines.train.native import NativeScorer, NativeTrainer, ScoreSettings
from roll.engines.train.native import Settings as TrainSettings
from roll.errors import ConfigError
from roll.pipelines.scoring import Models
from roll.rollout.balance import Concurrency
from roll.rollout.router import Patience, Router
from roll.types import Sampling
from roll.weights.huggingface import config_of, read_config, read_tensors
from roll.weights.inline import Mailbox, Shared
from roll.weights.plan import Plan, plan
from roll.wiring.data import settings_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """All models behind their handles, and what they have in common."""

    trainers: Cluster[Trainer]
    generators: Cluster[Generator]
    models: Models
    plan: Plan
    router: Router
    template: Template

    async def start(self) -> None:
        await self.trainers.each(Trainer.start)
        await self.generators.each(Generator.start)
        await self.models.start()

    async def stop(self) -> None:
        await self.models.stop()
        await self.generators.each(Generator.stop)
        await self.trainers.each(Trainer.stop)


def build_roles(run: Run, optimizer: Optimizer, total_steps: int, *, supervised: bool = False) -> Roles:
    """Trainer and generator in this process: over one module at `max_staleness` 0, over two above it.

    With `supervised` the plain distribution is trained, since answers are nobody's samples, and the algorithm's other
    models are left out.
    """
    device = _device(run)
    _set_up_torch(run)
    tokenizer, decoder = build_model(run.model, seed=run.seed)
    if run.rollout.context > decoder.shape.context:
        raise ConfigError(
            f"rollout.context: the model has room for {decoder.shape.context} (got {run.rollout.context}); lower it"
        )
    reading = ScoreSettings(
        tokens_per_microbatch=run.actor_train.tokens_per_microbatch,
        sampling=Sampling() if supervised else sampling_of(run),
        sampling_of={} if supervised else {each.name: settings_of(run, each).sampling for each in run.tasks},
        device=device,
    )
    shared = run.rollout.max_staleness == 0
    served = decoder if shared else copy.deepcopy(decoder)
    channel = Shared() if shared else Mailbox()
    models = Models() if supervised else build_models(run, tokenizer, decoder, reading)
    trainer = NativeTrainer(decoder, _training(reading, optimizer, total_steps), channel)
    generator = NativeGenerator(
        served,
        InferSettings(
            slots=run.actor_infer.slots,
            context=run.rollout.context,
            prefill_tokens=run.actor_infer.prefill_tokens,
            flush_tokens=run.actor_infer.flush_tokens,
            device=device,
        ),
        channel,
    )
    generators = InlineCluster[Generator]([generator])
    layouts = [{name: tuple(tensor.shape) for name, tensor in side.named_tensors()} for side in (decoder, served)]
    return Roles(
        trainers=InlineCluster[Trainer]([trainer]),
        generators=generators,
        models=models,
        plan=plan(*layouts),
        router=build_router(run, generators),
        template=Template(tokenizer, run.model.template),
    )


def build_router(run: Run, generators: Cluster[Generator]) -> Router:
    """The one way to all generators."""
    limit = run.rollout.concurrency
    return Router(
        generators,
        patience=Patience(request_s=run.rollout.request_timeout_s),
        concurrency=Concurrency(limit=None if limit == "adaptive" else limit, adaptive=limit == "adaptive"),
    )


def build_models(run: Run, tokenizer: Any, actor: Decoder, reading: ScoreSettings) -> Models:
    """Those that the algorithm needs beside the actor, and no others."""
    needs = run.needs

    def frozen(decoder: Decoder) -> Cluster[Scorer]:
        return InlineCluster[Scorer]([NativeScorer(decoder.requires_grad_(False), reading)])

    reference = teacher = reward_model = None
    if "reference" in needs:
        reference = frozen(_read(run.reference.path, tokenizer) if run.reference.path else copy.deepcopy(actor))
    if "teacher" in needs and run.teacher is not None:
        teacher = frozen(_read(run.teacher.path, tokenizer))
    if "reward_model" in needs and run.reward_model is not None:
        reward_model = frozen(_read(run.reward_model.path, tokenizer, scored=True))
    return Models(
        reference=reference,
        teacher=teacher,
        critic=_critic(run, tokenizer, actor, reading) if "critic" in needs else None,
        reward_model=reward_model,
        reward_weight=1.0 if run.reward_model is None else run.reward_model.weight,
    )


def _critic(run: Run, tokenizer: Any, actor: Decoder, reading: ScoreSettings) -> Cluster[Trainer]:
    """A trainer over the actor's body, or over another model's, with a head that begins at 0."""
    if run.critic.path is not None:
        decoder = _read(run.critic.path, tokenizer, scored=True, headless=True)
    else:
        decoder = Decoder(actor.config, scored=True)
        decoder.load(_with_score(actor.named_tensors(), decoder), where="critic")
    num_updates = run.steps * run.algorithm.epochs * run.algorithm.minibatches
    settings = _training(reading, run.critic.optimizer, num_updates)
    return InlineCluster[Trainer]([NativeTrainer(decoder, settings, Shared())])


def _read(path: str, tokenizer: Any, *, scored: bool = False, headless: bool = False) -> Decoder:
    """A model from a directory, once it is known to speak the actor's tokens; `headless` ones get a score of 0."""
    decoder = Decoder(read_config(Path(path)), scored=scored)
    tensors = read_tensors(Path(path))
    decoder.load(_with_score(tensors, decoder) if headless else tensors, where=path)
    if load_tokenizer(Path(path)).get_vocab() != tokenizer.get_vocab():
        raise ConfigError(f"{path}: its tokenizer is not the actor's; choose a model with the same one")
    return decoder


def _with_score(tensors: Iterable[tuple[str, torch.Tensor]], decoder: Decoder) -> Iterable[tuple[str, torch.Tensor]]:
    """With a head of zeros, unless there is one, and without one for logits."""
    found = {name: tensor for name, tensor in tensors if name != "lm_head.weight"}
    assert decoder.score is not None
    return {"score.weight": torch.zeros_like(decoder.score), **found}.items()


def _training(reading: ScoreSettings, optimizer: Optimizer, total_steps: int) -> TrainSettings:
    return TrainSettings(
        optimizer=optimizer,
        total_steps=total_steps,
        tokens_per_microbatch=reading.tokens_per_microbatch,
        sampling=reading.sampling,
        sampling_of=reading.sampling_of,
        device=reading.device,
    )


def build_model(model: Model, *, seed: int) -> tuple[Any, Decoder]:
    """Tokenizer and weights: read from a directory, or made from a shape and a seed."""
    if model.path is not None:
        path = Path(model.path)
        decoder = Decoder(read_config(path))
        decoder.load(read_tensors(path), where=str(path))
        tokenizer = load_tokenizer(path)
        if len(tokenizer) > decoder.shape.vocab:
            raise ConfigError(f"{path}: its tokenizer knows {len(tokenizer)} tokens, its weights {decoder.shape.vocab}")
        return tokenizer, decoder
    assert model.shape is not None
    tokenizer = character_tokenizer(model.shape.alphabet)
    size, eos, pad, bos = len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id
    decoder = Decoder(config_of(model.shape, vocab_size=size, eos_id=eos, pad_id=pad, bos_id=bos))
    decoder.initialise(seed)
    return tokenizer, decoder


def sampling_of(run: Run) -> Sampling:
    """What rollouts are drawn from, and trained under."""
    return Sampling(temperature=run.rollout.temperature, top_k=run.rollout.top_k, top_p=run.rollout.top_p)


def _set_up_torch(run: Run) -> None:
    """What torch keeps for the whole process."""
    if run.threads:
        torch.set_num_threads(run.threads)
    if run.deterministic:
        torch.use_deterministic_algorithms(True)
        # Memory that is never read need not be the same.
        cast(Any, torch.utils.deterministic).fill_uninitialized_memory = False


def _device(run: Run) -> torch.device:
    """Where both roles live: one process has no use for two devices."""
    if run.actor_infer.devices not in ("auto", run.actor_train.devices):
        raise ConfigError(
            f"actor_infer.devices: with executor inline it is the trainer's ({run.actor_train.devices}), "
            f"got {run.actor_infer.devices!r}; leave it out"
        )
    wanted = run.actor_train.devices
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(wanted)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"actor_train.devices: no GPU is to be seen (got {wanted!r}); choose 'cpu' or 'auto'")
    if device.type == "cuda" and run.deterministic:
        raise ConfigError(
            "deterministic: backend native keeps this promise on the CPU only; set actor_train.devices=cpu"
        )
    return device
