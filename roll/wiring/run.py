"""Builds the loop and its parts from the configuration."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, cast

from rich.console import Console

from roll.algorithms.credit import AlgorithmState
from roll.algorithms.recipe import Need, Recipe
from roll.checkpoint import Checkpoints
from roll.cluster.handle import Cluster
from roll.cluster.pending import HasPendingCalls, describe_pending, stopped_workers
from roll.config.algorithm import Algorithm
from roll.config.backends import RANKED
from roll.config.schema import Run, TaskSourceConfig
from roll.data.templates import Template
from roll.engines.base import Trainer
from roll.journal.records import IDLE
from roll.journal.store import Activity, Journal
from roll.pipelines.checkpointer import Checkpointer
from roll.pipelines.interrupt import Interrupt
from roll.pipelines.learner import Learner, Learners
from roll.pipelines.loop import Loop, LoopSchedule
from roll.pipelines.ratio import build_ratio_recorder
from roll.report.held_out import HELD_OUT, save_attempts
from roll.rollout.episode.demonstration import Demonstrator
from roll.rollout.episode.runner import EpisodeRunner
from roll.rollout.resume import ResumeState
from roll.rollout.source import TaskSource
from roll.rollout.validation import Validator
from roll.serving.lending import Lender
from roll.serving.lent_devices import LentDevices
from roll.serving.policies import Publishers
from roll.serving.publisher import Publisher
from roll.tracking.callbacks import Callbacks, build_sinks
from roll.tracking.directory import RunDirectory
from roll.tracking.grace import GraceCheck
from roll.tracking.meter import Meter
from roll.tracking.phases import PhaseWatch
from roll.tracking.progress import Progress, Reporter
from roll.tracking.sinks import JsonLines, Sink, Swanlab, TensorBoard, Wandb
from roll.types import Sampling
from roll.wiring.data import Data
from roll.wiring.hacks import build_hack_detector
from roll.wiring.models import PolicyEngines, Roles
from roll.wiring.notices import build_notice_recorder
from roll.wiring.placing import build_device_sharing
from roll.wiring.proxy import connect_proxy
from roll.wiring.recovery import build_elastic, recover_models, replacement_policy
from roll.wiring.rollout import build_scheduler, episode_limits

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class RunServices:
    """The journal, checkpoints and reports of a run, and the user's request to stop it."""

    journal: Journal
    checkpointer: Checkpointer
    reporter: Reporter
    interrupt: Interrupt
    watch: PhaseWatch = field(default_factory=PhaseWatch)
    """Warns of slow phases once it is entered."""


def build_publisher(policy: PolicyEngines, journal: Journal, name: str = "") -> Publisher:
    """Weight synchronisation between the engines of one policy."""
    return Publisher(
        policy=name,
        trainers=policy.trainers,
        generators=policy.generators,
        router=policy.router,
        journal=journal,
        transport=policy.transport,
        canary=policy.canary,
    )


def build_watch(run: Run, roles: Roles, data: Data) -> PhaseWatch:
    """Warnings about slow phases, with the workers that they wait for."""
    services = [each for each in (roles.executor, data.rewards, data.envs) if isinstance(each, HasPendingCalls)]
    describe, stopped = partial(describe_pending, services), partial(stopped_workers, services)
    return PhaseWatch(run.tracking.slow_phase_s, describe, stopped=stopped)


def build_validator(run: Run, roles: Roles, sources: Sequence[TaskSource]) -> Validator:
    """The validator on `sources`, with the sampling of the section `validation`."""
    limits = replace(
        episode_limits(run, roles.template),
        sampling=Sampling(temperature=run.validation.temperature),
        max_new_tokens=run.validation.max_new_tokens or run.rollout.max_new_tokens,
    )
    runner = EpisodeRunner(
        router=roles.first.router, template=roles.template, limits=limits, router_by_agent=roles.router_by_agent
    )
    return Validator(sources=sources, runner=runner, seed=run.seed, samples=run.validation.samples)


def build_demonstrator(run: Run, template: Template) -> Demonstrator | None:
    """The scripted agent that plays tasks for SFT, if the run has one."""
    if run.sft.scripted_agent is None:
        return None
    limits = episode_limits(run, template)
    return Demonstrator(
        agent=run.sft.scripted_agent.spec,
        template=template,
        stop=limits.stop,
        max_seq_len=limits.max_seq_len,
        max_turns=limits.max_turns,
    )


def build_checkpointer(
    run: Run, directory: RunDirectory, roles: Roles, journal: Journal, *on_saved: Callable[[int, Path], None]
) -> Checkpointer:
    """The checkpointer of a run. Also saves the tokenizer next to the journal, for readers of the journal."""
    paths = {policy.name: policy.path for policy in run.policies if policy.path is not None}
    origins = {name: paths.get(name, run.model.path) for name in roles.policies}
    roots = {name: Path(path) for name, path in origins.items() if path is not None}
    trainers = {name: policy.trainers for name, policy in roles.policies.items()}
    tokenizer = save_tokenizer(directory, roles.template)
    checkpointer = checkpointer_of(run, directory, trainers, journal, tokenizer)
    return replace(checkpointer, critic=roles.first.models.critic, origins=roots, on_saved=on_saved)


