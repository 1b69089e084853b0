"""What a run really means, in words. Formulas are those of `roll.algorithms`, with the arguments filled in."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from roll.config.schema import Named, Run, Source

_WIDTH = 110

DEFAULTS: dict[str, dict[str, Any]] = {
    "clipped": {"clip_low": 0.2, "clip_high": 0.2},
    "group_normalised": {"unbiased": False, "eps": 1e-6, "scale": True},
}
"""What our own functions take where a file says nothing; a test holds them to the functions."""


def explain(run: Run) -> str:
    """A page for the terminal: what one step does, how old samples may be, what shares a device, what the loss is."""
    blocks = [
        ("Run", _run(run)),
        ("One step", _step(run)),
        ("Staleness", _staleness(run)),
        ("Devices", _devices(run)),
        ("Algorithm", _algorithm(run)),
        ("Tasks", _tasks(run.tasks)),
        ("Afterwards", _afterwards(run)),
    ]
    return "\n\n".join(f"{title}\n{_aligned(rows)}" for title, rows in blocks)


def headline(run: Run) -> str:
    """The run in one line."""
    rollout = run.rollout
    return (
        f"{run.name}: {run.steps} steps of {rollout.groups_per_step} groups x {rollout.group_size} attempts, "
        f"{run.algorithm.recipe or run.algorithm.loss.kind}, staleness at most {rollout.max_staleness:g}, "
        f"tasks {', '.join(source.name for source in run.tasks)}"
    )


def _run(run: Run) -> list[tuple[str, str]]:
    shape = run.model.shape
    built = f"{shape.architecture} with {shape.layers} layers of width {shape.hidden}, initialised" if shape else ""
    promise = "the same seed gives the same parameters and metrics" if run.deterministic else "not promised"
    return [
        ("name", f"{run.name}, kept in {run.directory}/{run.name}"),
        ("model", built or f"weights of {run.model.path}"),
        ("length", f"{run.steps} steps, seed {run.seed}"),
        ("determinism", promise),
    ]


def _step(run: Run) -> list[tuple[str, str]]:
    rollout, budget = run.rollout, run.actor_train.tokens_per_microbatch
    num_trajectories = rollout.groups_per_step * rollout.group_size
    most = math.ceil(num_trajectories / (budget // rollout.context))
    return [
        (
            "trajectories",
            f"{num_trajectories} = {rollout.groups_per_step} groups (tasks) x {rollout.group_size} attempts at each",
        ),
        (
            "each attempt",
            f"at most {rollout.max_new_tokens} new tokens a reply, {rollout.max_turns} replies, "
            f"{rollout.context} tokens in all",
        ),
        ("sampled from", _sampling(rollout.temperature, rollout.top_p, rollout.top_k)),
        ("optimizer", f"1 step per batch; {_optimizer(run)}"),
        (
            "micro-batches",
            f"of at most {budget} tokens: {most} if every attempt fills its context, else fewer; "
            "how the batch is cut changes no gradient",
        ),
    ]


def _sampling(temperature: float, top_p: float, top_k: int) -> str:
    if temperature == 0:
        return "nothing: greedy, always the likeliest token"
    cuts = [f"the {top_k} likeliest tokens"] if top_k else []
    cuts += [f"the fewest tokens that hold {top_p:g} of the probability"] if top_p < 1 else []
    start = (
        f"softmax(logits / {temperature:g})" if temperature != 1 else "softmax(logits), the model's own distribution"
    )
    return f"{start}, cut to {' and '.join(cuts)}, in sampler and trainer alike" if cuts else start


def _optimizer(run: Run) -> str:
    optimizer = run.actor_train.optimizer
    warmup = f" after {optimizer.warmup_steps} steps of warm-up" if optimizer.warmup_steps else ""
    end = "" if optimizer.schedule == "constant" else f" down to {optimizer.final_lr * optimizer.lr:g}"
    return (
        f"AdamW, learning rate {optimizer.lr:g}, {optimizer.schedule}{end}{warmup}, "
        f"gradient norm clipped at {optimizer.clip_norm:g}"
    )


def _staleness(run: Run) -> list[tuple[str, str]]:
    rollout = run.rollout
    bound, count = rollout.max_staleness, rollout.groups_per_step
    return [
        ("bound", f"max_staleness {bound:g}"),
        ("slots", f"floor(({bound:g} + 1) x {count}) = {rollout.num_slots} groups under way at once"),
        ("so", _age(rollout.num_slots, count)),
    ]


def _age(num_slots: int, count: int) -> str:
    """What the number of slots says about the oldest samples of a batch of `count` groups."""
    oldest = math.ceil(num_slots / count) - 1
    if oldest == 0:
        return "synchronous: every token is sampled by the weights that the step then trains"
    updates = "one update old" if oldest == 1 else f"{oldest} updates old"
    num_oldest = num_slots - oldest * count
    if num_oldest == count:
        return f"any group may be up to {updates} when it is trained on, and none is older"
    some = "half" if 2 * num_oldest == count else f"{num_oldest} of {count}"
    rest = "fresh" if oldest == 1 else "fresher"
    return f"at most {some} of the groups are {updates}, the others are {rest}"


def _devices(run: Run) -> list[tuple[str, str]]:
    if run.rollout.max_staleness == 0:
        shared = "trainer and generator share one module; the optimizer step is the publication"
    else:
        shared = "the generator owns a second copy of the parameters, written between two decode steps"
    return [
        ("executor", "inline: all roles in one process and one thread"),
        ("actor_train", f"{run.actor_train.backend} on {_device(run.actor_train.devices)}"),
        (
            "actor_infer",
            f"{run.actor_infer.backend} on {_device(run.actor_infer.devices)}, {run.actor_infer.slots} slots",
        ),
        ("parameters", shared),
        ("overlap", "no computing overlaps; only waiting for environments and judges is hidden"),
    ]


def _device(devices: str) -> str:
    return "the first GPU, or the CPU where there is none" if devices == "auto" else devices


def _algorithm(run: Run) -> list[tuple[str, str]]:
    algorithm = run.algorithm
    return [
        ("recipe", algorithm.recipe or "none: spelled out in the file"),
        ("advantage", _in_words(algorithm.advantage)),
        ("loss", _in_words(algorithm.loss)),
        ("aggregation", _in_words(algorithm.aggregation)),
    ]


def _in_words(named: Named) -> str:
    """Name and formula of a part of ours; name and arguments of a part that is not."""
    if named.kind not in _FORMULAS:
        arguments = ", ".join(f"{name}={value!r}" for name, value in named.arguments.items())
        return f"{named.kind}({arguments})"
    return f"{named.kind}: {_FORMULAS[named.kind]({**DEFAULTS.get(named.kind, {}), **named.arguments})}"


def _clipped(arguments: Mapping[str, Any]) -> str:
    low, high = arguments["clip_low"], arguments["clip_high"]
    return (
        f"L = -min(r A, clip(r, 1 - {low}, 1 + {high}) A), r = exp(logprob - old logprob); with one update per batch "
        "the old weights are the current ones, so r = 1 and clipping never acts: the gradient is that of -A logprob"
    )


def _group_normalised(arguments: Mapping[str, Any]) -> str:
    deviation = "std with n - 1" if arguments["unbiased"] else "std with n"
    divided = f" / (the group's {deviation} + {arguments['eps']:g})" if arguments["scale"] else ""
    return f"A = (reward - mean of its group){divided}; 0 in a group whose rewards are all equal"


_FORMULAS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "group_normalised": _group_normalised,
    "batch_centred": lambda _: "A = reward - mean reward of the batch",
    "clipped": _clipped,
    "policy_gradient": lambda _: "L = -A logprob",
    "token_mean": lambda _: "the mean over all trained tokens of the batch, so long replies weigh more",
    "sequence_mean_token_mean": lambda _: (
        "the mean over sequences of each one's mean over its trained tokens, so every sequence weighs the same"
    ),
}


def _tasks(sources: tuple[Source, ...]) -> list[tuple[str, str]]:
    total = sum(source.share for source in sources)
    return [(source.name, f"{100 * source.share / total:.3g} % of the groups; {_source(source)}") for source in sources]


def _source(source: Source) -> str:
    data = "made by the environment" if source.data is None else f"from {_called(source.data)}"
    limit = f", the first {source.limit}" if source.limit else ""
    judge = "rewards from the environment" if source.reward is None else f"rewarded by {_called(source.reward)}"
    return f"{data}{limit}; env {_called(source.env)}; {judge}"


def _called(named: Named) -> str:
    if named.kind == "jsonl" and set(named.arguments) == {"path"}:
        return str(named.arguments["path"])
    arguments = ", ".join(f"{name}={value!r}" for name, value in named.arguments.items())
    return f"{named.kind}({arguments})" if arguments else named.kind


def _afterwards(run: Run) -> list[tuple[str, str]]:
    checkpoint = run.checkpoint
    often = f"every {checkpoint.every} steps, at the end" if checkpoint.every else "at the end"
    return [
        ("validation", _validation(run)),
        (
            "checkpoints",
            f"{often} and on an interrupt; the newest {checkpoint.keep} and the best by {checkpoint.best} are kept",
        ),
    ]


def _validation(run: Run) -> str:
    validation = run.validation
    if not validation.tasks:
        return "none: no validation.tasks"
    moments = ["before the first step"] if validation.at_start else []
    moments += [f"every {validation.every} steps"] if validation.every else []
    how = "greedy" if validation.temperature == 0 else f"at temperature {validation.temperature:g}"
    names = ", ".join(source.name for source in validation.tasks)
    return f"{names}, {how}, {', '.join(moments)}{' and ' if moments else ''}after the last; pinned to one version"


def _aligned(rows: list[tuple[str, str]]) -> str:
    width = max(12, max(len(label) for label, _ in rows))
    return "\n".join(
        textwrap.fill(
            text,
            _WIDTH,
            initial_indent=f"  {label:<{width}}  ",
            subsequent_indent=" " * (width + 4),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for label, text in rows
    )
