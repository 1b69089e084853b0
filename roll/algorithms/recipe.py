"""An algorithm as data: which functions of this room make it up, with their arguments, and what it needs around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from roll.types import Call

Need: TypeAlias = Literal["reference", "critic", "teacher", "reward_model", "old_logprobs", "states"]
"""Something beyond the batch: a role that scores it, logprobs computed once more, or states named by environments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kl:
    """A pull towards the reference policy."""

    estimator: Call
    coefficient: float
    place: Literal["loss", "reward"]
    target: float | None = None
    """What the coefficient is adapted to reach; None keeps it fixed."""
    horizon: int = 10_000
    """Trajectories over which it adapts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What one optimizer step makes smaller; everything an engine has to know of the algorithm."""

    loss: Call
    correction: Call | None = None
    """Weighs tokens by how the sampler's probability differed from the trainer's."""
    kl: Call | None = None
    """An estimator, added with `kl_coefficient`."""
    kl_coefficient: float = 0.0
    entropy: float = 0.0
    """How much of the entropy is taken off the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """From rewards to a loss, part by part, in the order they are applied."""

    filters: tuple[Call, ...] = ()
    """Say which groups are not worth a place in the batch."""
    shaping: tuple[Call, ...] = ()
    """Rewards to other rewards."""
    kl: Kl | None = None
    advantage: Call
    whiten: bool = False
    """Advantages to mean 0 and deviation 1 over the trained tokens of the batch."""
    clip: float | None = None
    """Bounds advantages on both sides."""
    emphasis: tuple[Call, ...] = ()
    """Multiplied into the advantages of whole trajectories."""
    masks: tuple[Call, ...] = ()
    """Say which trajectories are left out of the loss; they still count in baselines."""
    correction: Call | None = None
    loss: Call
    entropy: float = 0.0
    aggregation: Call
    value_loss: Call = field(default_factory=lambda: Call("squared_value"))
    """For the critic, where there is one."""
    epochs: int = 1
    minibatches: int = 1
    critic_warmup: int = 0
    """Steps in which only the critic learns."""
    needs: frozenset[Need] = frozenset()
    domains: Mapping[str, Recipe] = field(default_factory=lambda: {})
    """By name, the whole recipe of domains that give credit in a way of their own. Only what is about credit is read,
    and `weight`: loss, KL and updates are one for all."""
    weight: float = 1.0
    """What the losses of a domain's tokens are multiplied with."""

    @property
    def num_updates(self) -> int:
        """Optimizer steps a batch."""
        return self.epochs * self.minibatches

    def objective(self, kl_coefficient: float) -> Objective:
        """What the policy's updates minimise, at the coefficient of the moment."""
        in_loss = self.kl if self.kl is not None and self.kl.place == "loss" else None
        return Objective(
            loss=self.loss,
            correction=self.correction,
            kl=in_loss.estimator if in_loss else None,
            kl_coefficient=kl_coefficient if in_loss else 0.0,
            entropy=self.entropy,
        )
