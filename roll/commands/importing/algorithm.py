"""Keys of ROLL's `PPOConfig` and `RLVRConfig` about the algorithm, and the section `algorithm` made from them."""

from __future__ import annotations

from typing import Any

from roll.commands.importing.outcome import Status
from roll.commands.importing.source import Source
from roll.commands.importing.table import (
    Convert,
    Effect,
    Reason,
    Row,
    goes_to,
    into,
    neutral,
    same,
    take,
    unsupported,
    unused,
)

_AGGREGATIONS = {
    "token-mean": "token_mean",
    "seq-mean-token-sum": "sequence_mean_token_sum",
    "seq-mean-token-mean": "sequence_mean_token_mean",
}
_ESTIMATORS = {"kl": "k1", "mse": "k2", "k3": "k3"}
_VARIANTS = {
    "vanilla": "policy_gradient",
    "ppo": "clipped",
    "tis": "truncated_importance",
    "topr": "topr",
    "cispo": "cispo",
    "kimi15": "kimi",
}
"""`actor_train.pg_variant`: our losses."""
_LEVELS = {"token": "token", "segment": "turn", "sequence": "sequence", "geometric": "geometric"}
"""`train_infer_correction.is_weight.weight_type`: our levels."""
_GROUPINGS = {"traj_group_id": "group", "batch": "batch", "tags": "batch"}
_WEIGHT = "train_infer_correction.is_weight"


def build_algorithm(source: Source) -> dict[str, Any]:
    """The section `algorithm`."""
    shaping = _shaping(source)
    section: dict[str, Any] = {
        "shaping": shaping,
        "kl": _kl(source),
        "advantage": _advantage(source, shaped=bool(shaping)),
        "masks": _masks(source),
        "advantage_weights": [name for name in ("difficulty", "length") if source.get(f"{name}_loss_weight")],
        "correction": _correction(source),
        "loss": _loss(source),
        "aggregation": _aggregation(source),
        "needs": {"gae": ["critic"], "gigpo": ["states"]}.get(str(source.get("adv_estimator")), []),
    }
    if has_critic(source) and source.get("value_clip") is not None:
        section["value_loss"] = {"kind": "squared_value", "clip": source.number("value_clip")}
    return {name: value for name, value in section.items() if value not in (None, [])}


def has_critic(source: Source) -> bool:
    """Whether the run has a value function."""
    return source.get("adv_estimator") == "gae"


def _has_reward_kl(source: Source) -> bool:
    """Whether ROLL subtracts KL from the reward; an rlvr run does so only with `add_token_level_kl`."""
    enabled = source.pipeline == "agentic" or bool(source.get("add_token_level_kl"))
    return enabled and source.number("init_kl_coef") > 0


def _scopes(source: Source) -> tuple[str, str]:
    """Scopes of the mean that is subtracted from rewards and of the deviation that divides them."""
    if source.pipeline == "agentic":
        scope = _GROUPINGS.get(str(source.get("reward_normalization.grouping")), "none")
        method = source.get("reward_normalization.method")
        return ("none", "none") if method == "identity" else (scope, "none" if method == "mean" else scope)
    if source.get("adv_estimator") == "grpo":
        return "group", "group"
    if (scope := source.get("reward_norm")) is not None:
        return str(scope), "none" if source.get("reward_shift") else str(scope)
    return str(source.get("norm_mean_type") or "none"), str(source.get("norm_std_type") or "none")


def _shaping(source: Source) -> list[dict[str, Any]]:
    """Transformations of rewards; none where the advantage `group_normalised` computes the same."""
    asymmetric = source.get("reward_normalization.method") == "asym_clip"
    clip, scopes = source.get("reward_clip"), _scopes(source)
    plain = not (clip or asymmetric or has_critic(source) or _has_reward_kl(source)) and source.number("gamma") == 1
    if source.get("adv_estimator") in ("gigpo", "step_reinforce") or (plain and scopes == ("group", "group")):
        scopes = ("none", "none")
    steps: list[dict[str, Any]] = []
    if scopes != ("none", "none"):
        steps.append({"kind": "normalised", "mean": scopes[0], "std": scopes[1], "unbiased": True})
    if asymmetric:
        steps.append({"kind": "clipped", "low": -1.0, "high": 3.0})
    if clip:
        bound = source.number("reward_clip")
        steps.append({"kind": "clipped", "low": -bound, "high": bound})
    return steps


