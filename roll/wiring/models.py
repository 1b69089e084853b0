"""Builds models and engines from the configuration."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import tempfile
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from roll.cluster.handle import Cluster, Executor, TakesUp, present_ranks
from roll.cluster.inline import InlineExecutor
from roll.cluster.ray.actor import WorkerSlot
from roll.cluster.ray.environment import set_ray_environment
from roll.cluster.ray.keeping import KeptWorkers
from roll.config.backends import MegatronTrain, sharded_section
from roll.config.decoder import longest_sequence, positions
from roll.config.roles import AuxiliaryModelConfig, RoleConfig
from roll.config.schema import Model, Optimizer, Run
from roll.data.templates import Template, character_tokenizer, end_tokens, load_tokenizer
from roll.engines.base import Generator, Trainer
from roll.engines.native.model_spec import Head, ModelSpec, architecture, engine_for
from roll.errors import ConfigError, RunStopped, WorkerDied
from roll.pipelines.reference_models import AuxiliaryModels
from roll.placement.records import Inventory, Placement
from roll.serving.canary import Canary
from roll.serving.counts import IdleReasons
from roll.serving.dispatch import Concurrency, Timeouts
from roll.serving.policies import Routers
from roll.serving.router import Router
from roll.tracking.startup import StartProgress
from roll.weights.channel import Transport
from roll.wiring.actor import (
    EngineSpecs,
    build_actor,
    build_canary,
    build_engine_specs,
    build_workers,
    is_sharded,
    place_actor,
    without_quantization,
    worker_context,
    worker_role,
)
from roll.wiring.monitoring import log_settings
from roll.wiring.placing import apply_placement, plan_placement

STOP_S = 10.0
"""Seconds that workers have to stop before they are killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyEngines:
    """The engines of one policy, and the router to its generators."""

    trainers: Cluster[Trainer]
    generators: Cluster[Generator]
    router: Router
    models: AuxiliaryModels = field(default_factory=AuxiliaryModels)
    transport: Transport = field(default_factory=Transport)
    canary: Canary | None = None
    """None: only digests are compared when weights are published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The engines of all policies of a run, and what they share."""

    policies: Mapping[str, PolicyEngines]
    """By name; a run with one policy names it ""."""
    template: Template
    executor: Executor = field(default_factory=InlineExecutor)
    placement: Placement = field(default_factory=lambda: Placement(inventory=Inventory(nodes=()), roles=()))
    policy_of: Mapping[str, str] = field(default_factory=dict[str, str])
    """Policy by agent; empty: the only policy plays all agents."""

    @property
    def first(self) -> PolicyEngines:
        """The first policy, which in most runs is the only one."""
        return next(iter(self.policies.values()))

    @property
    def routers(self) -> Routers:
        """The routers of all policies."""
        return Routers({name: policy.router for name, policy in self.policies.items()})

    @property
    def router_by_agent(self) -> dict[str, Router]:
        """Empty if all agents share one policy."""
        return {agent: self.policies[name].router for agent, name in self.policy_of.items()}

    async def start(self) -> None:
        """Start all workers, or none."""
        await self.executor.start()
        try:
            for name, policy in self.policies.items():
                await start_engines(policy.trainers, Trainer.start, worker_role("actor_train", name))
                await start_engines(policy.generators, Generator.start, worker_role("actor_infer", name))
                if self.taken_up:
                    await policy.generators.each(Generator.pause)
                    await policy.generators.each(Generator.abort)
                    await policy.generators.each(Generator.events, 0.0)  # outputs for the earlier controller
            for policy in self.policies.values():
                await policy.models.start()
        except BaseException:
            await self.executor.stop()
            raise

    @property
    def taken_up(self) -> Mapping[str, float]:
        """Workers of an earlier controller that this one uses, with the seconds that this took."""
        return self.executor.taken_up if isinstance(self.executor, TakesUp) else {}

    @property
    def started(self) -> Mapping[str, float]:
        """The other workers in separate processes, with the seconds that their start took."""
        return self.executor.started if isinstance(self.executor, TakesUp) else {}

    async def leave(self) -> None:
        """After an unexpected exception: leave the workers to the next controller if there is one, or stop them."""
        if isinstance(self.executor, TakesUp) and self.executor.keeps:
            self.executor.leave()
        else:
            await self.stop()

    async def stop(self) -> None:
        """Stop all workers; ones that are dead or too slow do not delay the others."""
        try:
            with contextlib.suppress(WorkerDied, RunStopped, TimeoutError):
                async with asyncio.timeout(STOP_S):
                    for policy in self.policies.values():
                        await policy.models.stop()
                    for policy in self.policies.values():
                        await policy.generators.each(Generator.stop)
                        await policy.trainers.each(Trainer.stop)
        finally:
            await self.executor.stop()


