"""An algorithm as data: the functions of this room that it combines, their arguments, and the roles it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from roll.config.algorithm import Kl
from roll.types import Spec

Need: TypeAlias = Literal["reference", "critic", "teacher", "reward_model", "old_logprobs", "entropies", "states"]
"""Input beyond the batch: a role that scores it, logprobs and entropies of the trainer, or states of environments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The quantity that one optimizer step minimises; all that an engine needs of the algorithm."""

    loss: Spec
    correction: Spec | None = None
    """Weights tokens by the ratio between the trainer's and the sampler's probability."""
    kl: Spec | None = None
    """An estimator, added with `kl_coefficient`."""
    kl_coefficient: float = 0.0
    entropy: float = 0.0
    """Coefficient of the entropy, which is subtracted from the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The steps from rewards to a loss, in the order they are applied."""

    filters: tuple[Spec, ...] = ()
    """Drop groups before they reach the batch."""
    shaping: tuple[Spec, ...] = ()
    """Map rewards to other rewards."""
    kl: Kl | None = None
    advantage: Spec
    whiten: bool = False
    """Scale advantages to mean 0 and deviation 1 over the trained tokens of the batch."""
    advantage_clip: float | None = None
    """Largest absolute value of an advantage."""
    advantage_weights: tuple[Spec, ...] = ()
    """Multiplied into the advantages of whole trajectories."""
    masks: tuple[Spec, ...] = ()
    """Leave trajectories out of the loss; they still count in baselines."""
    correction: Spec | None = None
    loss: Spec
    entropy: float = 0.0
    aggregation: Spec
    value_loss: Spec = field(default_factory=lambda: Spec("squared_value"))
    """For the critic, if there is one."""
    epochs: int = 1
    minibatches: int = 1
    critic_warmup: int = 0
    """Steps in which only the critic is trained."""
    needs: frozenset[Need] = frozenset()
    domains: Mapping[str, Recipe] = field(default_factory=lambda: {})
    """By domain, a complete recipe for domains with different credit. Only its credit settings and `weight` are used:
    loss, KL and updates are shared by all domains."""
    weight: float = 1.0
    """Multiplies the losses of a domain's tokens."""

    @property
    def num_updates(self) -> int:
        """Optimizer steps per batch."""
        return self.epochs * self.minibatches

    def objective(self, kl_coefficient: float) -> Objective:
        """The objective of the policy's updates, at the current KL coefficient."""
        in_loss = self.kl if self.kl is not None and self.kl.apply_to == "loss" else None
        return Objective(
            loss=self.loss,
            correction=self.correction,
            kl=in_loss.estimator.spec if in_loss else None,
            kl_coefficient=kl_coefficient if in_loss else 0.0,
            entropy=self.entropy,
        )
