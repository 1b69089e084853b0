"""The knobs of runs in which agents have weights of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from roll.config.roles import Optimizer
from roll.config.section import Section
from roll.config.sources import Source

_BESIDE = ("reference", "critic", "teacher", "reward_model")


class Policy(Section):
    """Weights of their own for some agents, with a trainer, generators and checkpoints for them alone."""

    name: str = Field(pattern=r"^[\w+-]+$")
    """Its metrics and its folders carry it."""
    plays: tuple[str, ...] = Field(min_length=1)
    """Agents, by the names that the environments give them."""
    path: str | None = None
    """A model directory to start from, with the run's tokenizer. None: the run's model; one that is built from a shape
    is another for each policy."""
    optimizer: Optimizer | None = None
    """None: as in actor_train."""
    frozen: bool = False
    """Whether it plays as it is and never learns."""


def check_policies(
    policies: Sequence[Policy], tasks: Sequence[Source], *, needs: frozenset[str], engines: tuple[Any, Any]
) -> None:
    """Raise what policies, where there are any, cannot have, or have twice; `engines` are who trains and who infers."""
    if not policies:
        return
    for what, names in (
        ("policies share the name", [policy.name for policy in policies]),
        ("policies play the agent", [agent for policy in policies for agent in policy.plays]),
    ):
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"policies: two {what} {twice[0]!r}; leave it to one of them")
    if all(policy.frozen for policy in policies):
        raise ValueError("policies: all of them are frozen, and nobody is left to learn; let one of them")
    if others := [engine.backend for engine in engines if engine.backend != "native"]:
        raise ValueError(f"policies: only native engines hold several (got backend {others[0]}); take native for both")
    if engines[0].lora is not None:
        raise ValueError("policies: each has whole weights, and actor_train.lora trains adapters; leave one out")
    if outside := [source.name for source in tasks if source.agent is not None]:
        raise ValueError(f"policies: {outside[0]} is played by a program, which has one policy; leave one of both out")
    if asked := [role for role in _BESIDE if role in needs]:
        raise ValueError(
            f"policies: the algorithm asks a {asked[0].replace('_', ' ')}, and policies have none of their own; "
            "choose another recipe"
        )


def policies_in_words(policies: Sequence[Policy], optimizer: Optimizer) -> list[tuple[str, str]]:
    """A row for each: whom it plays, where it starts, how it learns."""
    return [
        (
            policy.name,
            f"plays {', '.join(policy.plays)}; {_start(policy)}; {_learning(policy, optimizer)}; "
            "a trainer, generators and checkpoints of its own",
        )
        for policy in policies
    ]


def _start(policy: Policy) -> str:
    return f"weights of {policy.path}" if policy.path else "starts as the model says"


def _learning(policy: Policy, optimizer: Optimizer) -> str:
    return "frozen: it never learns" if policy.frozen else f"learning rate {(policy.optimizer or optimizer).lr:g}"
