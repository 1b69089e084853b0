"""How attempts are rewarded, as a file writes it: one name, one section, or a list of them."""

from __future__ import annotations

from typing import Any, cast

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from roll.config.section import Named

WEIGHTED = "weighted"
"""The kind of a list of rewards."""


class WeightedReward(Named):
    """One reward of several; its options stand beside `kind`, `weight` and `name`."""

    weight: float = 1.0
    """What its score is multiplied with before it is added to the others."""
    name: str | None = Field(default=None, min_length=1)
    """What it is logged as; None: its kind. Two of one kind need names."""

    @property
    def title(self) -> str:
        """What it is logged as."""
        return self.name or self.kind


class Reward(Named):
    """A reward with its options, or a list of rewards, of whose scores the weighted sum counts."""

    rewards: tuple[WeightedReward, ...] = ()
    """What the list held; empty for a single reward without a weight or a name."""

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, given: Any) -> Any:
        if isinstance(given, list):
            return {"kind": WEIGHTED, "rewards": tuple(cast(list[Any], given))}
        if not isinstance(given, dict):
            return given
        section = cast(dict[str, Any], given)
        return {"kind": WEIGHTED, "rewards": (section,)} if {"weight", "name"} & section.keys() else section

    @model_validator(mode="after")
    def _parts_can_be_told_apart(self) -> Reward:
        if (self.kind == WEIGHTED) != bool(self.rewards):
            raise ValueError("several rewards are a list with one at least; write `reward: [..., ...]`")
        titles = [reward.title for reward in self.rewards]
        for title in titles:
            if titles.count(title) > 1:
                raise ValueError(f"two rewards are called {title!r}; give one of them a 'name'")
        return self

    @model_serializer(mode="wrap")
    def _as_written(self, handler: SerializerFunctionWrapHandler) -> Any:
        found = handler(self)
        return found.pop("rewards") or found

    @property
    def asked(self) -> tuple[Named, ...]:
        """Every reward that has a say: itself, or the entries of a list."""
        return self.rewards or (self,)

    @property
    def arguments(self) -> dict[str, Any]:
        """Everything beside `kind`; of a list, its entries with theirs."""
        if not self.rewards:
            return super().arguments
        return {
            "rewards": [
                {"kind": reward.kind, "weight": reward.weight, "name": reward.title, **reward.arguments}
                for reward in self.rewards
            ]
        }
