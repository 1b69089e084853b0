"""The section `algorithm`: which functions turn rewards into a loss, and how often a batch is gone through."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import Field, model_validator

from roll.config.section import Named, Section

_ONE_FOR_ALL = (
    *("loss", "kl", "correction", "entropy", "aggregation", "value_loss"),
    *("epochs", "minibatches", "critic_warmup", "needs"),
)
"""Keys of an algorithm that a domain cannot have for itself: its tokens share optimizer steps with all others."""

COMPARING = ("group_normalised", "group_centred_batch_scaled", "leave_one_out")
"""Advantages that say nothing of an attempt that is alone."""


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


class OwnAlgorithm(Section):
    """How one domain gives credit, where that differs from the run's algorithm; None: as there."""

    shaping: tuple[Named, ...] | None = Field(default=None, strict=False)  # a list, once `Source` has seen it
    advantage: Named | None = None
    whiten: bool | None = None
    clip: Annotated[float, Field(gt=0)] | Literal["none"] | None = None
    """`none`: no bound, whatever the run's is."""
    emphasis: tuple[Named, ...] | None = Field(default=None, strict=False)
    masks: tuple[Named, ...] | None = Field(default=None, strict=False)
    weight: float = Field(default=1.0, gt=0)
    """What the losses of its tokens are multiplied with."""

    @model_validator(mode="before")
    @classmethod
    def _of_credit_alone(cls, given: Any) -> Any:
        section = cast(dict[str, Any], given) if isinstance(given, dict) else {}
        if isinstance(given, str) or "recipe" in section:
            raise ValueError("a recipe is for the whole run; name parts of it here, such as {advantage: leave_one_out}")
        if "filters" in section:
            raise ValueError("'filters' is a key of the source itself; move it out of 'algorithm'")
        for name in _ONE_FOR_ALL:
            if name in section:
                raise ValueError(f"{name!r} is one for the whole optimizer step; set it in the run's algorithm")
        return cast(Any, given)

    @property
    def parts(self) -> dict[str, Any]:
        """What it says in place of the run's algorithm, by key."""
        found = {name: getattr(self, name) for name in type(self).model_fields if name != "weight"}
        return {name: value for name, value in found.items() if value is not None}


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

    def within(self, own: OwnAlgorithm) -> Algorithm:
        """As it is for the tasks of a domain that has something of its own."""
        parts = own.parts
        return self.model_copy(update={**parts, "clip": None} if parts.get("clip") == "none" else parts)

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