def _advantage(source: Source, *, shaped: bool) -> dict[str, Any]:
    gamma = source.number("gamma")
    match source.get("adv_estimator"):
        case "gae":
            return {"kind": "gae", "gamma": gamma, "lam": source.number("lambd")}
        case "gigpo":
            weight = source.number("step_reward_weight") / source.number("episode_reward_weight")
            return {"kind": "gigpo", "step_weight": weight, "gamma": source.number("step_reward_gamma")}
        case "step_reinforce":
            return {"kind": "discounted", "per": "turn", "gamma": source.number("step_reward_gamma")}
        case "agentic_reinforce":
            return {"kind": "discounted", "per": "turn", "gamma": gamma}
        case "grpo" | "reinforce" if not shaped and _scopes(source) == ("group", "group"):
            return {"kind": "group_normalised", "unbiased": True}
        case "grpo" | "reinforce":
            return {"kind": "discounted", "per": "token", "gamma": gamma}
        case _:
            raise source.fault("adv_estimator", "is gae, grpo, reinforce, gigpo, step_reinforce or agentic_reinforce")


def _kl(source: Source) -> dict[str, Any] | None:
    if source.get("use_kl_loss"):
        return {"estimator": "k3", "coefficient": source.number("kl_loss_coef"), "apply_to": "loss"}
    estimator = _ESTIMATORS.get(str(source.get("kl_penalty")))
    if not _has_reward_kl(source) or estimator is None:
        return None
    section = {"estimator": estimator, "coefficient": source.number("init_kl_coef"), "apply_to": "reward"}
    if source.get("target_kl") is not None:
        section |= {"target": source.number("target_kl"), "horizon": source.whole("kl_horizon")}
    return section


def _loss_kind(source: Source) -> str:
    variant = source.get("actor_train.pg_variant")
    if variant is not None:
        return _VARIANTS.get(str(variant), "clipped")
    if source.get("use_policy_loss_type") == "PG":
        return "policy_gradient"
    sequence = source.get("importance_sampling") == "seq" or source.get("ratio_type") == "segment"
    return "sequence_clipped" if sequence else "clipped"


def _loss(source: Source) -> dict[str, Any]:
    kind = _loss_kind(source)
    loss: dict[str, Any] = {"kind": kind}
    if kind in ("clipped", "sequence_clipped"):
        low, high = ("pg_clip_low", "pg_clip_high") if source.get("use_pg_clip_range") else ("pg_clip", "pg_clip")
        loss |= {"clip_low": source.number(low), "clip_high": source.number(high)}
    if kind == "clipped" and source.get("dual_clip_loss"):
        loss["dual_clip"] = 1 + 2 * source.number("pg_clip")
    if kind == "topr":
        loss |= {name: source.number(f"actor_train.topr_{name}_weight") for name in ("positive", "negative")}
    return loss


def _aggregation(source: Source) -> Any:
    mode = source.get("loss_agg_mode")
    if mode == "seq-mean-token-sum-norm":
        return {"kind": "constant", "tokens": source.max_seq_len}
    if mode not in _AGGREGATIONS:
        raise source.fault("loss_agg_mode", f"is seq-mean-token-sum-norm, {', '.join(_AGGREGATIONS)}")
    return _AGGREGATIONS[mode]


def _masks(source: Source) -> list[Any]:
    masks: list[Any] = ["truncated"] if source.get("max_len_mask") and source.pipeline == "rlvr" else []
    if source.get("difficulty_mask"):
        low, high = (source.number(f"difficulty_{side}_threshold") for side in ("low", "high"))
        masks.append({"kind": "difficulty", "low": low, "high": high})
    if source.get("error_max_len_clip"):
        masks.append({"kind": "overlong_wrong", "max_tokens": source.whole("error_max_len_threshold") - 1})
    return masks


def _correction(source: Source) -> dict[str, Any] | None:
    level = _LEVELS.get(str(source.get(f"{_WEIGHT}.weight_type")))
    if not source.get(f"{_WEIGHT}.enabled") or level is None:
        return None
    return {"kind": "truncate", "level": level, "cap": source.number(f"{_WEIGHT}.upper_bound")}


def _unclipped(source: Source) -> str:
    kind = _loss_kind(source)
    return "" if kind in ("clipped", "sequence_clipped") else f"the loss {kind} has its own bounds"


