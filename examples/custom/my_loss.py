"""A custom loss: REINFORCE for samples that may be a few updates old."""

from roll.algorithms.losses import Loss
from roll.types import Tokens


def capped(tokens: Tokens, *, cap: float) -> Loss:
    """The negated logprob times the advantage, weighted by the importance ratio to the sampler, at most `cap`."""
    weight = (tokens.logprobs - tokens.sampler_logprobs).exp().clamp(max=cap).detach()
    return -weight * tokens.advantages * tokens.logprobs, {"weight": weight}
