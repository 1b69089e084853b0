"""The key `reward` of a task source: one reward by name, one section, or a list of them."""

from __future__ import annotations

from typing import Any, cast

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from roll.config.section import SpecConfig

WEIGHTED = "weighted"
"""The kind of a list of rewards."""


class WeightedReward(SpecConfig):
    """One entry of a list of rewards; all other keys are its options."""

    weight: float = 1.0
    """Factor on its score in the sum."""
    name: str | None = Field(default=None, min_length=1)
    """Name in metrics; None: its kind. Two rewards of one kind need names."""

    @property
    def title(self) -> str:
        """Name in metrics."""
        return self.name or self.kind


class Reward(SpecConfig):
    """One reward with its options, or a list of rewards whose weighted sum is the score."""

    rewards: tuple[WeightedReward, ...] = ()
    """Entries of the list; empty for a single reward without weight and name."""

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        if isinstance(value, list):
            return {"kind": WEIGHTED, "rewards": tuple(cast(list[Any], value))}
        if not isinstance(value, dict):
            return value
        section = cast(dict[str, Any], value)
        return {"kind": WEIGHTED, "rewards": (section,)} if {"weight", "name"} & section.keys() else section

    @model_validator(mode="after")
    def _titles_are_distinct(self) -> Reward:
        if (self.kind == WEIGHTED) != bool(self.rewards):
            raise ValueError("several rewards are a list with one at least; write `reward: [..., ...]`")
        titles = [reward.title for reward in self.rewards]
        for title in titles:
            if titles.count(title) > 1:
                raise ValueError(f"two rewards are called {title!r}; give one of them a 'name'")
        return self

    @model_serializer(mode="wrap")
    def _as_written(self, handler: SerializerFunctionWrapHandler) -> Any:
        section = handler(self)
        return section.pop("rewards") or section

    @property
    def entries(self) -> tuple[SpecConfig, ...]:
        """The entries of the list, or the reward itself."""
        return self.rewards or (self,)

    @property
    def kwargs(self) -> dict[str, Any]:
        """All keys except `kind`; for a list, its entries with their keys."""
        if not self.rewards:
            return super().kwargs
        return {
            "rewards": [
                {"kind": reward.kind, "weight": reward.weight, "name": reward.title, **reward.kwargs}
                for reward in self.rewards
            ]
        }