def _no_dual_clip(source: Source) -> str:
    return "" if _loss_kind(source) == "clipped" else f"the loss {_loss_kind(source)} has no dual clip"


def _no_topr(source: Source) -> str:
    return "" if _loss_kind(source) == "topr" else "only for pg_variant topr"


def _no_reward_kl(source: Source) -> str:
    if source.get("use_kl_loss"):
        return "a run has one KL term, and use_kl_loss sets it"
    return "" if _has_reward_kl(source) else "no KL is subtracted from rewards"


def _fixed_scopes(source: Source) -> str:
    return "adv_estimator grpo normalises by group" if source.get("adv_estimator") == "grpo" else ""


def _other_scopes(source: Source) -> str:
    return _fixed_scopes(source) or ("reward_norm is set" if source.get("reward_norm") is not None else "")


def _has_variant(source: Source) -> str:
    return "" if source.get("actor_train.pg_variant") is None else "pg_variant chooses the loss"


def _no_weight(source: Source) -> str:
    return "" if source.get(f"{_WEIGHT}.enabled") else f"{_WEIGHT}.enabled is not set"


def _no_mask(source: Source) -> str:
    return "" if source.pipeline == "rlvr" else "ROLL does not apply it in agentic runs"


def _one_of(names: dict[str, str], ours: str, otherwise: str, unless: Reason = lambda _: "") -> Convert:
    """The converter of a key that a builder translates with the table `names`."""

    def convert(source: Source, key: str, value: Any) -> Effect:
        if reason := unless(source):
            return unused(reason)
        if value is None:
            return Effect(Status.DEFAULT)
        return goes_to(key, ours) if value in names else unsupported(f"{otherwise} (known: {', '.join(names)})")

    return convert


def _kl_coefficient(source: Source, key: str, _value: Any) -> Effect:
    if source.number(key) == 0:
        return Effect(Status.DEFAULT)
    reason = _no_reward_kl(source)
    return unused(reason) if reason else goes_to(key, "algorithm.kl.coefficient")


def _aggregation_effect(_source: Source, key: str, value: Any) -> Effect:
    note = "ROLL divides by the padded length, this by rollout.max_seq_len" if value not in _AGGREGATIONS else ""
    return goes_to(key, "algorithm.aggregation", note)


def _normalisation(source: Source, key: str, value: Any) -> Effect:
    if source.get("adv_estimator") in ("gigpo", "step_reinforce"):
        return unsupported(f"{source.get('adv_estimator')} has a fixed normalisation here")
    if source.get("reward_normalization.method") == "identity":
        return Effect(Status.DEFAULT, {}, "rewards are not normalised")
    if key.endswith("grouping") and value not in _GROUPINGS:
        return unsupported("rewards are normalised by group or batch only; here they are not")
    note = "over the batch, not per environment" if value == "tags" else ""
    return goes_to(key, "algorithm.shaping" if _shaping(source) else "algorithm.advantage", note)


