"""Lets trainers and other models be replaced when their processes are lost."""

from __future__ import annotations

from collections.abc import Callable

from roll.config.schema import Run
from roll.journal.store import Journal
from roll.serving.recovery import RecoveringCluster, RecoveryPolicy
from roll.wiring.models import Roles


def recover_models(run: Run, roles: Roles, journal: Journal, notice: Callable[[str], None]) -> None:
    """From now on, replace lost workers of all models besides the generators, as the section `ray` says."""
    policy = RecoveryPolicy(
        journal=journal,
        max_replacements=run.ray.max_replacements,
        hang_timeout_s=run.ray.hang_timeout_s,
        snapshot_s=run.ray.snapshot_s,
        notice=notice,
    )
    for engines in roles.policies.values():
        for cluster in (engines.trainers, *engines.models.by_role().values()):
            if isinstance(cluster, RecoveringCluster) and policy.max_replacements:
                cluster.policy = policy
