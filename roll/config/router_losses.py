"""The section `router_losses` of a trainer."""

from __future__ import annotations

from pydantic import Field

from roll.config.section import Section


class RouterLosses(Section):
    """Losses of a mixture of experts besides that of the algorithm, over all tokens of a batch, prompts included.

    Both are means over tokens and layers, so that they depend neither on micro-batches nor on ranks.
    """

    balance: float = Field(default=0.0, ge=0)
    """Factor of the load-balancing loss: number of experts times the sum over experts of the share of tokens that chose
    one and its mean probability; 1 if all are equal. Needs a forward pass over the batch before the update."""
    z: float = Field(default=0.0, ge=0)
    """Factor of the z-loss: the square of the logarithm of the sum of exponentiated router logits."""

    @property
    def enabled(self) -> bool:
        """Whether there is a loss."""
        return self.balance > 0 or self.z > 0
