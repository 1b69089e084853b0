"""Builds what preference optimisation and distillation share: the run with their engines, and parts of the loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roll.config.schema import Run
from roll.config.section import Section
from roll.errors import ConfigError
from roll.journal.events import WeightsPublished
from roll.journal.store import Journal
from roll.pipelines.offline import OfflineSchedule
from roll.rollout.resume import CheckpointState, ResumeState
from roll.types import Sampling
from roll.wiring.actor import sampling_of, without_quantization
from roll.wiring.data import Data
from roll.wiring.models import Roles
from roll.wiring.run import RunServices, build_publishers, build_validator


def offline_run(run: Run, section: str, changed: Mapping[str, Any], *, needs: tuple[str, ...]) -> Run:
    """The run whose engines a command needs that trains on the examples of its `section`: its name, optimizer and
    steps, and the models in `needs`. `changed` has further sections.

    Responses were not sampled by the model, so they are scored under its unmodified distribution.
    """
    if run.policies:
        raise ConfigError(f"policies: roll {section} trains one model; remove them")
    settings: Any = getattr(run, section)
    plain = {"kl": None, "correction": None, "entropy_coefficient": 0.0, "epochs": 1, "minibatches": 1}
    sections = {
        "name": f"{run.name}-{section}",
        "steps": settings.steps,
        "algorithm": run.algorithm.model_copy(update={**plain, "critic_warmup": 0, "needs": needs}),
        "actor_train": run.actor_train.model_copy(update={"optimizer": settings.optimizer}),
        "rollout": run.rollout.model_copy(update={"temperature": 1.0, "top_k": 0, "top_p": 1.0}),
        "tasks": tuple(_plain_source(source) for source in run.tasks),
        "reward_model": None,
        **changed,
    }
    result = without_quantization(run.model_copy(update=sections))
    result = result.model_copy(update={"actor_infer": result.actor_infer.model_copy(update={"lend_factor": None})})
    assert sampling_of(result) == Sampling(), "logprobs are those of the whole distribution"
    return result


def _plain_source(source: Any) -> Section:
    return source.model_copy(update={"temperature": None, "top_k": None, "top_p": None})


def build_schedule(run: Run, section: str) -> OfflineSchedule:
    """The schedule of a section."""
    settings: Any = getattr(run, section)
    return OfflineSchedule(
        section=section,
        steps=settings.steps,
        batch_size=settings.batch_size,
        validate_every=settings.validate_every,
        seed=run.seed,
    )


def build_parts(
    run: Run, roles: Roles, tasks: Data, services: RunServices, resume: ResumeState | None
) -> dict[str, Any]:
    """The arguments of an `OfflineLoop` besides its schedule."""
    publishers = build_publishers(run, roles, services, resume)
    return {
        "routers": roles.routers,
        "publishers": publishers,
        "validator": build_validator(run, roles, tasks.held_out),
        "device_sharing": next(iter(publishers.by_policy.values())).device_sharing,
        "journal": services.journal,
        "checkpointer": services.checkpointer,
        "report": services.reporter,
        "stopping": lambda: services.interrupt.requested,
    }


def resume_state(saved: CheckpointState, journal: Journal) -> ResumeState:
    """The state to resume from, which has no groups in flight."""
    published: Sequence[int] = [entry.event.version for entry in journal.events(WeightsPublished)]
    return ResumeState(
        step=saved.step,
        version=max(published, default=-1),
        step_of={},
        groups=(),
        returned=(),
        algorithm={},
        metrics=saved.metrics,
    )
