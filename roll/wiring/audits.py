"""Builds the subjects of a reward audit from the configuration: each reward of a source, scored as in training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from roll.config.reward import Reward
from roll.config.sources import TaskSourceConfig
from roll.rewards.audit import COSTLY, SHAPES, AuditSubject, built_in_name
from roll.rewards.base import RewardService
from roll.rewards.result import RewardResult
from roll.types import Score, Spec, Task


def audit_subjects(
    config: TaskSourceConfig, tasks: Sequence[Task], service: RewardService, *, costly: bool = False, own: bool = True
) -> list[AuditSubject]:
    """What there is to audit of one source: each of its rewards, scored by the service that training uses.

    Without `costly`, no reward that calls a model or a service is called; without `own`, no reward of the user's.
    """

    path: Any = None if config.data is None else config.data.kwargs.get("path", config.data.kind)
    where = config.name if path is None else str(path)
    if config.reward is None:
        reason = f"the {'environment' if config.agent is None else 'agent'} gives the rewards"
        return [AuditSubject(domain=config.name, where=where, reward="-", kind="", skipped=reason)]

    def reason_for(kind: str) -> str:
        if kind in COSTLY and not costly:
            return "skipped: calls a model or a service; add --all"
        return "skipped: your own reward" if ":" in kind and not own else ""

    scored = _without(config.reward, reason_for)
    subjects: list[AuditSubject] = []
    for entry in config.reward.entries:
        kind, title = built_in_name(entry.kind), getattr(entry, "title", entry.kind)
        skipped = f"not a verifier: {SHAPES[kind]}" if kind in SHAPES else reason_for(kind)
        part = title if config.reward.rewards else None
        score = None if skipped or scored is None else partial(_score, service, scored, part)
        subjects.append(
            AuditSubject(
                domain=config.name, where=where, reward=title, kind=kind, tasks=tasks, score=score, skipped=skipped
            )
        )
    return subjects


async def _score(service: RewardService, reward: Spec, part: str | None, task: Task, response: str) -> RewardResult:
    """The result of a reward, or of one entry of a list of rewards."""

    result = await service.score(reward, task, response)
    if part is None or result.score is None:
        return result
    return RewardResult.from_score(Score(result.score.parts[part]))


def _without(reward: Reward, reason_for: Callable[[str], str]) -> Spec | None:
    """The reward without the entries that are skipped for a reason; None if there is no other."""
    called = [entry for entry in reward.entries if not reason_for(built_in_name(entry.kind))]
    if len(called) == len(reward.entries):
        return reward.spec
    return reward.model_copy(update={"rewards": tuple(called)}).spec if called else None