async def start_engines(cluster: Cluster[Any], start: Callable[[Any], Awaitable[None]], role: str) -> None:
    """Start all workers of a role, with progress."""
    ranks = present_ranks(cluster)
    progress = StartProgress(f"engines of {role}", len(ranks))
    await asyncio.gather(*(progress.track(cluster.at(rank, start)) for rank in ranks))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPaths:
    """Where the processes of a run write their files."""

    directory: Path
    """The run directory; logs go to its subfolder `logs`."""
    resumed: bool = False
    """Whether existing logs belong to the same run."""
    kept: KeptWorkers | None = None
    """How workers outlive the controller; None: they do not."""


def build_roles(
    run: Run,
    optimizer: Optimizer,
    total_steps: int,
    *,
    supervised: bool = False,
    paths: RunPaths | None = None,
    placement: Placement | None = None,
) -> Roles:
    """The engines of a run, not yet started.

    `supervised` leaves out quantisation and the algorithm's other models. Without `paths`, files of processes are
    kept only if one of them died. Without a `placement`, it is planned for the available devices.
    """
    run = without_quantization(run) if supervised else run
    tokenizers = {name: load_checked_tokenizer(each) for name, each in per_policy_runs(run).items()}
    first = next(iter(tokenizers.values()))
    for name, tokenizer in tokenizers.items():
        if tokenizer.get_vocab() != first.get_vocab():
            raise ConfigError(f"policies: {name}: its tokenizer differs from the first policy's; use the same one")
    placement = placement or plan_placement(run, supervised=supervised)
    if run.policies and placement.offloads:
        raise ConfigError("policies: they do not fit the device together; choose smaller models, or one policy")
    run = apply_placement(run, placement)
    executor, scratch = (InlineExecutor(), None) if run.executor == "inline" else ray_executor(run, paths, placement)
    idle_reasons, policies = IdleReasons(), dict[str, PolicyEngines]()
    for name, each in per_policy_runs(run).items():
        of_policy = each.actor_train.optimizer if run.policies else optimizer
        specs = build_engine_specs(each, of_policy, total_steps, supervised=supervised)
        specs = replace(specs, policy=name, scratch=None if scratch is None else scratch / name)
        policies[name] = _policy_engines(each, specs, tokenizers[name], executor, idle_reasons)
    return Roles(
        policies=policies,
        template=Template(first, run.model.template, model_ends(run, len(first))),
        executor=executor,
        placement=placement,
        policy_of={agent: policy.name for policy in run.policies for agent in policy.agents},
    )


def model_ends(run: Run, vocab: int) -> frozenset[int]:
    """End tokens of the policies' models; tokens that the tokenizer lacks are never sampled as such."""
    paths = [each.model.path for each in per_policy_runs(run).values() if each.model.path is not None]
    return frozenset(token for path in paths for token in end_tokens(path) if token < vocab)


def per_policy_runs(run: Run) -> dict[str, Run]:
    """The run with one policy alone, by policy: each is built as if it were the only one.

    A run without `policies` has one, named "". Seeds differ, so models built from a shape do too.
    """
    runs: dict[str, Run] = {} if run.policies else {"": run}
    for policy in run.policies:
        changed: dict[str, Any] = {"policies": (), "seed": zlib.crc32(f"{run.seed} {policy.name}".encode())}
        if policy.path is not None:
            changed["model"] = Model(path=policy.path, template=run.model.template)
        if policy.optimizer is not None:
            changed["actor_train"] = run.actor_train.model_copy(update={"optimizer": policy.optimizer})
        runs[policy.name] = run.model_copy(update=changed)
    return runs


