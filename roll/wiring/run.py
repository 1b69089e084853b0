"""The parts of a run, from configuration."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from roll.algorithms.credit import Memory
from roll.algorithms.recipe import Kl, Need, Recipe
from roll.checkpoint import Checkpoints
from roll.cluster.handle import Replacing
from roll.config.algorithm import Algorithm
from roll.config.fsdp import FsdpTrain
from roll.config.schema import Run
from roll.config.schema import Source as SourceConfig
from roll.data.templates import Template
from roll.errors import ConfigError
from roll.journal.activity import Activity
from roll.journal.records import IDLE
from roll.journal.store import Journal
from roll.pipelines.checkpointer import Keeper
from roll.pipelines.interrupt import Interrupt
from roll.pipelines.learner import Learner
from roll.pipelines.loop import Loop, Pace
from roll.pipelines.policies import Learners
from roll.proxy.server import Proxy
from roll.rollout.buffer import Buffer
from roll.rollout.episode.conversation import Cuts
from roll.rollout.episode.demonstration import Demonstrator
from roll.rollout.episode.runner import EpisodeRunner, Limits
from roll.rollout.scheduler import Policy, Scheduler
from roll.rollout.source import Source
from roll.rollout.validation import Validator
from roll.serving.policies import Publishers
from roll.serving.publisher import Publisher, Spare
from roll.tracking.directory import RunDirectory
from roll.tracking.meter import Meter
from roll.tracking.progress import Progress
from roll.tracking.reporter import Reporter
from roll.tracking.sinks import JsonLines, Sink, Swanlab, TensorBoard, Wandb
from roll.types import Sampling
from roll.wiring.data import Data, call_of
from roll.wiring.models import Roles, sampling_of
from roll.wiring.placing import build_turns
from roll.wiring.policies import policy_of


@dataclass(frozen=True, slots=True)
class Books:
    """What is written down about a run, and whether someone asked it to end."""

    journal: Journal
    keeper: Keeper
    reporter: Reporter
    interrupt: Interrupt


def build_publisher(roles: Roles, journal: Journal, policy: str = "") -> Publisher:
    """The version-change protocol between the roles, of one policy where there are several."""
    return Publisher(
        policy=policy,
        trainers=roles.trainers,
        generators=roles.generators,
        router=roles.router,
        journal=journal,
        plan=roles.plan,
        canary=roles.canary,
    )


def build_validator(run: Run, roles: Roles, sources: Sequence[Source]) -> Validator:
    """Held-out tasks, by the validation's own sampling."""
    limits = replace(
        _limits(run, roles.template),
        sampling=Sampling(temperature=run.validation.temperature),
        max_new_tokens=run.validation.max_new_tokens or run.rollout.max_new_tokens,
    )
    runner = EpisodeRunner(router=roles.router, template=roles.template, limits=limits, router_of=roles.router_of)
    return Validator(sources=sources, runner=runner, seed=run.seed, samples=run.validation.samples)


def build_demonstrator(run: Run, template: Template) -> Demonstrator | None:
    """Who plays the tasks of a warm start, if anyone does."""
    if run.sft.player is None:
        return None
    limits = _limits(run, template)
    return Demonstrator(
        player=call_of(run.sft.player),
        template=template,
        stop=limits.stop,
        context=limits.context,
        max_turns=limits.max_turns,
    )


