"""The only file that turns configuration into objects. Each entry point of the command line has one function here."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from roll.checkpoint import Checkpoints
from roll.cluster.handle import Cluster
from roll.cluster.inline import InlineCluster
from roll.config.schema import Model, Named, Optimizer, Run
from roll.config.schema import Source as SourceConfig
from roll.data.mixture import Mixture, Part
from roll.data.tasks import Seeds
from roll.data.templates import Template, character_tokenizer, load_tokenizer
from roll.engines.base import Generator, Trainer
from roll.engines.decoder import Decoder
from roll.engines.infer.native import NativeGenerator
from roll.engines.infer.native import Settings as InferSettings
from roll.engines.train.native import NativeTrainer
from roll.engines.train.native import Settings as TrainSettings
from roll.errors import ConfigError
from roll.journal.store import Journal
from roll.pipelines.interrupt import Interrupt
from roll.pipelines.keeper import Keeper
from roll.pipelines.loop import Loop, Pace, Recipe
from roll.registry import DATASETS
from roll.rollout.buffer import Buffer
from roll.rollout.episode import EpisodeRunner, Limits
from roll.rollout.publisher import Publisher
from roll.rollout.router import Router
from roll.rollout.scheduler import Policy, Scheduler
from roll.rollout.source import Source
from roll.rollout.validator import Validator
from roll.tracking.directory import RunDirectory
from roll.tracking.progress import Progress, bar
from roll.tracking.reporter import Reporter
from roll.tracking.sinks import JsonLines, Sink, Swanlab, TensorBoard, Wandb
from roll.types import Call, Sampling, Task
from roll.weights.huggingface import config_of, read_config, read_tensors
from roll.weights.inline import Mailbox, Shared
from roll.weights.plan import Plan, plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """Trainer and generator behind their handles, and what they have in common."""

    trainers: Cluster[Trainer]
    generators: Cluster[Generator]
    plan: Plan
    router: Router
    template: Template

    async def start(self) -> None:
        await self.trainers.each(Trainer.start)
        await self.generators.each(Generator.start)

    async def stop(self) -> None:
        await self.generators.each(Generator.stop)
        await self.trainers.each(Trainer.stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The tasks of a run."""

    sources: list[Source]
    held_out: list[Source]
    mixture: Mixture


@dataclass(frozen=True, slots=True)
class Books:
    """What is written down about a run, and whether someone asked it to end."""

    journal: Journal
    keeper: Keeper
    reporter: Reporter
    interrupt: Interrupt


def build_roles(run: Run, optimizer: Optimizer, total_steps: int, sampling: Sampling | None = None) -> Roles:
    """Trainer and generator in this process: over one module at `max_staleness` 0, over two above it.

    `sampling` is the distribution whose logprobs are trained; by default the one rollouts are drawn from.
    """
    device = _device(run)
    _set_up_torch(run)
    tokenizer, decoder = build_model(run.model, seed=run.seed)
    if run.rollout.context > decoder.shape.context:
        raise ConfigError(
            f"rollout.context: the model has room for {decoder.shape.context} (got {run.rollout.context}); lower it"
        )
    shared = run.rollout.max_staleness == 0
    served = decoder if shared else copy.deepcopy(decoder)
    channel = Shared() if shared else Mailbox()
    trainer = NativeTrainer(
        decoder,
        TrainSettings(
            optimizer=optimizer,
            total_steps=total_steps,
            tokens_per_microbatch=run.actor_train.tokens_per_microbatch,
            sampling=sampling or _sampling(run),
            device=device,
        ),
        channel,
    )
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
        plan=plan(*layouts),
        router=Router(generators),
        template=Template(tokenizer, run.model.template),
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


def build_sources(configs: Sequence[SourceConfig]) -> list[Source]:
    """Tasks with their environments and rewards; a task's domain is its source's name."""
    return [
        Source(
            name=config.name,
            tasks=_tasks(config),
            env=_call(config.env),
            reward=None if config.reward is None else _call(config.reward),
            share=config.share,
        )
        for config in configs
    ]


def build_data(run: Run, tasks: Sequence[SourceConfig], template: Template) -> Data:
    """Everything to learn from and to be measured on, once it is known to fit the context."""
    sources, held_out = build_sources(tasks), build_sources(run.validation.tasks)
    check_prompts(run, template, [*sources, *held_out])
    parts = [Part(name=source.name, tasks=source.tasks, share=source.share) for source in sources]
    return Data(sources=sources, held_out=held_out, mixture=Mixture(parts, seed=run.seed))


def check_prompts(run: Run, template: Template, sources: Sequence[Source]) -> None:
    """Refuse prompts that leave no room for a reply, before anything starts."""
    prompts = [task for source in sources for task in source.tasks if task.messages]
    faults: list[str] = []
    with bar(len(prompts), "reading prompts") as advance:
        for task in prompts:
            length = len(template.open(task.messages, place=f"task {task.id!r}"))
            if length >= run.rollout.context:
                faults.append(
                    f"task {task.id!r} of {task.domain}: its prompt has {length} tokens and rollout.context is "
                    f"{run.rollout.context}; raise rollout.context or leave the task out"
                )
            advance(1)
    if faults:
        more = [f"and {len(faults) - 10} more prompts that are too long"] if len(faults) > 10 else []
        raise ConfigError("\n".join([*faults[:10], *more]))


