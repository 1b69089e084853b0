"""Models and the engines over them, from configuration."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from roll.cluster.handle import Cluster, Executor
from roll.cluster.inline import InlineExecutor
from roll.cluster.ray.actor import Seat
from roll.cluster.ray.environment import settle_ray
from roll.config.roles import Beside
from roll.config.schema import Model, Optimizer, Run
from roll.data.templates import Template, character_tokenizer, load_tokenizer
from roll.engines.base import Generator, Trainer
from roll.engines.native.decoder import Decoder, geometry
from roll.engines.native.model_spec import Head, Origin, architecture, build
from roll.errors import ConfigError, RunStopped, WorkerDied
from roll.pipelines.reference_models import Models
from roll.placement.records import Inventory, Placement, RolePlace
from roll.serving.canary import Canary
from roll.serving.load_balancing import Concurrency
from roll.serving.policies import Routers
from roll.serving.router import Patience, Router
from roll.types import Call
from roll.weights.plan import Plan
from roll.wiring.actor import Parts, around_of, build_actor, build_parts, place_actor, role_of
from roll.wiring.actor import sampling_of as sampling_of
from roll.wiring.generators import build_canary
from roll.wiring.placing import placed, settled
from roll.wiring.policies import runs_of, together
from roll.wiring.ranks import spread_out

_STOP_S = 10.0
"""How long workers have to end by themselves before they are ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """All models behind their handles, and what they have in common."""

    trainers: Cluster[Trainer]
    generators: Cluster[Generator]
    models: Models
    plan: Plan
    router: Router
    template: Template
    executor: Executor = field(default_factory=InlineExecutor)
    canary: Canary | None = None
    """What every version is tried with; None: digests alone attest it."""
    placement: Placement = field(default_factory=lambda: Placement(inventory=Inventory(nodes=()), roles=()))
    """Where they live, and what is put aside when."""
    policies: Mapping[str, Roles] = field(default_factory=lambda: {})
    """By name, where a run has several; what stands above is then the first one's."""
    router_of: Mapping[str, Router] = field(default_factory=dict[str, Router])
    """By agent, where a run has several policies."""

    @property
    def each(self) -> tuple[Roles, ...]:
        """The roles of every policy."""
        return tuple(self.policies.values()) or (self,)

    @property
    def pool(self) -> Router | Routers:
        """The way to all generators, to be run and counted."""
        return Routers([roles.router for roles in self.each]) if self.policies else self.router

    async def start(self) -> None:
        """Bring everything up, or nothing."""
        await self.executor.start()
        try:
            for roles in self.each:
                await roles.trainers.each(Trainer.start)
                await roles.generators.each(Generator.start)
            await self.models.start()
        except BaseException:
            await self.executor.stop()
            raise

    async def stop(self) -> None:
        """End everything; a worker that is gone already, or does not end by itself, holds nobody up."""
        try:
            with contextlib.suppress(WorkerDied, RunStopped, TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await self.models.stop()
                    for roles in self.each:
                        await roles.generators.each(Generator.stop)
                        await roles.trainers.each(Trainer.stop)
        finally:
            await self.executor.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """Where the processes of a run leave their files."""

    directory: Path
    """The run's own; logs are in `logs` below it."""
    resumed: bool = False
    """Whether logs that are there are of the same run."""


def build_roles(
    run: Run,
    optimizer: Optimizer,
    total_steps: int,
    *,
    supervised: bool = False,
    home: Home | None = None,
    placement: Placement | None = None,
) -> Roles:
    """Trainer, generators and the models beside them, to be started and stopped.

    With `supervised` the algorithm's other models are left out. Without a `home` what processes leave is kept only
    where one of them died. Without a `placement` it is planned for the devices that there are.
    """
    tokenizers = {name: _fitting_tokenizer(each) for name, each in runs_of(run).items()}
    placement = placement or placed(run, supervised=supervised)
    run = settled(run, placement)
    executor, scratch = (InlineExecutor(), None) if run.executor == "inline" else _on_ray(run, home, placement)
    ground = Ground(executor=executor, scratch=scratch, placement=placement)
    found: dict[str, Roles] = {}
    for name, own in runs_of(run).items():
        learning = own.actor_train.optimizer if run.policies else optimizer
        parts = replace(build_parts(own, learning, total_steps, supervised=supervised), policy=name)
        found[name] = _roles(own, parts, ground, tokenizers[name])
    return together(run, found) if run.policies else found[""]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What the roles of all policies are built on."""

    executor: Executor
    scratch: Path | None
    """Where weights pass from one process to another; None where there is one process."""
    placement: Placement


def _fitting_tokenizer(run: Run) -> Any:
    """The tokenizer, once it is known that the model goes with it, and with the context of the run."""
    shape, tokenizer = geometry(architecture(run.model)), build_tokenizer(run.model)
    if len(tokenizer) > shape.vocab:
        raise ConfigError(f"{run.model.path}: its tokenizer knows {len(tokenizer)} tokens, its weights {shape.vocab}")
    if run.rollout.context > shape.context:
        raise ConfigError(
            f"rollout.context: the model has room for {shape.context} (got {run.rollout.context}); lower it"
        )
    return tokenizer


def _roles(run: Run, parts: Parts, ground: Ground, tokenizer: Any) -> Roles:
    """Those of one policy."""
    if ground.scratch is None:
        actor = build_actor(run, parts)
    else:
        weights = ground.scratch / parts.policy
        parts = replace(parts, scratch=weights)
        actor = place_actor(run, parts, ground.executor, weights)
    return Roles(
        trainers=actor.trainers,
        generators=actor.generators,
        models=Models() if parts.supervised else build_models(run, tokenizer, parts, ground.executor),
        plan=actor.plan,
        router=build_router(run, actor.generators),
        template=Template(tokenizer, run.model.template),
        executor=ground.executor,
        canary=build_canary(run),
        placement=ground.placement,
    )


def build_router(run: Run, generators: Cluster[Generator]) -> Router:
    """The one way to all generators."""
    limit = run.rollout.concurrency
    return Router(
        generators,
        patience=Patience(request_s=run.rollout.request_timeout_s),
        concurrency=Concurrency(limit=None if limit == "adaptive" else limit, adaptive=limit == "adaptive"),
        spoken=getattr(run.actor_infer, "logprobs", True),
    )


def build_models(run: Run, tokenizer: Any, parts: Parts, executor: Executor) -> Models:
    """Those that the algorithm needs beside the actor, and no others."""
    needs = run.needs

    def other(path: str | None, head: Head = "logits") -> Origin:
        """A model of its own, or the one that the actor starts from."""
        origin = parts.origin.alone if path is None else Origin(model=_alike(path, tokenizer))
        return replace(origin, head=head)

    def frozen(role: str, section: Beside, origin: Origin) -> Cluster[Any]:
        around = parts.around if section.devices == "auto" else around_of(run, role)
        given = {"origin": origin, "settings": parts.reading, "around": around}
        if section.sharded and parts.scratch is not None:
            call = Call("roll.engines.fsdp.trainer:scorer", given)
            return spread_out(call, section, role=role, executor=executor, scratch=parts.scratch)
        call = Call("roll.engines.native.build:scorer", given)
        return executor.cluster(call, section.num_workers, role=role, python=section.python)

    reference = teacher = reward_model = None
    if "reference" in needs and not run.reference_is_base:
        reference = frozen("reference", run.reference, other(run.reference.path))
    if "teacher" in needs and run.teacher is not None:
        teacher = frozen("teacher", run.teacher, other(run.teacher.path))
    if "reward_model" in needs and run.reward_model is not None:
        reward_model = frozen("reward_model", run.reward_model, other(run.reward_model.path, "score"))
    return Models(
        reference=reference,
        teacher=teacher,
        critic=_critic(run, other(run.critic.path, "new score"), parts, executor) if "critic" in needs else None,
        reward_model=reward_model,
        reward_weight=1.0 if run.reward_model is None else run.reward_model.weight,
        based="reference" in needs and run.reference_is_base,
    )


def build_tokenizer(model: Model) -> Any:
    """Read from a directory, or made from an alphabet."""
    if model.path is not None:
        return load_tokenizer(Path(model.path))
    assert model.shape is not None
    return character_tokenizer(model.shape.alphabet)


def build_model(model: Model, *, seed: int) -> tuple[Any, Decoder]:
    """Tokenizer and weights: read from a directory, or made from a shape and a seed."""
    return build_tokenizer(model), build(Origin(model=model, seed=seed))


def _critic(run: Run, origin: Origin, parts: Parts, executor: Executor) -> Cluster[Trainer]:
    """A trainer over the actor's body, or over another model's, with a head that begins at 0."""
    num_updates = run.steps * run.algorithm.epochs * run.algorithm.minibatches
    settings = replace(parts.training, optimizer=run.critic.optimizer, total_steps=num_updates)
    given = {"origin": origin, "settings": settings, "around": parts.around}
    if run.critic.sharded and parts.scratch is not None:
        call = Call("roll.engines.fsdp.trainer:trainer", given)
        return spread_out(call, run.critic, role="critic", executor=executor, scratch=parts.scratch)
    call = Call("roll.engines.native.build:trainer", given)
    return executor.cluster(call, run.critic.num_workers, role="critic", python=run.critic.python)


def _alike(path: str, tokenizer: Any) -> Model:
    """A model in a directory, once it is known to speak the actor's tokens."""
    if load_tokenizer(Path(path)).get_vocab() != tokenizer.get_vocab():
        raise ConfigError(f"{path}: its tokenizer is not the actor's; choose a model with the same one")
    return Model(path=path)


def _on_ray(run: Run, home: Home | None, placement: Placement) -> tuple[Executor, Path]:
    """The executor, and where weights pass from one process to another; this is the one place that loads Ray."""
    settle_ray()
    from roll.cluster.ray.cluster import RayExecutor, Site

    folder = Path(tempfile.mkdtemp(prefix="roll-")) if home is None else home.directory
    weights = folder / "weights"
    site = Site(
        name=run.name,
        directory=folder,
        fresh=home is None or not home.resumed,
        address=run.ray.address,
        start_timeout_s=run.ray.start_timeout_s,
        scratch=folder if home is None else weights,
        seats={
            role_of(place.role, policy): _seats(placement, place)
            for place in placement.roles
            for policy in [each.name for each in run.policies] or [""]
        },
    )
    return RayExecutor(site), weights


def _seats(placement: Placement, place: RolePlace) -> list[Seat]:
    """Where each worker of a role lives, in Ray's words."""
    nodes = placement.inventory.nodes
    return [
        Seat(node=nodes[worker.node].id if worker.pinned else "", visible=worker.visible) for worker in place.workers
    ]