def load_checked_tokenizer(run: Run) -> Any:
    """The tokenizer; raises `ConfigError` if the model lacks embeddings for it or positions for the run."""
    config, tokenizer = architecture(run.model), build_tokenizer(run.model)
    if len(tokenizer) > config.vocab_size:
        raise ConfigError(
            f"model.path: {run.model.path}: its tokenizer has {len(tokenizer)} tokens, "
            f"and the model {config.vocab_size} embeddings; take both from the same model, or resize the embeddings"
        )
    if run.rollout.max_seq_len > (supported := supported_length(run.model)):
        raise ConfigError(
            f"rollout.max_seq_len: the model supports {supported:g} (got {run.rollout.max_seq_len}); lower it"
        )
    return tokenizer


def supported_length(model: Model) -> float:
    """Most tokens per sequence of a model with its engine."""
    config = architecture(model).to_dict()
    return longest_sequence(config) if model.engine == "native" else positions(config)


def _policy_engines(
    run: Run, specs: EngineSpecs, tokenizer: Any, executor: Executor, idle_reasons: IdleReasons
) -> PolicyEngines:
    scratch = specs.scratch
    actor = build_actor(run, specs) if scratch is None else place_actor(run, specs, executor, scratch)
    return PolicyEngines(
        trainers=actor.trainers,
        generators=actor.generators,
        router=build_router(run, actor.generators, idle_reasons),
        models=AuxiliaryModels() if specs.supervised else build_models(run, tokenizer, specs, executor),
        transport=actor.transport,
        canary=build_canary(run),
    )


def build_router(run: Run, generators: Cluster[Generator], idle_reasons: IdleReasons) -> Router:
    """The router to the generators of one policy."""
    limit = run.rollout.concurrency
    return Router(
        generators,
        timeouts=Timeouts(request_s=run.rollout.request_timeout_s),
        concurrency=Concurrency(
            limit=None if limit == "adaptive" else limit, adaptive=limit == "adaptive", by_speed=not run.deterministic
        ),
        with_logprobs=getattr(run.actor_infer, "logprobs", True),
        idle_reasons=idle_reasons,
    )


def build_models(run: Run, tokenizer: Any, specs: EngineSpecs, executor: Executor) -> AuxiliaryModels:
    """The models besides the actor that the algorithm needs."""
    needs = run.needs

    def other(path: str | None, head: Head = "logits") -> ModelSpec:
        """The model at `path`, or without one the actor's initial model."""
        if path is None:
            return replace(specs.model_spec.without_adapters, head=head)
        num_more = 1 if head == "score" else 0  # a reward model reads the last token twice
        _check_length(path, run.rollout.max_seq_len + num_more)
        model = _same_vocabulary(path, tokenizer)
        return ModelSpec(model=model, head=head, engine=engine_for(model, run.rollout.max_seq_len + num_more))

    def frozen(role: str, section: AuxiliaryModelConfig, model_spec: ModelSpec) -> Cluster[Any]:
        context = specs.context if section.devices == "auto" else worker_context(run, role)
        kwargs = {"model_spec": model_spec, "settings": specs.other_models, "context": context}
        ranked = _ranked(run, role, section)
        kind = "teacher" if role == "teacher" and not is_sharded(ranked) else "logprob_model"
        return build_workers(kind, kwargs, ranked, role=role, executor=executor, scratch=specs.scratch)

    reference = teacher = reward_model = None
    if "reference" in needs and not run.reference_is_base:
        reference = frozen("reference", run.reference, other(run.reference.path))
    if "teacher" in needs and run.teacher is not None:
        teacher = frozen("teacher", run.teacher, other(run.teacher.path))
    if "reward_model" in needs and run.reward_model is not None:
        reward_model = frozen("reward_model", run.reward_model, other(run.reward_model.path, "score"))
    return AuxiliaryModels(
        reference=reference,
        teacher=teacher,
        critic=_critic(run, other(run.critic.path, "new score"), specs, executor) if "critic" in needs else None,
        reward_model=reward_model,
        reward_weight=1.0 if run.reward_model is None else run.reward_model.weight,
        reference_is_base="reference" in needs and run.reference_is_base,
    )


def build_tokenizer(model: Model) -> Any:
    """The tokenizer of a model directory, or one built from the alphabet of a shape."""
    if model.path is not None:
        return load_tokenizer(Path(model.path), trust_remote_code=model.trust_remote_code)
    assert model.shape is not None
    return character_tokenizer(model.shape.alphabet)


