"""Lets generators, trainers and other models be replaced when their processes are lost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from roll.cluster.handle import Cluster, Replaceable
from roll.cluster.move import Move, MovesWorkers
from roll.config.schema import Run
from roll.engines.base import Generator
from roll.journal.events import WorkerMoved
from roll.journal.store import Journal
from roll.serving.publisher import ReplacementPolicy
from roll.serving.recovery import RecoveringCluster, RecoveryPolicy
from roll.wiring.models import Roles


def replacement_policy(
    run: Run, generators: Cluster[Generator], notice: Callable[[str], None]
) -> ReplacementPolicy | None:
    """How dead generators are replaced; None if they are not."""
    if not run.ray.max_replacements or not isinstance(generators, Replaceable):
        return None
    return ReplacementPolicy(
        replace=generators.replace,
        max_replacements=run.ray.max_replacements,
        notice=notice,
        node_timeout_s=run.ray.node_timeout_s,
        min_workers=run.actor_infer.min_workers,
    )


def recover_models(run: Run, roles: Roles, journal: Journal, notice: Callable[[str], None]) -> None:
    """From now on, replace lost workers of all models besides the generators, as the section `ray` says."""
    policy = RecoveryPolicy(
        journal=journal,
        max_replacements=run.ray.max_replacements,
        hang_timeout_s=run.ray.hang_timeout_s,
        snapshot_s=run.ray.snapshot_s,
        notice=notice,
        node_timeout_s=run.ray.node_timeout_s,
    )
    if isinstance(roles.executor, MovesWorkers):
        roles.executor.on_move(partial(_record_move, journal, notice))
    for engines in roles.policies.values():
        for cluster in (engines.trainers, *engines.models.by_role().values()):
            if isinstance(cluster, RecoveringCluster) and policy.max_replacements:
                cluster.policy = policy


def _record_move(journal: Journal, notice: Callable[[str], None], move: Move) -> None:
    journal.record(WorkerMoved(worker=move.worker, before=move.before, after=move.after, reason=move.reason))
    notice(f"{move.worker} runs on the node {move.after} now: the node {move.before} {move.reason}")
