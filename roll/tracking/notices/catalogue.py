"""What each kind of notice means, and what to look at; the source of the table in `docs/notices.md`."""

from __future__ import annotations

from dataclasses import dataclass

from roll.config.notices import NoticeKind


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeType:
    """One kind of notice."""

    title: str
    condition: str
    """When it is shown."""
    metrics: tuple[str, ...]
    """Metrics to look at; `{domain}` is that of the notice."""
    keys: tuple[str, ...]
    """Configuration keys that are usual causes or remedies."""
    held_out: bool = False
    """Whether the attempts to read are those of the validation, not those of the step."""


CATALOGUE: dict[NoticeKind, NoticeType] = {
    "reward_collapse": NoticeType(
        title="reward collapse",
        condition="The mean reward of 5 steps is below the best such mean by a third of it, by half of the gain since "
        "the start, and by 4 standard deviations; so are the newest 3 steps.",
        metrics=("reward/mean", "loss/entropy", "kl/reference", "loss/grad_norm"),
        keys=("actor_train.optimizer.lr", "algorithm.kl", "algorithm.entropy_coefficient", "algorithm.correction"),
    ),
    "domain_break": NoticeType(
        title="one domain breaks",
        condition="The reward of one domain falls or jumps within 3 steps by a third of its size and by 4 standard "
        "deviations, and the others change less than half as much; or it falls as for a reward collapse, alone.",
        metrics=("domain/{domain}/reward", "domain/{domain}/std", "domain/{domain}/uniform"),
        keys=("tasks", "rewards"),
    ),
    "constant_reward": NoticeType(
        title="constant reward",
        condition="All attempts at one task have equal rewards, for all tasks of a domain, in 10 steps and 32 groups; "
        "unless the domain has reached its best reward before, by learning.",
        metrics=("domain/{domain}/uniform", "domain/{domain}/reward", "domain/{domain}/std"),
        keys=("tasks", "rollout.temperature", "rollout.group_size"),
    ),
    "no_signal": NoticeType(
        title="no signal",
        condition="In 5 steps in a row with 32 groups, 90 % of them have equal rewards: half of them were filtered, or "
        "the rewards of 30 % differed before and the reward is not at its best.",
        metrics=("trained/uniform", "filtered/groups", "trained/groups", "reward/mean"),
        keys=("tasks", "rollout.group_size", "algorithm.filters", "rollout.temperature"),
    ),
    "validation_fall": NoticeType(
        title="validation falls",
        condition="The held-out reward is below its best by a tenth, and by 4 standard deviations of the difference; "
        "in two validations in a row 3 are enough.",
        metrics=("validation/reward", "validation/accuracy", "reward/mean"),
        keys=("checkpoint.best_metric", "actor_train.optimizer.lr", "algorithm.kl"),
        held_out=True,
    ),
    "entropy_collapse": NoticeType(
        title="entropy collapse",
        condition="The entropy is below a tenth of its highest mean, and either the reward has not improved since "
        "then, or 80 % of the groups have equal rewards while tasks remain unsolved.",
        metrics=("loss/entropy", "trained/uniform", "reward/mean"),
        keys=("algorithm.entropy_coefficient", "algorithm.kl", "actor_train.optimizer.lr", "rollout.temperature"),
    ),
    "kl_growth": NoticeType(
        title="KL blow-up",
        condition="The KL to the reference is above 0.5 nats per token and above 5 times its median over the last 20 "
        "steps, in 3 steps in a row.",
        metrics=("kl/reference", "loss/kl", "kl/coefficient", "loss/grad_norm"),
        keys=("algorithm.kl", "actor_train.optimizer.lr", "actor_train.optimizer.max_grad_norm"),
    ),
    "length_growth": NoticeType(
        title="length explosion",
        condition="Responses become twice as long within 50 steps, by 16 tokens and 4 standard deviations at least, "
        "and the reward has not improved.",
        metrics=("length/mean", "length/truncated", "reward/mean"),
        keys=("rollout.max_new_tokens", "algorithm.aggregation", "algorithm.shaping"),
    ),
    "length_collapse": NoticeType(
        title="length collapse",
        condition="Responses lose 60 % of their length within 50 steps, at least 8 tokens and 4 standard deviations, "
        "and the reward has not improved.",
        metrics=("length/mean", "reward/mean", "loss/entropy"),
        keys=("tasks", "algorithm.aggregation", "algorithm.shaping"),
    ),
    "truncation": NoticeType(
        title="truncated responses",
        condition="Half of the responses are truncated, 25 points and 4 standard deviations more than at some time in "
        "the last 50 steps, and the reward has not improved.",
        metrics=("length/truncated", "length/mean", "reward/mean"),
        keys=("rollout.max_new_tokens", "rollout.max_seq_len", "algorithm.masks"),
    ),
    "sampler_mismatch": NoticeType(
        title="sampler mismatch grows",
        condition="The mean difference of logprobs over 5 steps is 3 times its lowest, and above 0.02 nats; with stale "
        "tokens, above 0.2.",
        metrics=("sampler_mismatch/mean", "sampler_mismatch/max", "staleness/mean"),
        keys=("algorithm.correction", "actor_train.dtype", "actor_infer", "rollout.max_staleness"),
    ),
    "stale_tokens": NoticeType(
        title="stale tokens without a correction",
        condition="Stale tokens are 0.2 nats and more from the trained policy in 5 steps in a row, and nothing "
        "corrects for it.",
        metrics=("staleness/mean", "sampler_mismatch/mean"),
        keys=("algorithm.correction", "rollout.max_staleness"),
    ),
    "gradient_growth": NoticeType(
        title="gradient explosion",
        condition="The gradient norm is above 10 times its median over the last 30 steps, in 3 steps in a row.",
        metrics=("loss/grad_norm", "loss/policy", "loss/lr"),
        keys=("actor_train.optimizer.lr", "actor_train.optimizer.max_grad_norm", "actor_train.dtype"),
    ),
    "refused_updates": NoticeType(
        title="refused updates",
        condition="An update was refused because the loss or the gradient was not finite; over after 10 steps without.",
        metrics=("loss/refused", "loss/grad_norm"),
        keys=("actor_train.optimizer.lr", "actor_train.dtype", "actor_train.optimizer.max_nonfinite_updates"),
    ),
}


def page() -> str:
    """The table of all notices as Markdown."""
    rows: list[str] = []
    for kind, entry in CATALOGUE.items():
        metrics = ", ".join(f"`{name.format(domain='<domain>')}`" for name in entry.metrics)
        keys = ", ".join(f"`{key}`" for key in entry.keys)
        rows.append(f"| `{kind}` | {entry.title} | {entry.condition} | {metrics} | {keys} |")
    head = ["| kind | notice | shown if | metrics | keys |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows]) + "\n"