def build_keeper(run: Run, directory: RunDirectory, roles: Roles, journal: Journal) -> Keeper:
    """Checkpoints, and the tokenizer beside the journal for whoever reads it."""
    tokenizer = roles.template.tokenizer
    tokenizer.save_pretrained(directory.path / "tokenizer")
    return Keeper(
        directory=directory.path,
        checkpoints=Checkpoints(directory.path / "checkpoints", keep=run.checkpoint.keep),
        trainers=roles.trainers,
        critic=roles.models.critic,
        journal=journal,
        tokenizer=tokenizer,
        best=run.checkpoint.best,
        policies={name: each.trainers for name, each in roles.policies.items()},
        aside=isinstance(run.actor_train, FsdpTrain) and not roles.policies,
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


def build_recipe(algorithm: Algorithm, tasks: Sequence[SourceConfig] = ()) -> Recipe:
    """The algorithm as data that the loop reads, with what the domains of `tasks` do otherwise."""
    own = {source.name: source.algorithm for source in tasks if source.algorithm is not None}
    domains = {name: replace(_recipe(algorithm.within(each)), weight=each.weight) for name, each in own.items()}
    return replace(_recipe(algorithm), domains=domains)


def _recipe(algorithm: Algorithm) -> Recipe:
    kl = algorithm.kl
    return Recipe(
        filters=tuple(map(call_of, algorithm.filters)),
        shaping=tuple(map(call_of, algorithm.shaping)),
        kl=kl
        and Kl(
            estimator=call_of(kl.estimator),
            coefficient=kl.coefficient,
            place=kl.place,
            target=kl.target,
            horizon=kl.horizon,
        ),
        advantage=call_of(algorithm.advantage),
        whiten=algorithm.whiten,
        clip=algorithm.clip,
        emphasis=tuple(map(call_of, algorithm.emphasis)),
        masks=tuple(map(call_of, algorithm.masks)),
        correction=algorithm.correction and call_of(algorithm.correction),
        loss=call_of(algorithm.loss),
        entropy=algorithm.entropy,
        aggregation=call_of(algorithm.aggregation),
        value_loss=call_of(algorithm.value_loss),
        epochs=algorithm.epochs,
        minibatches=algorithm.minibatches,
        critic_warmup=algorithm.critic_warmup,
        needs=cast("frozenset[Need]", algorithm.all_needs),
    )


def build_scheduler(
    run: Run, recipe: Recipe, roles: Roles, data: Data, books: Books, publisher: Publisher | Publishers
) -> Scheduler:
    """Admission and the life of every attempt, with the buffer that bounds its age."""
    limits = _limits(run, roles.template)
    return Scheduler(
        mixture=data.mixture,
        sources={source.name: source for source in data.sources},
        runner=EpisodeRunner(
            router=roles.router,
            template=roles.template,
            limits=limits,
            router_of=roles.router_of,
            cuts=Cuts(notice=books.reporter.note),
            limits_of={
                name: replace(limits, sampling=each.sampling, max_new_tokens=each.max_new_tokens)
                for name, each in data.settings.items()
            },
        ),
        buffer=Buffer(
            num_slots=run.rollout.num_slots,
            first_ticket=books.journal.last_group() + 1,
            redundant=run.rollout.redundant_groups,
            max_age=math.ceil(run.rollout.max_staleness),
        ),
        journal=books.journal,
        policy=Policy(
            group_size=run.rollout.group_size,
            max_retries=run.rollout.max_retries,
            max_failed_groups=run.rollout.max_failed_groups,
            max_filtered_groups=run.rollout.max_filtered_groups,
            filters=recipe.filters,
            filters_of={name: each.filters for name, each in data.settings.items()},
            redundant_groups=run.rollout.redundant_groups,
            redundant_siblings=run.rollout.redundant_siblings,
            seed=run.seed,
        ),
        serving=publisher.serving,
        notice=books.reporter.note,
    )


def build_loop(run: Run, roles: Roles, data: Data, books: Books, memory: Memory | None = None) -> Loop:
    """The reinforcement learning loop with all its parts; `memory` is that of the checkpoint it goes on from."""
    recipe = build_recipe(run.algorithm, run.tasks)
    publisher, learner = _learning(run, recipe, roles, books, memory)
    scheduler = build_scheduler(run, recipe, roles, data, books, publisher)
    meter = Meter()
    meter.tell = _write_down(roles, books.journal)
    data.scorer.write_down(books.journal)
    return Loop(
        meter=meter,
        pace=Pace(
            steps=run.steps,
            groups_per_step=run.rollout.groups_per_step,
            validate_every=run.validation.every,
            validate_at_start=run.validation.at_start,
            checkpoint_every=run.checkpoint.every,
            keep_steps=run.journal.keep_steps,
        ),
        scheduler=scheduler,
        buffer=scheduler.buffer,
        router=roles.pool,
        learner=learner,
        publisher=publisher,
        validator=build_validator(run, roles, data.held_out),
        journal=books.journal,
        keeper=books.keeper,
        report=books.reporter,
        notice=books.reporter.note,
        stopping=lambda: books.interrupt.requested,
        counts=lambda: scheduler.runner.cuts.drain() | data.envs.drain_counts() | _asked(data.proxy),
    )


def _asked(proxy: Proxy | None) -> dict[str, float]:
    """What agents asked since the last call, where there are some."""
    return {} if proxy is None else proxy.drain_counts()


def _learning(
    run: Run, recipe: Recipe, roles: Roles, books: Books, memory: Memory | None
) -> tuple[Publisher | Publishers, Learner | Learners]:
    """Who learns, and who brings to the generators what was learned: of one policy, or of each."""
    if not roles.policies:
        return _one_learning(run, recipe, roles, books, memory)
    before = (memory or Memory()).policies
    found = {
        name: _one_learning(run, recipe, each, books, before.get(name), policy=name)
        for name, each in roles.policies.items()
    }
    frozen = {policy.name for policy in run.policies if policy.frozen}
    learners = {name: learner for name, (_, learner) in found.items() if name not in frozen}
    publishers = {name: publisher for name, (publisher, _) in found.items()}
    return Publishers(publishers=publishers), Learners(learners=learners, policy_of=policy_of(run))


def _one_learning(
    run: Run, recipe: Recipe, roles: Roles, books: Books, memory: Memory | None, policy: str = ""
) -> tuple[Publisher, Learner]:
    publisher = build_publisher(roles, books.journal, policy)
    clusters = {"actor_train": roles.trainers, "actor_infer": roles.generators, **roles.models.by_role()}
    publisher.turns = build_turns(roles.placement, clusters, roles.router)
    _provide(publisher, run, roles, books)
    learner = Learner(
        recipe=recipe,
        actor=roles.trainers,
        models=roles.models,
        journal=books.journal,
        keeper=books.keeper,
        max_refused=run.actor_train.optimizer.max_refused,
        seed=run.seed,
        memory=memory or Memory(kl_coefficient=recipe.kl.coefficient if recipe.kl else 0.0),
        turns=publisher.turns,
        name=policy,
        notice=books.reporter.note,
    )
    return publisher, learner


def _provide(publisher: Publisher, run: Run, roles: Roles, books: Books) -> None:
    """Let generators that die be replaced, where there is someone to do it."""
    generators = roles.generators
    if isinstance(generators, Replacing) and run.ray.max_replaced:
        publisher.spare = Spare(replace=generators.replace, most=run.ray.max_replaced, notice=books.reporter.note)
        roles.router.mend = publisher.mend


def _write_down(roles: Roles, journal: Journal) -> Callable[[str], None]:
    """What every worker does goes into the journal; gives who is told what the loop, and so the trainer, does."""
    trainer, generators = Activity(journal, "trainer-0"), list[Activity]()
    for each in roles.each:  # generators are counted over all policies
        own = [Activity(journal, f"generator-{len(generators) + rank}") for rank in range(each.generators.size)]
        each.router.activities = own
        generators += own
    for activity in (*generators, trainer):
        activity.enter(f"{IDLE}the start")
    waits = {"wait": "groups", "validate": "validation", "": "the controller"}

    def tell(phase: str) -> None:
        trainer.enter(IDLE + waits[phase] if phase in waits else phase)

    return tell


def _limits(run: Run, template: Template) -> Limits:
    known = template.tokenizer.get_vocab()
    if unknown := [token for token in run.rollout.stop if token not in known]:
        raise ConfigError(f"rollout.stop: the tokenizer has no token {unknown[0]!r}; name tokens, not text")
    return Limits(
        sampling=sampling_of(run),
        context=run.rollout.context,
        max_new_tokens=run.rollout.max_new_tokens,
        max_turns=run.rollout.max_turns,
        env_s=run.rollout.env_timeout_s,
        drop_oldest=run.rollout.context_policy == "drop_oldest",
        per_turn=run.rollout.segment_per == "turn",
        stop=template.eos_ids | {known[token] for token in run.rollout.stop},
    )