def save_tokenizer(directory: RunDirectory, template: Template) -> Any:
    """The tokenizer, which is also saved next to the journal, for readers of the journal."""
    template.tokenizer.save_pretrained(directory.path / "tokenizer")
    return template.tokenizer


def checkpointer_of(
    run: Run, directory: RunDirectory, trainers: Mapping[str, Cluster[Trainer]], journal: Journal, tokenizer: Any
) -> Checkpointer:
    """The checkpointer of trainers by policy; `tokenizer` is saved with every model."""
    return Checkpointer(
        directory=directory.path,
        checkpoints=Checkpoints(directory.path / "checkpoints", keep=run.checkpoint.keep),
        trainers=trainers,
        critic=None,
        journal=journal,
        tokenizer=tokenizer,
        best=run.checkpoint.best_metric,
        async_save=isinstance(run.actor_train, RANKED),
        every=run.checkpoint.every,
        every_s=60 * (run.checkpoint.every_minutes or math.inf),
    )


def build_reporter(
    run: Run,
    directory: RunDirectory,
    resume: ResumeState | None = None,
    *,
    steps: int | None = None,
    callbacks: Callbacks | None = None,
    sinks: Sequence[Sink] = (),
) -> Reporter:
    """Terminal output unless the callbacks are quiet, sinks and callbacks.

    A resumed run removes what an earlier process wrote for later steps. It also writes the metrics of its checkpoint if
    the earlier process was killed before it did.
    """
    lines = JsonLines(directory.metrics)
    start = None if resume is None else resume.step
    missing = resume is not None and not lines.truncate_after(resume.step)
    all_sinks: list[Sink] = [lines]
    name, config = directory.path.name, run.model_dump(mode="json")
    if run.tracking.tensorboard:
        all_sinks.append(TensorBoard(directory.path / "tensorboard", resumed_from=start))
    if run.tracking.wandb is not None:
        all_sinks.append(Wandb(run.tracking.wandb, name, directory.path / "wandb", config=config))
    if run.tracking.swanlab is not None:
        all_sinks.append(Swanlab(run.tracking.swanlab, name, directory.path / "swanlab", config=config))
    all_sinks += [*build_sinks(section.spec for section in run.tracking.sinks), *sinks]
    if callbacks is not None:
        callbacks.start(directory.path, start or 0)
        all_sinks.append(callbacks)
    progress = Progress(steps or run.steps, name, console=Console(quiet=callbacks is not None and callbacks.quiet))
    if run.interrupt.grace_s is not None:
        all_sinks.append(GraceCheck(run.interrupt.grace_s, progress.note))
    reporter = Reporter(progress, all_sinks)
    if resume is not None and missing:
        reporter(resume.step, resume.metrics)
    return reporter


def build_recipe(algorithm: Algorithm, tasks: Sequence[TaskSourceConfig] = ()) -> Recipe:
    """The algorithm as a recipe, including the deviations of the domains of `tasks`."""
    algorithms = {source.name: source.algorithm for source in tasks if source.algorithm is not None}
    domains = {
        name: replace(_recipe(algorithm.within(each)), weight=each.loss_weight) for name, each in algorithms.items()
    }
    return replace(_recipe(algorithm), domains=domains)


def _recipe(algorithm: Algorithm) -> Recipe:
    return Recipe(
        filters=tuple(each.spec for each in algorithm.filters),
        shaping=tuple(each.spec for each in algorithm.shaping),
        kl=algorithm.kl,
        advantage=algorithm.advantage.spec,
        whiten=algorithm.whiten,
        advantage_clip=algorithm.advantage_clip,
        advantage_weights=tuple(each.spec for each in algorithm.advantage_weights),
        masks=tuple(each.spec for each in algorithm.masks),
        correction=algorithm.correction and algorithm.correction.spec,
        loss=algorithm.loss.spec,
        entropy=algorithm.entropy_coefficient,
        aggregation=algorithm.aggregation.spec,
        value_loss=algorithm.value_loss.spec,
        epochs=algorithm.epochs,
        minibatches=algorithm.minibatches,
        critic_warmup=algorithm.critic_warmup,
        needs=cast("frozenset[Need]", algorithm.all_needs),
    )


