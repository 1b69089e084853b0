"""The section `algorithm`: which functions turn rewards into a loss, and how often a batch is gone through."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from roll.config.section import Named, Section


class Kl(Section):
    """A pull towards the reference policy, token by token."""

    estimator: Named = Named(kind="k3")
    """Of `logp - ref`: `k1` is unbiased, `k2` its squared half, `k3` never negative."""
    coefficient: float = Field(default=0.01, ge=0)
    place: Literal["loss", "reward"] = "loss"
    """Added to the loss, or taken off the reward before advantages."""
    target: float | None = Field(default=None, gt=0)
    """Adapt the coefficient, once a step, so that the mean KL comes to this; None keeps it."""
    horizon: int = Field(default=10_000, gt=0)
    """Trajectories over which it adapts."""


class Algorithm(Section):
    """From rewards to a loss. `algorithm: grpo` takes all of it from a recipe; any part may be laid over it."""

    recipe: str | None = None
    """A file of `roll/recipes`, by name; what stands beside this key is laid over it."""
    filters: tuple[Named, ...] = ()
    """Groups that are replaced instead of trained on (dynamic sampling)."""
    shaping: tuple[Named, ...] = ()
    """Rewards to other rewards, in this order."""
    kl: Kl | None = None
    advantage: Named
    """Rewards to advantages."""
    whiten: bool = False
    """Advantages to mean 0 and deviation 1 over the trained tokens of the batch."""
    clip: float | None = Field(default=None, gt=0)
    """Bounds advantages on both sides."""
    emphasis: tuple[Named, ...] = ()
    """Multiplied into the advantages of whole trajectories."""
    masks: tuple[Named, ...] = ()
    """Trajectories that are left out of the loss; they still count in baselines."""
    correction: Named | None = None
    """Weighs tokens by how the sampler's probability differed from the trainer's."""
    loss: Named
    """Logprobs and advantages to a loss a token."""
    entropy: float = Field(default=0.0, ge=0)
    """How much of the policy's entropy is taken off the loss."""
    aggregation: Named
    """How the losses of tokens become one number."""
    value_loss: Named = Named(kind="squared_value")
    """Of the critic, where there is one."""
    epochs: int = Field(default=1, gt=0)
    """How often a batch is gone through."""
    minibatches: int = Field(default=1, gt=0)
    """Optimizer steps in one epoch; trajectories are dealt out to them anew in each."""
    critic_warmup: int = Field(default=0, ge=0)
    """Steps in which only the critic learns."""
    needs: tuple[Literal["reference", "critic", "teacher", "reward_model", "old_logprobs", "states"], ...] = ()
    """What its functions read beyond the batch; what follows from other keys need not be said."""

    @property
    def all_needs(self) -> frozenset[str]:
        """With those that follow: KL needs a reference, and whatever looks back past an update needs old logprobs."""
        needs = set(self.needs)
        if self.kl is not None:
            needs.add("reference")
        if self.epochs * self.minibatches > 1 or self._looks_back:
            needs.add("old_logprobs")
        return frozenset(needs)

    @property
    def _looks_back(self) -> bool:
        """Whether tokens may be left out by their ratio, which has to be known before they are counted."""
        return self.correction is not None and self.correction.kind != "truncate"