def _critic(run: Run, model_spec: ModelSpec, specs: EngineSpecs, executor: Executor) -> Cluster[Trainer]:
    """A trainer over the actor's initial model, or another, with a value head initialised to 0."""
    total_steps = run.steps * run.algorithm.num_updates
    settings = replace(specs.other_models, optimizer=run.critic.optimizer, total_steps=total_steps)
    kwargs = {"model_spec": model_spec, "settings": settings, "context": specs.context}
    section = _ranked(run, "critic", run.critic)
    return build_workers("trainer", kwargs, section, role="critic", executor=executor, scratch=specs.scratch)


def _ranked(run: Run, role: str, section: AuxiliaryModelConfig) -> RoleConfig:
    """The section of a role as that of ranks; raises `ConfigError` if the trainer's layout does not divide them."""
    ranked = sharded_section(section, run.actor_train)
    if isinstance(ranked, MegatronTrain) and (fault := ranked.ranks_fault):  # `auto` may have chosen the layout
        raise ConfigError(f"{role}.{fault}")
    return ranked


def _same_vocabulary(path: str, tokenizer: Any) -> Model:
    """The model at `path`; raises `ConfigError` unless it has the actor's vocabulary."""
    if load_tokenizer(Path(path)).get_vocab() != tokenizer.get_vocab():
        raise ConfigError(f"{path}: its tokenizer differs from the actor's; choose a model with the same one")
    return Model(path=path)


def _check_length(path: str, needed: int) -> None:
    """Raises `ConfigError` if the model at `path` has fewer positions than the run's sequences need."""
    supported = supported_length(Model(path=path))
    if needed > supported:
        raise ConfigError(
            f"{path}: the model supports {supported:g} tokens (the run needs {needed}); lower rollout.max_seq_len or "
            "choose another model"
        )


def ray_executor(run: Run, paths: RunPaths | None, placement: Placement) -> tuple[Executor, Path]:
    """The Ray executor, and the folder through which processes exchange weights. Only this function imports Ray."""
    set_ray_environment(run.ray.start_timeout_s, local=run.ray.address is None)
    from roll.cluster.ray.config import RayConfig
    from roll.cluster.ray.executor import RayExecutor

    folder = Path(tempfile.mkdtemp(prefix="roll-")) if paths is None else paths.directory
    weights, nodes = folder / "weights", placement.inventory.nodes
    site = RayConfig(
        name=run.name,
        directory=folder,
        fresh=paths is None or not paths.resumed,
        address=run.ray.address,
        start_timeout_s=run.ray.start_timeout_s,
        hang_timeout_s=run.ray.hang_timeout_s,
        logging=log_settings(run),
        scratch=folder if paths is None else weights,
        kept=None if paths is None or paths.kept is None else _kept(run, paths.kept, placement),
        most={} if run.actor_infer.max_workers is None else {"actor_infer": run.actor_infer.max_workers},
        slots={
            worker_role(each.role, policy): [
                WorkerSlot(node=nodes[worker.node].id if worker.pinned else "", visible=worker.visible)
                for worker in each.workers
            ]
            for each in placement.roles
            for policy in per_policy_runs(run)
        },
    )
    return RayExecutor(site), weights


def _kept(run: Run, kept: KeptWorkers, placement: Placement) -> KeptWorkers | None:
    """How workers are kept for the next controller; None where their state could not be made right."""
    if not run.ray.keep_workers_s or run.weight_sync.transport == "ipc" or placement.offloads:
        return None
    names = {each.role: [worker_role(each.role, policy) for policy in per_policy_runs(run)] for each in placement.roles}
    sections: dict[str, Any] = {role: getattr(run, role) for role in names}
    sharded = [role for role, each in sections.items() if is_sharded(each)]
    weights: Any = {"model": {"path", "shape"}, "policies": {"__all__": {"path"}}, "reference": {"path"}}
    return replace(
        kept,
        seconds=run.ray.keep_workers_s,
        roles=tuple(name for each in names.values() for name in each),
        together=tuple(name for role in sharded for name in names[role]),
        identity=hashlib.sha256(run.model_dump_json(exclude=weights).encode()).hexdigest(),
    )
