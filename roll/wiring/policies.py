"""Derives the configuration of each policy of a run; each is built as if it were the only one."""

from __future__ import annotations

import zlib
from typing import Any

from roll.config.schema import Model, Run


def per_policy_runs(run: Run) -> dict[str, Run]:
    """The run with one policy alone, by policy. A run without `policies` has one, named "".

    Seeds differ, so models built from a shape do too.
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


def policy_by_agent(run: Run) -> dict[str, str]:
    """The policy of each agent."""
    return {agent: policy.name for policy in run.policies for agent in policy.agents}