ROWS: tuple[Row, ...] = (
    into("adv_estimator", "algorithm.advantage", default="gae"),
    take("ppo_epochs", "algorithm.epochs"),
    take("whiten_advantages", "algorithm.whiten"),
    take("advantage_clip", "algorithm.advantage_clip"),
    take("entropy_loss_coef", "algorithm.entropy_coefficient"),
    take("critic_warmup", "algorithm.critic_warmup"),
    into("lambd", "algorithm.advantage.lam", default=0.95, only=("gae",)),
    into("gamma", "algorithm.advantage", default=1, only=("gae", "grpo", "reinforce", "agentic_reinforce")),
    into("step_reward_gamma", "algorithm.advantage.gamma", default=0.95, only=("gigpo", "step_reinforce")),
    into("step_reward_weight", "algorithm.advantage.step_weight", default=1.0, only=("gigpo",)),
    into("episode_reward_weight", "algorithm.advantage.step_weight", default=1.0, only=("gigpo",)),
    into("pg_clip", "algorithm.loss", default=0.2, unless=_unclipped),
    into("use_pg_clip_range", "algorithm.loss", unless=_unclipped),
    into("pg_clip_low", "algorithm.loss.clip_low", default=0.2, when="use_pg_clip_range", unless=_unclipped),
    into("pg_clip_high", "algorithm.loss.clip_high", default=0.2, when="use_pg_clip_range", unless=_unclipped),
    into("dual_clip_loss", "algorithm.loss.dual_clip", unless=_no_dual_clip),
    into("value_clip", "algorithm.value_loss.clip", only=("gae",)),
    into("importance_sampling", "algorithm.loss.kind", unless=_has_variant),
    into("ratio_type", "algorithm.loss.kind", unless=_has_variant),
    into("use_policy_loss_type", "algorithm.loss.kind", unless=_has_variant),
    Row("actor_train.pg_variant", _one_of(_VARIANTS, "algorithm.loss.kind", "no such loss here, so it is clipped")),
    into("actor_train.topr_positive_weight", "algorithm.loss.positive", default=1.0, unless=_no_topr),
    into("actor_train.topr_negative_weight", "algorithm.loss.negative", default=1.0, unless=_no_topr),
    Row("loss_agg_mode", _aggregation_effect, "seq-mean-token-mean"),
    into("use_kl_loss", "algorithm.kl.apply_to"),
    into("kl_loss_coef", "algorithm.kl.coefficient", default=0, when="use_kl_loss"),
    Row("init_kl_coef", _kl_coefficient, 0.2),
    into("add_token_level_kl", "algorithm.kl.apply_to", unless=_no_reward_kl),
    into("target_kl", "algorithm.kl.target", unless=_no_reward_kl),
    into("kl_horizon", "algorithm.kl.horizon", default=10_000, when="target_kl", unless=_no_reward_kl),
    Row("kl_penalty", _one_of(_ESTIMATORS, "algorithm.kl.estimator", "the run has no KL", _no_reward_kl), "kl"),
    into("reward_clip", "algorithm.shaping"),
    into("norm_mean_type", "algorithm.shaping", unless=_other_scopes),
    into("norm_std_type", "algorithm.shaping", unless=_other_scopes),
    into("reward_norm", "algorithm.shaping", unless=_fixed_scopes),
    into("reward_shift", "algorithm.shaping", when="reward_norm", unless=_fixed_scopes),
    *neutral("rewards are scaled by normalisation only", "reward_scale", "use_reward_scaling", "use_reward_norm"),
    Row("reward_normalization.grouping", _normalisation, "state"),
    Row("reward_normalization.method", _normalisation, "identity"),
    into("max_len_mask", "algorithm.masks", unless=_no_mask),
    into("difficulty_mask", "algorithm.masks"),
    into("difficulty_low_threshold", "algorithm.masks", default=0.0, when="difficulty_mask"),
    into("difficulty_high_threshold", "algorithm.masks", default=1.0, when="difficulty_mask"),
    into("error_max_len_clip", "algorithm.masks"),
    into("error_max_len_threshold", "algorithm.masks", default=9_999_999_999, when="error_max_len_clip"),
    into("difficulty_loss_weight", "algorithm.advantage_weights", note="the weights have another formula"),
    into("length_loss_weight", "algorithm.advantage_weights", note="the weights have another formula"),
    into(f"{_WEIGHT}.enabled", "algorithm.correction"),
    Row(f"{_WEIGHT}.weight_type", _one_of(_LEVELS, "algorithm.correction.level", "no correction", _no_weight), "token"),
    into(f"{_WEIGHT}.upper_bound", "algorithm.correction.cap", default=1.2, when=f"{_WEIGHT}.enabled"),
    *neutral("weights never carry a gradient", f"{_WEIGHT}.detach", values=(True,)),
    *neutral("write algorithm.correction by hand (mask, reject)", "train_infer_correction.**"),
    *neutral("rewards are not whitened per token; set algorithm.whiten", "whiten_rewards"),
    *neutral("there is no such term in the loss", "postive_loss_coef", "positive_loss_coef", "l2"),
    *neutral("choose algorithm.loss topr instead", "use_topr_neg_loss_coef", "use_topr_loss"),
    *neutral("the policy loss has the factor 1", "rl_loss_coef", values=(1,)),
    *neutral("give a reward for length (`length`)", "add_len_reward"),
    *neutral("masks drop trajectories from the loss only", "mask_type", values=("loss",)),
    *same(
        "a run has a reference and recomputes logprobs where its algorithm needs them",
        *("enable_reference", "enable_old_logprobs_recompute", "force_disable_old_logprobs_recompute"),
    ),
)