def build_publisher(roles: Roles, journal: Journal) -> Publisher:
    """The version-change protocol between the roles."""
    return Publisher(
        trainers=roles.trainers,
        generators=roles.generators,
        router=roles.router,
        journal=journal,
        plan=roles.plan,
    )


def build_validator(run: Run, roles: Roles, sources: Sequence[Source]) -> Validator:
    """Held-out tasks, by the validation's own sampling."""
    limits = replace(
        _limits(run, roles.template),
        sampling=Sampling(temperature=run.validation.temperature),
        max_new_tokens=run.validation.max_new_tokens or run.rollout.max_new_tokens,
    )
    runner = EpisodeRunner(router=roles.router, template=roles.template, limits=limits)
    return Validator(sources=sources, runner=runner, seed=run.seed)


def build_keeper(run: Run, directory: RunDirectory, roles: Roles, journal: Journal) -> Keeper:
    """Checkpoints, and the tokenizer beside the journal for whoever reads it."""
    tokenizer = roles.template.tokenizer
    tokenizer.save_pretrained(directory.path / "tokenizer")
    return Keeper(
        directory=directory.path,
        checkpoints=Checkpoints(directory.path / "checkpoints", keep=run.checkpoint.keep),
        trainers=roles.trainers,
        journal=journal,
        tokenizer=tokenizer,
        best=run.checkpoint.best,
    )


def build_reporter(run: Run, directory: RunDirectory, start: int | None, steps: int | None = None) -> Reporter:
    """Terminal and sinks; with `start`, what later steps of an earlier process wrote is taken back."""
    lines = JsonLines(directory.metrics)
    if start is not None:
        lines.truncate_after(start)
    sinks: list[Sink] = [lines]
    name, about = directory.path.name, run.model_dump(mode="json")
    if run.tracking.tensorboard:
        sinks.append(TensorBoard(directory.path / "tensorboard", resumed_from=start))
    if run.tracking.wandb is not None:
        sinks.append(Wandb(run.tracking.wandb, name, directory.path / "wandb", config=about))
    if run.tracking.swanlab is not None:
        sinks.append(Swanlab(run.tracking.swanlab, name, directory.path / "swanlab", config=about))
    return Reporter(Progress(steps or run.steps, name), sinks)


def build_loop(run: Run, roles: Roles, data: Data, books: Books) -> Loop:
    """The reinforcement learning loop with all its parts."""
    buffer = Buffer(num_slots=run.rollout.num_slots, first_ticket=books.journal.last_group() + 1)
    publisher = build_publisher(roles, books.journal)
    runner = EpisodeRunner(router=roles.router, template=roles.template, limits=_limits(run, roles.template))
    scheduler = Scheduler(
        mixture=data.mixture,
        sources={source.name: source for source in data.sources},
        runner=runner,
        buffer=buffer,
        journal=books.journal,
        policy=Policy(
            group_size=run.rollout.group_size,
            max_retries=run.rollout.max_retries,
            max_failed_groups=run.rollout.max_failed_groups,
            seed=run.seed,
        ),
        version=lambda: publisher.version,
    )
    return Loop(
        pace=Pace(
            steps=run.steps,
            groups_per_step=run.rollout.groups_per_step,
            validate_every=run.validation.every,
            validate_at_start=run.validation.at_start,
            checkpoint_every=run.checkpoint.every,
            keep_steps=run.journal.keep_steps,
            max_refused=run.actor_train.optimizer.max_refused,
        ),
        recipe=Recipe(
            advantage=_call(run.algorithm.advantage),
            loss=_call(run.algorithm.loss),
            aggregation=_call(run.algorithm.aggregation),
        ),
        scheduler=scheduler,
        buffer=buffer,
        router=roles.router,
        trainers=roles.trainers,
        publisher=publisher,
        validator=build_validator(run, roles, data.held_out),
        journal=books.journal,
        keeper=books.keeper,
        report=books.reporter,
        stopping=lambda: books.interrupt.requested,
    )


def _tasks(config: SourceConfig) -> Sequence[Task]:
    found: Sequence[Task] = (
        DATASETS["seeds"]() if config.data is None else DATASETS[config.data.kind](**config.data.arguments)
    )
    found = found if config.limit is None else found[: config.limit]
    if not found:
        raise ConfigError(f"tasks: source {config.name!r} has no tasks; give it some")
    if isinstance(found, Seeds):
        return found.within(config.name)
    return [replace(task, domain=config.name) for task in found]


def _limits(run: Run, template: Template) -> Limits:
    known = template.tokenizer.get_vocab()
    if unknown := [token for token in run.rollout.stop if token not in known]:
        raise ConfigError(f"rollout.stop: the tokenizer has no token {unknown[0]!r}; name tokens, not text")
    return Limits(
        sampling=_sampling(run),
        context=run.rollout.context,
        max_new_tokens=run.rollout.max_new_tokens,
        max_turns=run.rollout.max_turns,
        stop=template.eos_ids | {known[token] for token in run.rollout.stop},
    )


def _sampling(run: Run) -> Sampling:
    return Sampling(temperature=run.rollout.temperature, top_k=run.rollout.top_k, top_p=run.rollout.top_p)


def _call(named: Named) -> Call:
    return Call(named.kind, named.arguments)


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
