"""The meaning of every metric, in one sentence with its unit; the source of `docs/metrics.md`."""

from __future__ import annotations

from fnmatch import fnmatchcase

GLOSSARY: dict[str, str] = {
    "reward/mean": "Mean reward of the trajectories trained on in this step.",
    "reward/std": "Standard deviation of the reward over the trajectories trained on in this step.",
    "reward/model": "Mean contribution of the reward model to the rewards, after its weight.",
    "reward/masked": "Fraction of the trained tokens that masks and corrections removed from the loss, 0 to 1.",
    "reward/spans": "Mean sum of the rewards of spans within a response, over the trajectories whose score has spans.",
    "reward/*": "Mean of one named part of the score, over the trajectories of this step that have it.",
    "reward/part/*": "The same for a part named mean, std, model, masked or spans.",
    "domain/*/reward": "Mean reward of the trajectories of one domain trained on in this step.",
    "domain/*/reward/*": "Mean reward of one of several agents in a domain, over the attempts in which it took a turn.",
    "domain/*/std": "Standard deviation of the reward over the scored trajectories of one domain in this step.",
    "rewarded/*/length": "Mean number of sampled tokens of a domain's responses with at least its mean reward.",
    "rewarded/*/distinct": "Distinct pairs of adjacent tokens divided by all pairs, in 8 of the same, 0 to 1.",
    "rewarded/*/identical": "Fraction of the same that are identical for many tasks with different references, 0 to 1.",
    "rewarded/*/vocabulary": "Fraction of the same, or of a sample of them, with words of a grader, 0 to 1.",
    "hacks/notices": "Notices about possible reward hacking in this step.",
    "policy/*": "The metric named after the policy, for that policy alone.",
    "validation/reward": "Mean reward on all held-out tasks, with the weights of one version.",
    "validation/accuracy": "Fraction of the attempts at all held-out tasks that were right, 0 to 1.",
    "validation/length": "Mean length of the held-out responses, in tokens.",
    "validation/failed": "Attempts at held-out tasks that failed; the other validation metrics exclude them.",
    "validation/*/reward": "Mean reward on the held-out tasks of one domain.",
    "validation/*/accuracy": "Fraction of the attempts at held-out tasks of one domain that were right, 0 to 1.",
    "validation/*/failed": "Attempts at held-out tasks of one domain that failed.",
    "validation/pass@*": "Unbiased estimate of the chance that one of k attempts at a held-out task is right, 0 to 1.",
    "validation/majority": "Fraction of the held-out tasks whose most frequent answer is right, 0 to 1.",
    "validation/*/pass@*": "Unbiased pass@k on the held-out tasks of one domain, 0 to 1.",
    "validation/*/majority": "The same on the held-out tasks of one domain.",
    "loss/policy": "The minimised loss over the whole batch, before its update.",
    "loss/ratio": "Mean over trained tokens of the current probability divided by the probability before the update.",
    "loss/clip_fraction": "Fraction of the trained tokens whose ratio the loss clipped, 0 to 1.",
    "loss/grad_norm": "Norm of the gradient over all parameters, before clipping.",
    "loss/grad_norm/*": "The same for one layer, or for the parameters outside of the layers (`layer_grad_norms`).",
    "loss/entropy": "Mean entropy of the next-token distribution over trained tokens, in nats.",
    "loss/lr": "Learning rate of the step's last optimizer step.",
    "loss/refused": "Updates skipped in this step because the loss or the gradient was not finite.",
    "loss/kl": "Mean over trained tokens of the estimated KL to the reference in the loss, before its coefficient.",
    "loss/correction": "Mean over trained tokens of the weight that corrects for the sampler mismatch.",
    "experts/max_load": "Tokens of the most chosen expert over the mean of all, as a mean over layers; 1 is even.",
    "experts/unused": "Fraction of the experts of all layers that no token of the batch chose, 0 to 1.",
    "experts/replay_changed": "Fraction of choices repeated from the generator where the trainer would choose others.",
    "experts/balance": "Load-balance loss: experts x sum of token share x mean probability, over layers; 1 is even.",
    "loss/*": "Mean over trained tokens of a number that the loss returns under this name.",
    "critic/policy": "The critic's loss over the batch of its last optimizer step, before that step.",
    "critic/value_error": "Mean over trained tokens of |value - return|.",
    "critic/*": "The metric of `loss/*` with this name, for the critic.",
    "kl/reference": "Mean over trained tokens of the estimated KL of the sampling policy to the reference, in nats.",
    "kl/coefficient": "Coefficient of the KL term in this step.",
    "filtered/groups": "Complete groups that a filter replaced since the last step, so that they are not trained on.",
    "sampler_mismatch/mean": "Mean over trained tokens of |trainer logprob - sampler logprob|, in nats.",
    "sampler_mismatch/max": "Largest |trainer logprob - sampler logprob| of a trained token, in nats.",
    "mixture/share/*": "Fraction of the groups that the schedule gives to this source at the newest draw, 0 to 1.",
    "staleness/mean": "Mean over trained tokens of the steps between the version that sampled them and this step.",
    "staleness/max": "Most steps between the version that sampled a trained token and this step.",
    "staleness/*": "Fraction of the trained tokens with this staleness in steps, 0 to 1.",
    "waiting/groups": "Complete groups that wait while this step trains on others.",
    "waiting/length": "Mean number of sampled tokens of the complete attempts that wait.",
    "waiting/reward": "Mean reward of the complete attempts that wait.",
    "waiting/share/*": "Fraction of the waiting complete attempts that belong to this domain, 0 to 1.",
    "bias/length": "Mean length of the attempts trained on minus that of the waiting ones, in tokens.",
    "bias/reward": "Mean reward of the attempts trained on minus that of the waiting ones.",
    "bias/share/*": "This domain's fraction of the attempts trained on minus its fraction of the waiting ones.",
    "stale/groups": "Groups that became too old to train on since the last step; their tasks are attempted again.",
    "length/mean": "Mean number of sampled tokens per trajectory.",
    "length/max": "Most sampled tokens in one trajectory.",
    "length/truncated": "Fraction of the trajectories cut by a length or turn limit, 0 to 1.",
    "tokens/generated": "Tokens sampled in the trajectories that this step trained on.",
    "tokens/trained": "Tokens that the loss of this step covers.",
    "speed/tokens_per_s": "Tokens sampled in the trajectories trained on, divided by the seconds of the step.",
    "failed/*": "Attempts that ended with this status since the last step; they are not trained on.",
    "time/wait": "Seconds the loop waited for complete groups.",
    "time/score": "Seconds in which other models, or the actor before its update, scored the batch.",
    "time/update": "Seconds spent on gradients and optimizer steps.",
    "time/publish": "Seconds spent on sending the new weights to the generators.",
    "time/validate": "Seconds spent on held-out tasks.",
    "time/checkpoint": "Seconds spent on writing a checkpoint.",
    "time/step": "Seconds of the whole step.",
    "time/*": "Seconds of the step spent in this phase.",
    "envs/replaced": "Environment processes that died or were killed, and were replaced, since the last step.",
    "segments/rewritten": "New sequences since the last step because the chat template rewrote earlier text.",
    "segments/dropped": "New sequences since the last step because old turns were dropped to make room.",
    "proxy/requests": "Completion requests that agents sent since the last step.",
    "proxy/refused": "Requests of agents that were refused since the last step; the journal has the reasons.",
    "proxy/ignored": "Parameters of agents' requests that `proxy.ignore` dropped since the last step.",
    "env/*/*": "Mean of a number that the environment of a domain counted, over its trajectories of this step.",
    "env/*/tools/calls": "Mean number of parsable tool calls per attempt.",
    "env/*/tools/faults": "Mean number of faults per attempt: tool calls that were not parsable or gave no result.",
    "env/*/tools/faults/*": "Mean number of faults of this kind per attempt.",
    "sft/loss": "Mean negative logprob of the answers' tokens in this step of supervised fine-tuning, in nats.",
    "sft/turns": "Number of responses that this step of supervised fine-tuning trained on.",
    "sft/tokens": "Number of tokens in these responses.",
    "sft/accuracy": "Fraction of the held-out tasks solved by greedy decoding during supervised fine-tuning, 0 to 1.",
}
"""Meaning by metric name; `*` matches any text."""


def describe(name: str) -> str | None:
    """Meaning of the metric, from its most specific pattern; None for an unknown metric."""
    patterns = [pattern for pattern in GLOSSARY if fnmatchcase(name, pattern)]
    closest = max(patterns, key=lambda pattern: (name == pattern, len(pattern)), default=None)
    return None if closest is None else GLOSSARY[closest]


def page() -> str:
    """The glossary as Markdown."""
    rows = [f"| `{name}` | {meaning.replace('|', chr(92) + '|')} |" for name, meaning in GLOSSARY.items()]
    head = [
        "# Metrics",
        "",
        "`metrics.jsonl` has one line per step with these metrics, and one for step 0, before training.",
        "TensorBoard and the other sinks use the same names.",
        "`*` is a name that the run defines, such as a domain or a status. A number that is not finite is null.",
        "Generated by `make docs`.",
        "",
        "| metric | meaning |",
        "|---|---|",
    ]
    return "\n".join([*head, *rows]) + "\n"