def build_loop(run: Run, roles: Roles, data: Data, services: RunServices, resume: ResumeState | None = None) -> Loop:
    """The reinforcement learning loop with all its parts, fresh or continued from `resume`."""
    publishers = build_publishers(run, roles, services, resume)
    recover_models(run, roles, services.journal, services.reporter.note)
    scheduler = build_scheduler(run, roles, data, services.journal, services.reporter.note, publishers.serving)
    if resume is not None:
        scheduler.returned.extend(resume.returned)
    meter, phase_observers = Meter(), (_record_activities(roles, services.journal), services.watch.enter)
    meter.on_phase = partial(_each, phase_observers)
    data.rewards.record_activity(services.journal)
    segment_breaks = scheduler.runner.segment_breaks
    proxy_counts = connect_proxy(data.proxy, services.reporter.note)
    directory, resumed = services.checkpointer.directory, resume is not None
    step = None if resume is None else resume.step
    ratio = build_ratio_recorder(run.rollout, scheduler.buffer, roles.routers, services.journal, step)
    notices = build_notice_recorder(run, services.journal, directory, step)
    observers = (services.reporter, notices.observe, ratio.observe)
    detector = build_hack_detector(run, roles.template, services.journal, directory, resumed=resumed)
    loop = Loop(
        meter=meter,
        schedule=LoopSchedule(
            steps=run.steps,
            groups_per_step=run.rollout.groups_per_step,
            validate_every=run.validation.every,
            validate_at_start=run.validation.at_start,
            keep_steps=run.journal.keep_steps,
        ),
        scheduler=scheduler,
        buffer=scheduler.buffer,
        routers=roles.routers,
        learners=build_learners(run, roles, services, publishers, resume),
        publishers=publishers,
        validator=build_validator(run, roles, data.held_out),
        journal=services.journal,
        checkpointer=services.checkpointer,
        report=partial(_each, observers),
        notice=services.reporter.note,
        stopping=lambda: services.interrupt.requested,
        counts=lambda: segment_breaks.drain() | data.envs.drain_counts() | proxy_counts() | ratio.metrics(),
        inspect=detector.inspect,
        save_attempts=partial(save_attempts, directory / HELD_OUT, roles.template.decode),
    )
    services.watch.details["wait"] = loop.describe_wait
    services.watch.details["checkpoint"] = services.checkpointer.describe_wait
    return loop


def _each(observers: Sequence[Callable[P, None]], *args: P.args, **kwargs: P.kwargs) -> None:
    for observe in observers:
        observe(*args, **kwargs)


def build_publishers(run: Run, roles: Roles, services: RunServices, resume: ResumeState | None) -> Publishers:
    """Weight synchronisation of every policy, with offloading and replacement of dead generators."""
    publishers: dict[str, Publisher] = {}
    for name, policy in roles.policies.items():
        clusters = {"actor_train": policy.trainers, "actor_infer": policy.generators, **policy.models.by_role()}
        sharing = build_device_sharing(
            roles.placement, clusters, policy.router, services.journal, run.actor_infer.lend_factor
        )
        num_lent = len(policy.router.lent)
        replacement = replacement_policy(run, policy.generators, services.reporter.note, num_lent=num_lent)
        publishers[name] = replace(
            build_publisher(policy, services.journal, name),
            device_sharing=sharing,
            replacement=replacement,
            version=-1 if resume is None else resume.version,
            step_of={} if resume is None else dict(resume.step_of),
        )
        if replacement is not None:
            policy.router.replace_generator = publishers[name].replace_generator
    first, directory = next(iter(publishers.values())), services.checkpointer.directory
    devices = first.device_sharing
    note = services.reporter.note
    lender = Lender(devices=devices, publisher=first, notice=note) if isinstance(devices, LentDevices) else None
    return Publishers(publishers, build_elastic(run, first, directory, note), lender)


def build_learners(
    run: Run, roles: Roles, services: RunServices, publishers: Publishers, resume: ResumeState | None
) -> Learners:
    """The learners of all policies that are not frozen."""
    recipe, frozen = build_recipe(run.algorithm, run.tasks), {policy.name for policy in run.policies if policy.frozen}
    initial = AlgorithmState(kl_coefficient=recipe.kl.coefficient if recipe.kl else 0.0)
    states: Mapping[str, AlgorithmState] = {} if resume is None else resume.algorithm
    learners = {
        name: Learner(
            recipe=recipe,
            actor=policy.trainers,
            models=policy.models,
            journal=services.journal,
            checkpointer=services.checkpointer,
            max_nonfinite_updates=run.actor_train.optimizer.max_nonfinite_updates,
            seed=run.seed,
            state=states.get(name, initial),
            device_sharing=publishers.by_policy[name].device_sharing,
            name=name,
            notice=services.reporter.note,
        )
        for name, policy in roles.policies.items()
        if name not in frozen
    }
    return Learners(by_policy=learners, policy_of=roles.policy_of)


def _record_activities(roles: Roles, journal: Journal) -> Callable[[str], None]:
    """Record the activities of all workers in the journal; the callback for phases of the loop, as the trainer's."""
    trainer, generators = Activity(journal, "trainer-0"), list[Activity]()
    for policy in roles.policies.values():  # generators are numbered across policies
        ranks = range(policy.generators.size)
        activities = [Activity(journal, f"generator-{len(generators) + rank}") for rank in ranks]
        policy.router.activities.start(activities)
        generators += [each for rank, each in enumerate(activities) if rank not in policy.router.absent]
    for activity in (*generators, trainer):
        activity.enter(f"{IDLE}the start")
    idle_reasons = {"wait": "groups", "validate": "validation", "": "the controller"}

    def on_phase(phase: str) -> None:
        trainer.enter(IDLE + idle_reasons[phase] if phase in idle_reasons else phase)

    return on_phase
