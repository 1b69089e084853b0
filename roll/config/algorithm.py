"""The section `algorithm`: the functions that turn rewards into a loss, and how many updates each batch gets."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import Field, model_validator

from roll.config.section import Section, SpecConfig

_RUN_WIDE = (
    *("loss", "kl", "correction", "entropy_coefficient", "aggregation", "value_loss"),
    *("epochs", "minibatches", "critic_warmup", "needs"),
)
"""Keys that a domain cannot override: its tokens share optimizer steps with those of all other domains."""

COMPARING = ("group_normalised", "group_centred_batch_scaled", "leave_one_out")
"""Advantages that are zero in a group of one."""


class Kl(Section):
    """A per-token penalty for distance from the reference policy."""

    estimator: SpecConfig = SpecConfig(kind="k3")
    """A function of `logp - ref`: `k1` is unbiased, `k2` is half its square, `k3` is never negative."""
    coefficient: float = Field(default=0.01, ge=0)
    """Factor of the penalty."""
    apply_to: Literal["loss", "reward"] = "loss"
    """Add the penalty to the loss, or subtract it from the reward before advantages are computed."""
    target: float | None = Field(default=None, gt=0)
    """Adapt the coefficient once per step to bring the mean KL to this value; None: constant coefficient."""
    horizon: int = Field(default=10_000, gt=0)
    """Number of trajectories over which the coefficient adapts."""


class DomainAlgorithm(Section):
    """Credit assignment of one domain. A key that is None has the value of the run's algorithm."""

    shaping: tuple[SpecConfig, ...] | None = Field(default=None, strict=False)  # arrives as a list from a validator
    """Transform rewards, in this order."""
    advantage: SpecConfig | None = None
    """Computes advantages from rewards."""
    whiten: bool | None = None
    """Scale advantages to mean 0 and deviation 1."""
    advantage_clip: Annotated[float, Field(gt=0)] | Literal["none"] | None = None
    """`none`: no clipping, even if the run's algorithm clips."""
    advantage_weights: tuple[SpecConfig, ...] | None = Field(default=None, strict=False)
    """Multiplied into the advantages of whole trajectories."""
    masks: tuple[SpecConfig, ...] | None = Field(default=None, strict=False)
    """Leave trajectories out of the loss."""
    loss_weight: float = Field(default=1.0, gt=0)
    """Factor on the loss of every token of this domain."""

    @model_validator(mode="before")
    @classmethod
    def _only_credit(cls, value: Any) -> Any:
        section = cast(dict[str, Any], value) if isinstance(value, dict) else {}
        if isinstance(value, str) or "recipe" in section:
            raise ValueError("a recipe is for the whole run; name parts of it here, such as {advantage: leave_one_out}")
        if "filters" in section:
            raise ValueError("'filters' is a key of the source itself; move it out of 'algorithm'")
        for name in _RUN_WIDE:
            if name in section:
                raise ValueError(f"{name!r} is one for the whole optimizer step; set it in the run's algorithm")
        return cast(Any, value)

    @property
    def overrides(self) -> dict[str, Any]:
        """The keys that replace those of the run's algorithm, with their values."""
        values = {name: getattr(self, name) for name in type(self).model_fields if name != "loss_weight"}
        return {name: value for name, value in values.items() if value is not None}


class Algorithm(Section):
    """From rewards to a loss. `algorithm: grpo` takes all keys from a recipe; other keys override parts of it."""

    recipe: str | None = None
    """Name of a file in `roll/recipes`; the other keys of this section override its values."""
    filters: tuple[SpecConfig, ...] = ()
    """Select groups that are replaced instead of trained on (dynamic sampling)."""
    shaping: tuple[SpecConfig, ...] = ()
    """Transform rewards, in this order."""
    kl: Kl | None = None
    advantage: SpecConfig
    """Computes advantages from rewards."""
    whiten: bool = False
    """Normalise advantages to mean 0 and standard deviation 1 over the trained tokens of the batch."""
    advantage_clip: float | None = Field(default=None, gt=0)
    """Clip advantages to plus and minus this value."""
    advantage_weights: tuple[SpecConfig, ...] = ()
    """Factors per trajectory on its advantages."""
    masks: tuple[SpecConfig, ...] = ()
    """Select trajectories to leave out of the loss; they still count in baselines."""
    correction: SpecConfig | None = None
    """Weights tokens by the ratio of the trainer's probability to the sampler's."""
    loss: SpecConfig
    """Computes a loss per token from logprobs and advantages."""
    entropy_coefficient: float = Field(default=0.0, ge=0)
    """This factor times the policy's entropy is subtracted from the loss."""
    aggregation: SpecConfig
    """Reduces the losses of all tokens to one number."""
    value_loss: SpecConfig = SpecConfig(kind="squared_value")
    """Loss of the critic, if the algorithm has one."""
    epochs: int = Field(default=1, gt=0)
    """Passes over each batch."""
    minibatches: int = Field(default=1, gt=0)
    """Optimizer steps per epoch; each epoch assigns trajectories to them in a new random order."""
    critic_warmup: int = Field(default=0, ge=0)
    """Number of first steps in which only the critic is trained."""
    needs: tuple[
        Literal["reference", "critic", "teacher", "reward_model", "old_logprobs", "entropies", "states"], ...
    ] = ()
    """Inputs of the functions beyond the batch; `entropies` come with old logprobs. Needs that follow from other keys
    may be left out."""

    def within(self, domain: DomainAlgorithm) -> Algorithm:
        """The algorithm for the tasks of one domain."""
        overrides = domain.overrides
        if overrides.get("advantage_clip") == "none":
            overrides["advantage_clip"] = None
        return self.model_copy(update=overrides)

    @property
    def num_updates(self) -> int:
        """Optimizer steps per batch."""
        return self.epochs * self.minibatches

    @property
    def all_needs(self) -> frozenset[str]:
        """`needs`, a reference for KL, and old logprobs if several updates, entropies or a correction need them."""
        needs = set(self.needs)
        if self.kl is not None:
            needs.add("reference")
        if self.num_updates > 1 or self._drops_tokens or "entropies" in needs:
            needs.add("old_logprobs")
        return frozenset(needs)

    @property
    def _drops_tokens(self) -> bool:
        """Whether the correction leaves tokens out by their ratio, which must be known before tokens are counted."""
        return self.correction is not None and self.correction.kind != "truncate"
