"""Lets generators, trainers and other models be replaced when their processes are lost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from roll.cluster.handle import Cluster, ElasticCluster, Replaceable
from roll.cluster.move import Move, MovesWorkers
from roll.config.schema import Run
from roll.engines.base import Generator
from roll.journal.events import WorkerMoved
from roll.journal.store import Journal
from roll.serving.elastic import ElasticBounds, ElasticGenerators
from roll.serving.publisher import Publisher, ReplacementPolicy
from roll.serving.recovery import RecoveringCluster, RecoveryPolicy
from roll.tracking.wanted import read_wanted
from roll.wiring.models import Roles


def replacement_policy(
    run: Run, generators: Cluster[Generator], notice: Callable[[str], None], *, num_lent: int = 0
) -> ReplacementPolicy | None:
    """How dead generators are replaced; None if they are not. `num_lent` of them serve at times only."""
    if not run.ray.max_replacements or not isinstance(generators, Replaceable):
        return None
    return ReplacementPolicy(
        replace=generators.replace,
        max_replacements=run.ray.max_replacements,
        notice=notice,
        node_timeout_s=run.ray.node_timeout_s,
        min_workers=fewest_generators(run, generators, num_lent=num_lent),
    )


def fewest_generators(run: Run, generators: Cluster[Generator], *, num_lent: int = 0) -> int | None:
    """The number below which no generator leaves; None: all."""
    if num_lent and run.actor_infer.min_workers is None:
        return generators.size - num_lent
    if isinstance(generators, ElasticCluster) and run.actor_infer.min_workers is None:
        return generators.size - len(generators.absent)
    return run.actor_infer.min_workers


def build_elastic(
    run: Run, publisher: Publisher, directory: Path, notice: Callable[[str], None]
) -> ElasticGenerators | None:
    """What adds generators to a run and removes them; None if their number is constant."""
    pool = publisher.generators
    if run.actor_infer.max_workers is None or not isinstance(pool, ElasticCluster):
        return None
    initial = pool.size - len(pool.absent)
    return ElasticGenerators(
        pool=pool,
        publisher=publisher,
        bounds=ElasticBounds(
            fewest=min(fewest_generators(run, publisher.generators) or initial, initial),
            most=pool.size,
            initial=initial if run.ray.address is None else pool.size,
            start_timeout_s=run.ray.start_timeout_s,
        ),
        requests=partial(read_wanted, directory),
        confirm=lambda request: request.write(directory),
        journal=publisher.journal,
        notice=notice,
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
