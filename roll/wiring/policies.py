"""Several policies in one run, from configuration: each is built as if it were the only one."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from roll.config.schema import Model, Run
from roll.errors import ConfigError

if TYPE_CHECKING:
    from roll.wiring.models import Roles


def runs_of(run: Run) -> dict[str, Run]:
    """By policy, the run as it would be with that policy alone; a model built from a shape is another for each.

    A run without policies is its own only one.
    """
    found: dict[str, Run] = {} if run.policies else {"": run}
    for policy in run.policies:
        changed: dict[str, Any] = {"policies": (), "seed": zlib.crc32(f"{run.seed} {policy.name}".encode())}
        if policy.path is not None:
            changed["model"] = Model(path=policy.path, template=run.model.template)
        if policy.optimizer is not None:
            changed["actor_train"] = run.actor_train.model_copy(update={"optimizer": policy.optimizer})
        found[policy.name] = run.model_copy(update=changed)
    return found


def policy_of(run: Run) -> dict[str, str]:
    """The policy of each agent."""
    return {agent: policy.name for policy in run.policies for agent in policy.plays}


def together(run: Run, found: Mapping[str, Roles]) -> Roles:
    """The roles of all policies; to whoever needs only one, those of the first."""
    first = next(iter(found.values()))
    for name, roles in found.items():
        if roles.template.tokenizer.get_vocab() != first.template.tokenizer.get_vocab():
            raise ConfigError(f"policies: {name}: its tokenizer is not that of the first; choose a model with the same")
        if roles.placement.offloads:
            raise ConfigError("policies: they do not fit the device together; choose smaller models, or one policy")
    router_of = {agent: found[name].router for agent, name in policy_of(run).items()}
    return replace(first, policies=dict(found), router_of=router_of)
