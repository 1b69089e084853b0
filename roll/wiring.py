"""The only file that turns configuration into objects. Each entry point of the command line has one function here."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import typer

from roll.checkpoint import Checkpoints
from roll.cluster.handle import Cluster
from roll.cluster.inline import InlineCluster
from roll.config.load import Loaded, dump, load
from roll.config.schema import Model, Named, Optimizer, Run
from roll.config.schema import Source as SourceConfig
from roll.data.mixture import Mixture, Part
from roll.data.templates import Template, character_tokenizer, load_tokenizer
from roll.engines.base import Generator, Trainer
from roll.engines.decoder import Decoder
from roll.engines.infer.native import NativeGenerator
from roll.engines.infer.native import Settings as InferSettings
from roll.engines.train.native import NativeTrainer
from roll.engines.train.native import Settings as TrainSettings
from roll.errors import ConfigError
from roll.journal.events import Published, RolledBack, RunEnded, RunStarted
from roll.journal.store import Journal
from roll.pipelines.interrupt import Interrupt
from roll.pipelines.keeper import Keeper
from roll.pipelines.loop import Loop, Pace, Recipe
from roll.pipelines.sft import WarmStart
from roll.preflight import importable, preflight
from roll.registry import DATASETS
from roll.rollout.buffer import Buffer
from roll.rollout.episode import EpisodeRunner, Limits
from roll.rollout.publisher import Publisher
from roll.rollout.router import Router
from roll.rollout.scheduler import Policy, Scheduler
from roll.rollout.source import Source
from roll.rollout.validator import Validator, summarise
from roll.tracking.curve import curve_from
from roll.tracking.directory import RunDirectory
from roll.tracking.progress import Progress, bar
from roll.tracking.reporter import Reporter
from roll.tracking.sinks import JsonLines, Sink, Swanlab, TensorBoard, Wandb, read_lines
from roll.types import Call, Sampling, Task, Trajectory
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


def train(loaded: Loaded, *, overwrite: bool) -> None:
    """`roll train`: a fresh run."""
    run = loaded.run
    with closing(RunDirectory.create(Path(run.directory) / run.name, overwrite=overwrite)) as directory:
        directory.config.write_text(dump(run), encoding="utf-8")
        directory.origin.write_text(str(loaded.path.parent.absolute()), encoding="utf-8")
        asyncio.run(_train(run, directory, resumed=False))


def resume(path: Path, overrides: Sequence[str]) -> None:
    """`roll resume`: go on from the newest checkpoint of a run."""
    with closing(RunDirectory.open(path)) as directory:
        if directory.origin.is_file():
            importable(Path(directory.origin.read_text(encoding="utf-8")))
        loaded = load(directory.config, overrides)
        preflight(loaded)
        asyncio.run(_train(loaded.run, directory, resumed=True))


def warm_start(loaded: Loaded, *, overwrite: bool) -> None:
    """`roll sft`: supervised training; the model is left in `<run directory>-sft/model`."""
    run = loaded.run
    with closing(RunDirectory.create(Path(run.directory) / f"{run.name}-sft", overwrite=overwrite)) as directory:
        directory.config.write_text(dump(run), encoding="utf-8")
        asyncio.run(_warm_start(run, directory))


def evaluate(loaded: Loaded, *, output: Path | None) -> None:
    """`roll eval`: the validation tasks, attempted once each with the model as it is."""
    if not loaded.run.validation.tasks:
        raise ConfigError(f"{loaded.path}: nothing to evaluate; add validation.tasks")
    asyncio.run(_evaluate(loaded.run, output))


async def _train(run: Run, directory: RunDirectory, *, resumed: bool) -> None:
    roles = build_roles(run, run.actor_train.optimizer, run.steps)
    data = build_data(run, run.tasks, roles.template)
    await roles.start()
    with ExitStack() as stack:
        interrupt = stack.enter_context(Interrupt())
        journal = stack.enter_context(closing(Journal(directory.journal)))
        keeper = build_keeper(run, directory, roles, journal)
        start = await _restore(keeper, data.mixture) if resumed else 0
        reporter = stack.enter_context(closing(build_reporter(run, directory, start if resumed else None)))
        loop = build_loop(run, roles, data, Books(journal, keeper, reporter, interrupt))
        digest = hashlib.sha256(dump(run).encode()).hexdigest()
        journal.record(RunStarted(config_digest=digest, resumed_from=start if resumed else None))
        if resumed:
            journal.record(RolledBack(to_step=start, why="resumed"))
            loop.publisher.version = max((entry.event.version for entry in journal.events(Published)), default=-1)
        finished = await loop.run(start)
        journal.record(RunEnded(step=finished, why="finished" if finished == run.steps else "interrupted"))
        if finished == run.steps:
            await keeper.export()
    await roles.stop()
    _conclude(run, directory, finished)


async def _warm_start(run: Run, directory: RunDirectory) -> None:
    roles = build_roles(run, run.sft.optimizer, run.sft.steps)
    data = build_data(run, run.sft.tasks or run.tasks, roles.template)
    await roles.start()
    with ExitStack() as stack:
        interrupt = stack.enter_context(Interrupt())
        journal = stack.enter_context(closing(Journal(directory.journal)))
        reporter = stack.enter_context(closing(build_reporter(run, directory, None, steps=run.sft.steps)))
        warm = WarmStart(
            steps=run.sft.steps,
            batch_size=run.sft.batch_size,
            validate_every=run.sft.validate_every,
            stop_at=run.sft.stop_at,
            context=run.rollout.context,
            mixture=data.mixture,
            template=roles.template,
            trainers=roles.trainers,
            publisher=build_publisher(roles, journal),
            router=roles.router,
            validator=build_validator(run, roles, data.held_out),
            report=reporter,
            stopping=lambda: interrupt.requested,
        )
        steps = await warm.run()
        path = await build_keeper(run, directory, roles, journal).export()
    await roles.stop()
    found = [line["sft/accuracy"] for line in read_lines(directory.metrics) if "sft/accuracy" in line]
    reached = f" at held-out accuracy {found[-1]:.3f}" if found else ""
    _say(f"warm start: {steps} steps{reached}; the model is in {path}")


async def _evaluate(run: Run, output: Path | None) -> None:
    roles = build_roles(run, run.actor_train.optimizer, run.steps)
    held_out = build_sources(run.validation.tasks)
    check_prompts(run, roles.template, held_out)
    await roles.start()
    validator = build_validator(run, roles, held_out)
    routing = asyncio.create_task(roles.router.run())
    await roles.router.release(0)
    with bar(validator.num_tasks, "evaluation") as advance:
        evaluating = asyncio.ensure_future(validator.run(advance))
        await asyncio.wait([routing, evaluating], return_when=asyncio.FIRST_COMPLETED)
        if routing.done():
            evaluating.cancel()
            await routing  # raises what ended it
        found = await evaluating
    routing.cancel()
    await roles.stop()
    for name, value in summarise(found).items():
        _say(f"{name.removeprefix('validation/')}: {value:.4f}")
    if output is not None:
        rows = [_row(name, trajectory, roles.template) for name, each in found.items() for trajectory in each]
        output.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        _say(f"{len(rows)} attempts: {output}")


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


def build_roles(run: Run, optimizer: Optimizer, total_steps: int) -> Roles:
    """Trainer and generator in this process: over one module at `max_staleness` 0, over two above it."""
    device = _device(run)
    if run.threads:
        torch.set_num_threads(run.threads)
    if run.deterministic:
        torch.use_deterministic_algorithms(True)
    tokenizer, decoder = build_model(run.model, seed=run.seed)
    if run.rollout.context > decoder.shape.context:
        raise ConfigError(
            f"rollout.context: the model is made for {decoder.shape.context} tokens (got {run.rollout.context}); lower it"
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
            sampling=_sampling(run),
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
    buffer = Buffer(num_slots=run.rollout.num_slots)
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


async def _restore(keeper: Keeper, mixture: Mixture) -> int:
    step, state = await keeper.restore()
    mixture.restore(state)
    return step


def _conclude(run: Run, directory: RunDirectory, finished: int) -> None:
    """The last words of a run: where things are, and what it was good for."""
    directory.curve.write_text(curve_from(directory.metrics), encoding="utf-8")
    if finished < run.steps:
        _say(f"interrupted after step {finished} of {run.steps}; go on with `roll resume {directory.path}`")
        return
    _say(f"model: {directory.path / 'model'}")
    _say(f"learning curve: {directory.curve}")
    found = [line for line in read_lines(directory.metrics) if line.get("validation/accuracy") is not None]
    if found:
        first, last = found[0]["validation/accuracy"], found[-1]["validation/accuracy"]
        _say(f"held-out accuracy: {first:.3f} -> {last:.3f}")


def _say(line: str) -> None:
    typer.echo(line)


def _row(source: str, trajectory: Trajectory, template: Template) -> dict[str, Any]:
    """One attempt, for a file that people read."""
    return {
        "source": source,
        "id": trajectory.task.id,
        "status": str(trajectory.status),
        "reason": trajectory.reason,
        "reward": trajectory.reward if trajectory.status.valid else None,
        "replies": [template.decode(turn.sampled) for turn in trajectory.turns],
    }


def _tasks(config: SourceConfig) -> Sequence[Task]:
    found: Sequence[Task] = (
        DATASETS["seeds"]() if config.data is None else DATASETS[config.data.kind](**config.data.arguments)
    )
    if config.data is not None and config.data.kind != "seeds":
        found = [replace(task, domain=config.name) for task in found]
    found = found if config.limit is None else found[: config.limit]
    if not found:
        raise ConfigError(f"tasks: source {config.name!r} has no tasks; give it some")
    return found


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
