"""The section `policies`: separate weights for different agents of an environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from roll.config.roles import Optimizer
from roll.config.section import Section
from roll.config.sources import TaskSourceConfig

_AUXILIARY = ("reference", "critic", "teacher", "reward_model")


class Policy(Section):
    """Separate weights for some agents, with their own trainer, generators and checkpoints."""

    name: str = Field(pattern=r"^[\w+-]+$")
    """Used in metrics and directory names."""
    agents: tuple[str, ...] = Field(min_length=1)
    """Names of the agents in the environments that use these weights."""
    path: str | None = None
    """A model directory to start from, with the run's tokenizer. None: the run's model; `model.shape` is initialised
    differently for each policy."""
    optimizer: Optimizer | None = None
    """None: as in actor_train."""
    frozen: bool = False
    """Whether its weights are never trained."""


def check_policies(
    policies: Sequence[Policy], tasks: Sequence[TaskSourceConfig], *, needs: frozenset[str], engines: tuple[Any, Any]
) -> None:
    """Raise ValueError for invalid policies; `engines` are the sections `actor_train` and `actor_infer`."""
    if not policies:
        return
    for what, names in (
        ("policies share the name", [policy.name for policy in policies]),
        ("policies play the agent", [agent for policy in policies for agent in policy.agents]),
    ):
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"policies: two {what} {twice[0]!r}; leave it to one of them")
    if all(policy.frozen for policy in policies):
        raise ValueError("policies: all of them are frozen, so nothing is trained; leave one unfrozen")
    if others := [engine.backend for engine in engines if engine.backend != "native"]:
        raise ValueError(f"policies: only native engines have several (got backend {others[0]}); take native for both")
    if engines[0].lora is not None:
        raise ValueError("policies: each has whole weights, and actor_train.lora trains adapters; leave one out")
    if outside := [source.name for source in tasks if source.agent is not None]:
        raise ValueError(f"policies: an agent program runs {outside[0]} with one policy; leave out policies or agent")
    if auxiliary := [role for role in _AUXILIARY if role in needs]:
        raise ValueError(
            f"policies: the algorithm needs a {auxiliary[0].replace('_', ' ')}, which policies cannot have; "
            "choose another recipe"
        )
