"""The section `rollout`: amount, length and sampling of generation, and which groups a step trains on."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from roll.config.algorithm import Algorithm
from roll.config.section import Section


class Adapt(Section):
    """Bounds within which a controller moves settings of the run, so that trainer and generators wait least."""

    max_staleness: tuple[Annotated[float, Field(ge=0)], Annotated[float, Field(ge=0)]] | None = None
    """Lowest and highest `rollout.max_staleness`; tokens are never older than the highest. None: constant."""
    redundant_groups: tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]] | None = None
    """Lowest and highest `rollout.redundant_groups`. None: constant."""

    @model_validator(mode="after")
    def _ordered(self) -> Adapt:
        for name in ("max_staleness", "redundant_groups"):
            bounds = getattr(self, name)
            if bounds is not None and bounds[0] > bounds[1]:
                raise ValueError(f"{name} ({list(bounds)}): the lowest value comes first; swap the two")
        return self


class Rollout(Section):
    """Amount, length and sampling of generation, and how far it may run ahead of training."""

    groups_per_step: int = Field(default=8, gt=0)
    """Groups that each step trains on."""
    group_size: int = Field(default=8, gt=0)
    """Attempts per task; baselines are computed over a group."""
    max_staleness: float = Field(default=0.0, ge=0)
    """Most steps between the weights that sample a token and the step that trains on it; 0: synchronous."""
    reuse: int = Field(default=1, gt=0)
    """Most steps that train on a group. Each further step counts as one of staleness, and needs
    `algorithm.correction`."""
    replay: float | None = Field(default=None, gt=0, lt=1)
    """Share of the groups of a step that earlier steps have trained on. None: 1 - 1 / reuse, so that every group is
    trained on in `reuse` consecutive steps; with less, `priority` chooses among the groups that may be used again."""
    priority: Literal["age", "difficulty", "value"] = "age"
    """Which complete groups a step takes first: the oldest, those with a mean reward nearest 0.5, or those with the
    widest spread of rewards. Groups that cannot wait any longer always come first."""
    adapt: Adapt | None = None
    """Bounds for a controller of staleness and redundancy, which start from the values above. None: constant."""
    max_seq_len: int = Field(default=1024, gt=1)
    """Most tokens per sequence, prompt and responses together."""
    context_policy: Literal["stop", "drop_oldest"] = "stop"
    """At `max_seq_len`, truncate the attempt, or continue in a new sequence without its oldest turns. The opening
    messages of the environment are never dropped."""
    segment_per: Literal["trajectory", "turn"] = "trajectory"
    """Unit of a trained sequence: a trajectory, as long as each turn only appends to it, or each turn with all of its
    context."""
    max_new_tokens: int = Field(default=256, gt=0)
    """Most tokens per response."""
    max_turns: int | None = Field(default=None, gt=0)
    """Most responses per trajectory, even if the environment allows more. None: the largest `max_turns` of the run's
    environments, at least 32."""
    temperature: float = Field(default=1.0, gt=0)
    """Divides the logits before sampling."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample from the smallest set of tokens with at least this probability; 1: all tokens."""
    top_k: int = Field(default=0, ge=0)
    """0 means all tokens."""
    stop: tuple[str, ...] = ()
    """Tokens that end a response, in addition to those of the template, the tokenizer and generation_config.json."""
    max_retries: int = Field(default=2, ge=0)
    """Retries of a failed attempt before its group is dropped and replaced. As many processes of an environment worker
    may die before its first start has succeeded."""
    max_failed_groups: int = Field(default=16, ge=0)
    """Consecutive dropped groups before the run stops: this many failures have a systematic cause."""
    quarantine_after: int = Field(default=3, ge=0)
    """Dropped groups of one task, with no complete one between them, before it is not drawn again; 0: no limit."""
    max_filtered_groups: int = Field(default=256, ge=0)
    """Consecutive filtered groups before the run stops: these tasks have nothing left to learn."""
    redundant_groups: int = Field(default=0, ge=0)
    """Extra groups in flight beyond those that staleness allows; the first to complete are trained on."""
    redundant_siblings: int = Field(default=0, ge=0)
    """Extra attempts per group beyond `group_size`; the first valid ones are trained on."""
    stop_quantile: float | None = Field(default=None, gt=0, lt=1)
    """Share of the attempts that a step waits for: once it has ended, longer running ones are stopped and sampled
    again, each at most once. Favours short responses; `bias/stopped/*` say how much. None: no attempt is stopped."""
    concurrency: Annotated[int, Field(gt=0)] | Literal["adaptive"] | None = None
    """Most requests in flight per generator; `adaptive` sets it by how often memory runs out. None: no limit."""
    request_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds without progress after which a request is sent to another generator, with its tokens. A generator on Ray
    that does not respond for as long is killed and replaced."""
    env_timeout_s: float | None = Field(default=None, gt=0)
    """Seconds for each call of an environment, after which it has failed. None: no timeout."""

    @property
    def num_replayed(self) -> int:
        """Groups of each step that earlier ones have trained on, from the second step on."""
        if self.replay is None:
            return self.groups_per_step - self.groups_per_step // self.reuse
        return round(self.replay * self.groups_per_step)

    @property
    def new_groups_per_step(self) -> int:
        """Groups of each step that no earlier one has trained on, from the second step on."""
        return self.groups_per_step - self.num_replayed

    @property
    def replay_steps(self) -> int:
        """Steps between the latest first use of a group and the bound: their new groups are enough to replay."""
        return math.ceil(self.num_replayed / self.new_groups_per_step)

    @property
    def num_slots(self) -> int:
        """Most groups in flight: admitted and not yet part of published weights, or trained on again."""
        return self.slots_at(self.max_staleness)

    def slots_at(self, max_staleness: float) -> int:
        """The number of slots at another staleness."""
        spare = max_staleness - self.replay_steps
        return math.floor(self.groups_per_step + spare * self.new_groups_per_step)

    @property
    def staleness_bounds(self) -> tuple[float, float]:
        """Lowest and highest staleness of the run."""
        bounds = None if self.adapt is None else self.adapt.max_staleness
        return bounds or (self.max_staleness, self.max_staleness)

    @property
    def redundancy_bounds(self) -> tuple[int, int]:
        """Lowest and highest number of redundant groups of the run."""
        bounds = None if self.adapt is None else self.adapt.redundant_groups
        return bounds or (self.redundant_groups, self.redundant_groups)

    @property
    def max_age(self) -> int:
        """Most steps between the weights that sample a token and a step that trains on it."""
        return math.ceil(self.staleness_bounds[1])

    @model_validator(mode="after")
    def _some_are_stopped(self) -> Rollout:
        number = self.new_groups_per_step * self.group_size
        if self.stop_quantile is not None and math.ceil(self.stop_quantile * number) == number:
            most = math.floor(1000 * (number - 1) / number) / 1000
            raise ValueError(
                f"stop_quantile ({self.stop_quantile:g}): none of the {number} new attempts of a step is beyond it; "
                f"lower it to at most {most:g}, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _replay_fits(self) -> Rollout:
        if self.replay is None:
            return self
        number = self.replay * self.groups_per_step
        if (
            not math.isclose(number, self.num_replayed, abs_tol=1e-3)
            or not 0 < self.num_replayed < self.groups_per_step
        ):
            raise ValueError(
                f"replay ({self.replay:g}): that is {number:g} of {self.groups_per_step} groups per step; give a "
                f"multiple of 1 / {self.groups_per_step} below 1, or change groups_per_step"
            )
        if self.reuse <= self.replay_steps:
            raise ValueError(
                f"replay ({self.replay:g}): {self.new_groups_per_step} new groups per step, each used at most "
                f"{self.reuse} times (reuse), do not give {self.groups_per_step}; raise reuse to "
                f"{self.replay_steps + 1}, or lower replay"
            )
        return self

    @model_validator(mode="after")
    def _reuse_fits(self) -> Rollout:
        if self.replay is None and self.groups_per_step % self.reuse:
            raise ValueError(
                f"reuse ({self.reuse}): does not divide groups_per_step ({self.groups_per_step}), so that equally many "
                "groups of each step are new; change one of the two"
            )
        needed = self.replay_steps
        key, value = ("reuse", self.reuse) if self.replay is None else ("replay", self.replay)
        if self.staleness_bounds[0] < needed <= self.max_staleness:
            raise ValueError(
                f"adapt.max_staleness ({list(self.staleness_bounds)}): {key} {value:g} needs at least {needed}; "
                f"raise the lowest value, or lower {key}"
            )
        if self.max_staleness < needed:
            raise ValueError(
                f"{key} ({value:g}): groups are used again up to {needed} steps after their first use, and "
                f"max_staleness is {self.max_staleness:g}; raise that to {needed}, or lower {key}"
            )
        return self


def check_adapt(rollout: Rollout, steps: int, *, deterministic: bool) -> None:
    """Reject bounds of the controller that the run cannot use."""
    if rollout.adapt is None:
        return
    if deterministic:
        raise ValueError("deterministic: rollout.adapt depends on timing; leave it out, or set deterministic to false")
    for name, (low, high), most, reason in (
        ("max_staleness", rollout.staleness_bounds, steps, f"the run has only {steps} steps"),
        ("redundant_groups", rollout.redundancy_bounds, rollout.num_slots, f"there are only {rollout.num_slots} slots"),
    ):
        value = getattr(rollout, name)
        if high > most:
            raise ValueError(f"rollout.adapt.{name} ({[low, high]}): {reason}; lower the highest value to {most}")
        if not low <= value <= high:
            raise ValueError(
                f"rollout.{name} ({value:g}): the run starts outside the bounds {[low, high]} of rollout.adapt; "
                "change one of the two"
            )


def check_reuse(rollout: Rollout, algorithm: Algorithm) -> None:
    """Reject reuse without an importance correction."""
    if rollout.reuse > 1 and algorithm.correction is None:
        raise ValueError(
            f"rollout.reuse ({rollout.reuse}): weights change between two uses of a token, and nothing corrects that; "
            "set algorithm.correction, such as truncate, or reuse to 1"
        )
