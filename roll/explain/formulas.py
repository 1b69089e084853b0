"""What each function of `roll.algorithms` computes, in words, with the arguments filled in.

A formula takes the keywords of the function that it describes, with the same defaults; a test holds it to that.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from roll.config.section import Named


def in_words(part: str, named: Named) -> str:
    """Name and formula of a function of ours; name and arguments of one that is not, or that takes other arguments."""
    formula = FORMULAS[part].get(named.kind)
    if formula is None or not _takes(formula, named.arguments):
        return called(named)
    return f"{named.kind}: {formula(**named.arguments)}"


def called(named: Named) -> str:
    """A function with its arguments, as one writes a call."""
    arguments = ", ".join(f"{name}={value!r}" for name, value in named.arguments.items())
    return f"{named.kind}({arguments})" if arguments else named.kind


def _takes(formula: Callable[..., str], arguments: Mapping[str, Any]) -> bool:
    parameters = inspect.signature(formula).parameters
    required = {name for name, parameter in parameters.items() if parameter.default is parameter.empty}
    return required <= set(arguments) <= set(parameters)


_RATIO = "r = exp(logprob - old logprob)"


def _mixed() -> str:
    return "a group whose rewards are all equal is replaced by another"


def _mean_between(low: float = 0.0, high: float = 1.0) -> str:
    return f"a group is replaced by another unless {low} < its mean reward < {high}"


def _clipped_reward(low: float, high: float) -> str:
    return f"reward = clip(reward, {low}, {high})"


def _scaled(factor: float = 1.0, shift: float = 0.0) -> str:
    return f"reward = {factor} x reward + {shift}"


def _normalised(mean: str = "group", std: str = "group", unbiased: bool = False, eps: float = 1e-6) -> str:
    whose = {"group": "its group", "batch": "the batch", "running": "all rewards so far"}
    centred = "reward" if mean == "none" else f"(reward - mean of {whose.get(mean, mean)})"
    if std == "none":
        return f"reward = {centred}"
    return f"reward = {centred} / ({_std(unbiased)} of {whose.get(std, std)} + {eps}); 0 where that std is 0"


def _overlong(max_tokens: int, buffer: int, factor: float = 1.0) -> str:
    return (
        f"nothing is taken off the reward up to {max_tokens} - {buffer} trained tokens, from there on evenly more, "
        f"{factor} at {max_tokens} and beyond"
    )


def _format(part: str = "format", penalty: float = 1.0) -> str:
    return f"reward - {penalty} where the part {part!r} of the score is not 1"


def _group_normalised(unbiased: bool = False, eps: float = 1e-6, scale: bool = True) -> str:
    divided = f" / (the group's {_std(unbiased)} + {eps})" if scale else ""
    return f"A = (reward - mean of its group){divided}; 0 in a group whose rewards are all equal"


def _group_centred_batch_scaled(unbiased: bool = False, eps: float = 1e-6) -> str:
    deviation = f"{_std(unbiased)} of the batch's rewards"
    return f"A = (reward - mean of its group) / ({deviation} + {eps}); 0 in a group whose rewards are all equal"


def _leave_one_out() -> str:
    return "A = reward - mean of its siblings' rewards, its own left out; 0 in a group of one"


def _batch_centred() -> str:
    return "A = reward - mean reward of the batch"


def _batch_normalised(baseline: str = "none", unbiased: bool = False, eps: float = 1e-6) -> str:
    less = ", the mean reward of the group taken off first" if baseline == "group" else ""
    return (
        f"G = the rewards that follow a token, its own among them{less}; A = (G - mean) / ({_std(unbiased)} + {eps}), "
        "both over all trained tokens of the batch"
    )


def _discounted(gamma: float = 1.0, per: str = "turn", baseline: str = "none") -> str:
    whose = {"group": "its group", "batch": "the batch"}
    less = "" if baseline == "none" else f" - mean total reward of {whose.get(baseline, baseline)}"
    return f"A = sum over this {per} and those that follow, k {per}s on, of {gamma}^k x reward{less}"


def _gae(gamma: float = 1.0, lam: float = 1.0, bootstrap: bool = False) -> str:
    end = "the last value where a limit ended it, else 0" if bootstrap else "0"
    return (
        f"A(t) = delta(t) + {gamma} x {lam} x A(t + 1), delta(t) = reward(t) + {gamma} x V(t + 1) - V(t), "
        f"over the trained tokens of a trajectory; V after the last is {end}; returns = A + V"
    )


def _gigpo(step_weight: float = 1.0, gamma: float = 0.95, eps: float = 1e-6, scale: bool = True) -> str:
    divided = f" / (their std + {eps})" if scale else ""
    return (
        f"A = (reward - mean of its group){divided} + {step_weight} x (G - mean of G){divided}, G = turn rewards to "
        f"come discounted by {gamma} a turn, compared over turns of the same group in the same state; a state met once "
        "gives 0"
    )


def _distilled(weight: float = 1.0) -> str:
    return f"A = {weight} x (teacher logprob - logprob of the policy before the update), token by token"


def _easy(strength: float = 1.0) -> str:
    return f"A x (1 + {strength} x (1 - p)), p = mean reward of the group within 0 and 1: hard tasks weigh more"


def _length(power: float = 1.0) -> str:
    return f"A x (mean length / own length)^{power}, in trained tokens: short attempts weigh more"


def _truncated() -> str:
    return "attempts that a limit ended are left out"


def _difficulty(low: float = 0.0, high: float = 1.0) -> str:
    return f"groups are left out unless {low} < their mean reward < {high}"


def _overlong_wrong(max_tokens: int, right: float = 1.0) -> str:
    return f"attempts of more than {max_tokens} trained tokens with a reward below {right} are left out"


def _truncate(level: str = "token", cap: float = 2.0) -> str:
    return f"L x min(rho, {cap}), {_rho(level)}"


def _mask(level: str = "token", low: float = 0.5, high: float = 2.0) -> str:
    return f"L x rho where {low} <= rho <= {high}; other tokens are left out, of the denominator too; {_rho(level)}"


def _reject(level: str = "sequence", low: float = 0.5, high: float = 2.0) -> str:
    return f"L where {low} <= rho <= {high}; other tokens are left out, of the denominator too; {_rho(level)}"


def _clipped(clip_low: float = 0.2, clip_high: float = 0.2, dual_clip: float | None = None) -> str:
    bound = "" if dual_clip is None else f"; where A < 0, L is at most {dual_clip} |A|"
    return f"L = -{_surrogate('r', clip_low, clip_high)}{bound}, {_RATIO}"


def _policy_gradient() -> str:
    return "L = -A logprob"


def _sequence_clipped(clip_low: float = 3e-4, clip_high: float = 4e-4) -> str:
    return (
        f"L = -{_surrogate('s', clip_low, clip_high)} on every token of a sequence, s = exp(mean of logprob - old "
        "logprob over its trained tokens)"
    )


def _geometric_clipped(clip_low: float = 0.4, clip_high: float = 0.4) -> str:
    return (
        "L = -s A on every token of a sequence, s = exp(mean of log r over its trained tokens), log r = logprob - old "
        f"logprob, at most {clip_high} where A > 0, at least -{clip_low} where A < 0"
    )


def _cispo(clip_low: float = 1.0, clip_high: float = 0.2) -> str:
    bounded = f"min(r, 1 + {clip_high})" if clip_low == 1 else f"clip(r, 1 - {clip_low}, 1 + {clip_high})"
    return f"L = -sg({bounded}) A logprob, {_RATIO}; sg: taken as a number, without gradient"


def _truncated_importance(cap: float = 2.0) -> str:
    return f"L = -sg(min(r, {cap})) A logprob, {_RATIO}; sg: taken as a number, without gradient"


def _topr(positive: float = 1.0, negative: float = 1.0, low: float = 0.0, high: float = 1.0) -> str:
    return (
        f"L = -{positive} A logprob where A >= 0, -{negative} sg(clip(q, {low}, {high})) A logprob where A < 0, "
        "q = exp(logprob - sampler logprob); sg: taken as a number, without gradient"
    )


def _raft(clip_low: float = 0.2, clip_high: float = 0.2) -> str:
    return f"L = -{_surrogate('r', clip_low, clip_high)} where A > 0, else 0, {_RATIO}"


def _kimi(tau: float = 0.1) -> str:
    return f"L = -A logprob + {tau} / 2 (logprob - old logprob)^2"


def _sapo(tau_positive: float = 1.0, tau_negative: float = 1.05) -> str:
    return f"L = -4 / tau sigmoid(tau (r - 1)) A, tau = {tau_positive} where A > 0, else {tau_negative}, {_RATIO}"


def _decoupled(clip_low: float = 0.2, clip_high: float = 0.2, cap: float | None = None) -> str:
    bound = "" if cap is None else f", at most {cap}"
    weight = f"w = exp(old logprob - sampler logprob){bound}, taken as a number"
    return f"L = -w {_surrogate('r', clip_low, clip_high)}, {_RATIO}, {weight}"


def _squared_value(clip: float | None = None) -> str:
    held = "" if clip is None else f", or with V held within {clip} of the value before the update if that is more"
    return f"L = 1/2 (V - return)^2{held}"


def _token_mean() -> str:
    return "the mean over all trained tokens of an update, so long replies weigh more"


def _sequence_mean_token_mean() -> str:
    return "the mean over sequences of each one's mean over its trained tokens, so every sequence weighs the same"


def _sequence_mean_token_sum() -> str:
    return "the mean over sequences of each one's sum over its trained tokens, so long replies weigh more"


def _constant(tokens: int) -> str:
    return f"the sum over all trained tokens, over the number of sequences x {tokens}"


def _std(unbiased: bool) -> str:
    return "std with n - 1" if unbiased else "std with n"


def _surrogate(ratio: str, low: float, high: float) -> str:
    return f"min({ratio} A, clip({ratio}, 1 - {low}, 1 + {high}) A)"


def _rho(level: str) -> str:
    sums = {
        "token": "",
        "turn": "summed over the turn's trained tokens",
        "sequence": "summed over the sequence's trained tokens",
        "geometric": "averaged over the sequence's trained tokens",
    }
    over = f" {sums.get(level, level)}" if sums.get(level, level) else ""
    return f"rho = exp(old logprob - sampler logprob{over}), taken as a number, without gradient"


FORMULAS: dict[str, dict[str, Callable[..., str]]] = {
    "filters": {"mixed": _mixed, "mean_between": _mean_between},
    "shaping": {
        "clipped": _clipped_reward,
        "scaled": _scaled,
        "normalised": _normalised,
        "overlong": _overlong,
        "format": _format,
    },
    "estimator": {
        "k1": lambda: "d",
        "k2": lambda: "d^2 / 2",
        "k3": lambda: "exp(-d) + d - 1",
    },
    "advantage": {
        "group_normalised": _group_normalised,
        "group_centred_batch_scaled": _group_centred_batch_scaled,
        "leave_one_out": _leave_one_out,
        "batch_centred": _batch_centred,
        "batch_normalised": _batch_normalised,
        "discounted": _discounted,
        "gae": _gae,
        "gigpo": _gigpo,
        "distilled": _distilled,
    },
    "emphasis": {"difficulty": _easy, "length": _length},
    "masks": {"truncated": _truncated, "difficulty": _difficulty, "overlong_wrong": _overlong_wrong},
    "correction": {"truncate": _truncate, "mask": _mask, "reject": _reject},
    "loss": {
        "clipped": _clipped,
        "policy_gradient": _policy_gradient,
        "sequence_clipped": _sequence_clipped,
        "geometric_clipped": _geometric_clipped,
        "cispo": _cispo,
        "truncated_importance": _truncated_importance,
        "topr": _topr,
        "raft": _raft,
        "kimi": _kimi,
        "sapo": _sapo,
        "decoupled": _decoupled,
        "squared_value": _squared_value,
    },
    "aggregation": {
        "token_mean": _token_mean,
        "sequence_mean_token_mean": _sequence_mean_token_mean,
        "sequence_mean_token_sum": _sequence_mean_token_sum,
        "constant": _constant,
    },
}
"""By the key of `algorithm` that names them."""
