"""What every metric means, in one sentence with its unit. `docs/metrics.md` is written from here."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

GLOSSARY: dict[str, str] = {
    "reward/mean": "Mean reward of the trajectories trained on in this step.",
    "reward/std": "Standard deviation of the reward over the trajectories trained on in this step.",
    "reward/*": "Mean reward of the trajectories of one domain trained on in this step.",
    "reward/*/*": "Mean reward of one of several agents of a domain, over the attempts of this step in which it spoke.",
    "policy/*": "What follows the name of the policy, of that policy alone.",
    "reward_part/*": "Mean of one named part of the score over the trajectories that have it.",
    "validation/reward": "Mean reward on all held-out tasks, with the weights of one version.",
    "validation/accuracy": "Part of the attempts at all held-out tasks that were right, 0 to 1.",
    "validation/length": "Mean length of the held-out replies, in tokens.",
    "validation/failed": "Attempts at held-out tasks that failed; they are no part of the other numbers.",
    "validation/*/reward": "Mean reward on the held-out tasks of one domain.",
    "validation/*/accuracy": "Part of the attempts at held-out tasks of one domain that were right, 0 to 1.",
    "validation/*/failed": "Attempts at held-out tasks of one domain that failed.",
    "validation/pass@*": "How likely one of so many attempts at a held-out task is right, without bias, 0 to 1.",
    "validation/majority": "Part of the held-out tasks where the answer that most attempts give is right, 0 to 1.",
    "validation/*/pass@*": "How likely one of so many attempts at a held-out task of one domain is right, 0 to 1.",
    "validation/*/majority": "Part of the held-out tasks of one domain whose majority answer is right, 0 to 1.",
    "loss/policy": "The loss that was minimised, over the whole batch, before its update.",
    "loss/ratio": "Mean over trained tokens of their probability now divided by their probability before the update.",
    "loss/clip_fraction": "Part of the trained tokens whose ratio the loss clipped, 0 to 1.",
    "loss/grad_norm": "Length of the gradient over all parameters, before it was clipped.",
    "loss/entropy": "Mean entropy of the next-token distribution over trained tokens, in nats.",
    "loss/lr": "Learning rate of the step's last optimizer step.",
    "loss/refused": "Updates refused in this step because the loss or the gradient was not finite.",
    "loss/kl": "Mean over trained tokens of the estimated KL to the reference in the loss, before its coefficient.",
    "loss/correction": "Mean over trained tokens of the factor that makes up for a sampler unlike the trainer.",
    "loss/*": "Mean over trained tokens of a number that the loss gives by this name.",
    "critic/policy": "The critic's loss over the batch of its last optimizer step, before that step.",
    "critic/value_error": "Mean over trained tokens of |value - return|.",
    "critic/*": "As `loss/*` has it for the policy, of the critic.",
    "kl/reference": "Mean over trained tokens of the estimated KL of the sampling policy to the reference, in nats.",
    "kl/coefficient": "What KL was multiplied with in this step.",
    "reward/model": "Mean of what the reward model added to the rewards, its weight included.",
    "reward/masked": "Part of the trained tokens that masks and corrections left out of the loss, 0 to 1.",
    "filtered/groups": "Complete groups that were replaced since the last step instead of being trained on.",
    "gap/mean": "Mean over trained tokens of |trainer logprob - sampler logprob|, in nats.",
    "gap/max": "Largest |trainer logprob - sampler logprob| of a trained token, in nats.",
    "age/mean": "Mean over trained tokens of the steps between the version that sampled them and this step.",
    "age/max": "Most steps between the version that sampled a trained token and this step.",
    "age/*": "Part of the trained tokens that are so many steps old, 0 to 1.",
    "waiting/groups": "Complete groups that wait while this step trains on others.",
    "waiting/length": "Mean number of sampled tokens of the complete attempts that wait.",
    "waiting/reward": "Mean reward of the complete attempts that wait.",
    "waiting/share/*": "Part of the complete attempts that wait which is of this domain, 0 to 1.",
    "bias/length": "Mean length of the attempts trained on, less that of those that wait, in tokens.",
    "bias/reward": "Mean reward of the attempts trained on, less that of those that wait.",
    "bias/share/*": "Part of the attempts trained on which is of this domain, less that of those that wait.",
    "stale/groups": "Groups that became too old to be trained on since the last step; their tasks are attempted again.",
    "length/mean": "Mean number of sampled tokens of a trajectory.",
    "length/max": "Most sampled tokens of one trajectory.",
    "length/truncated": "Part of the trajectories that were cut by a limit of length or turns, 0 to 1.",
    "tokens/generated": "Tokens sampled in the trajectories that this step trained on.",
    "tokens/trained": "Tokens the loss of this step was taken over.",
    "speed/tokens_per_s": "Tokens sampled in the trajectories trained on, divided by the seconds of the step.",
    "failed/*": "Attempts that ended with this status since the last step; they are not trained on.",
    "time/wait": "Seconds the loop waited for complete groups.",
    "time/score": "Seconds in which other models, or the actor before its update, scored the batch.",
    "time/update": "Seconds spent on gradients and optimizer steps.",
    "time/publish": "Seconds spent on handing the new weights to the generators.",
    "time/validate": "Seconds spent on held-out tasks.",
    "time/checkpoint": "Seconds spent on writing a checkpoint.",
    "time/step": "Seconds of the whole step.",
    "time/*": "Seconds of the step spent in this phase.",
    "envs/replaced": "Processes with environments in them that died or were killed since the last step, and replaced.",
    "segments/rewritten": "New sequences since the last step because the chat template rewrote what stood.",
    "segments/dropped": "New sequences since the last step because old turns were dropped to make room.",
    "proxy/requests": "Requests for a reply that agents sent since the last step.",
    "proxy/refused": "Requests of agents that got no reply since the last step; the journal says why.",
    "env/*/*": "Mean of a number that the named environment counted, over its trajectories of this step.",
    "env/*/tools/calls": "Mean number of calls of tools in an attempt, those that could be read.",
    "env/*/tools/faults": "Mean number of faults in an attempt: calls that could not be read or gave no result.",
    "env/*/tools/faults/*": "The same by kind: what was wrong with the call, or with the tool.",
    "sft/loss": "Mean negative logprob of the answers' tokens in this step of the supervised warm start, in nats.",
    "sft/accuracy": "Part of the held-out tasks solved by greedy decoding during the supervised warm start, 0 to 1.",
}
"""By name, where `*` stands for any text."""


def describe(name: str) -> str | None:
    """What the metric means, by the pattern that says most about it; None if no one has said."""
    patterns = [pattern for pattern in GLOSSARY if fnmatchcase(name, pattern)]
    closest = max(patterns, key=lambda pattern: (name == pattern, len(pattern)), default=None)
    return None if closest is None else GLOSSARY[closest]


def page() -> str:
    """The glossary as Markdown."""
    rows = [f"| `{name}` | {meaning.replace('|', chr(92) + '|')} |" for name, meaning in GLOSSARY.items()]
    head = [
        "# Metrics",
        "",
        "One line of `metrics.jsonl` a step carries these; TensorBoard and the other sinks show the same names. `*`",
        "stands for a name of the run's own: a domain, a status, an environment. A number that is not finite is null.",
        "Written by `python -m roll.tracking.glossary`.",
        "",
        "| metric | meaning |",
        "|---|---|",
    ]
    return "\n".join([*head, *rows]) + "\n"


if __name__ == "__main__":
    Path("docs/metrics.md").write_text(page(), encoding="utf-8")
