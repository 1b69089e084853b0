"""What a run really means, in words. Formulas are those of `roll.algorithms`, with the arguments filled in."""

from __future__ import annotations

import math
import textwrap

from roll.config.algorithm import Algorithm, Kl
from roll.config.policies import policies_in_words
from roll.config.schema import Rollout, Run
from roll.config.section import Named
from roll.explain.devices import places_in_words
from roll.explain.formulas import in_words
from roll.explain.tasks import replies_of, sampled_from, sources_in_words

_WIDTH = 110
_CORRECTING = ("decoupled", "topr")
"""Losses that read the sampler's logprobs themselves."""


def explain(run: Run) -> str:
    """A page for the terminal: what one step does, how old samples may be, what shares a device, what the loss is."""
    blocks = [
        ("Run", _run(run)),
        ("One step", _step(run)),
        ("Staleness", _staleness(run)),
        ("Devices", places_in_words(run)),
        *([("Policies", policies_in_words(run.policies, run.actor_train.optimizer))] if run.policies else []),
        ("Algorithm", _algorithm(run)),
        ("Tasks", sources_in_words(run)),
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
            f"at most {rollout.max_new_tokens} new tokens a reply, {replies_of(run)}, {rollout.context} tokens in all",
        ),
        *_cut(rollout),
        *_redundancy(rollout),
        ("sampled from", sampled_from(rollout.temperature, rollout.top_p, rollout.top_k)),
        ("optimizer", f"{_counted(_num_updates(run.algorithm), 'step')} per batch; {_optimizer(run)}"),
        *_adapters(run),
        (
            "micro-batches",
            f"of at most {budget} tokens: {most} if every attempt fills its context, else fewer; "
            "how the batch is cut changes no gradient",
        ),
    ]


def _adapters(run: Run) -> list[tuple[str, str]]:
    """What is trained, where that is not the model."""
    lora = run.actor_train.lora
    if lora is None:
        return []
    where = f"{', '.join(lora.targets)} of every layer: W x + {lora.scale:g} x B A x"
    start = f"from {lora.path}" if lora.path else "B from 0, so version 0 is the model"
    return [("adapters", f"rank {lora.rank} beside {where}; they alone are trained and published, {start}")]


def _cut(rollout: Rollout) -> list[tuple[str, str]]:
    """What a trained sequence holds of an attempt, where that is not all of it."""
    rows: list[tuple[str, str]] = []
    if rollout.context_policy == "drop_oldest":
        room = f"where less than {rollout.max_new_tokens} of {rollout.context} tokens are left for a reply"
        rows.append(("full context", f"{room}, the oldest turns are dropped, and the rest begins a new sequence"))
    if rollout.segment_per == "turn":
        rows.append(("sequences", "one for each turn, after all that stood before it; baselines still count attempts"))
    return rows


def _redundancy(rollout: Rollout) -> list[tuple[str, str]]:
    """What is generated beyond the batch, and how much at once; nothing where the file does not say."""
    rows: list[tuple[str, str]] = []
    if rollout.redundant_groups:
        more = f"{_counted(rollout.redundant_groups, 'group')} more than the slots are under way"
        rows.append(("redundancy", f"{more}; the first to be complete are trained on, which favours short replies"))
    if rollout.redundant_siblings:
        started = f"{rollout.group_size + rollout.redundant_siblings} attempts at each task are begun"
        first = f"the first {rollout.group_size} to end well are trained on, which favours short replies"
        rows.append(("redundancy", f"{started}; {first}"))
    if rollout.concurrency == "adaptive":
        rows.append(("concurrency", "as many requests in a generator as it holds without running out of memory"))
    elif rollout.concurrency is not None:
        rows.append(("concurrency", f"at most {_counted(rollout.concurrency, 'request')} in a generator at once"))
    return rows


def _optimizer(run: Run) -> str:
    optimizer = run.actor_train.optimizer
    warmup = f" after {optimizer.warmup_steps} steps of warm-up" if optimizer.warmup_steps else ""
    end = "" if optimizer.schedule == "constant" else f" down to {optimizer.final_lr * optimizer.lr:g}"
    name = "AdamW" if optimizer.kind == "adamw" else "SGD"
    bound = "not clipped" if optimizer.clip_norm is None else f"clipped at {optimizer.clip_norm:g}"
    return f"{name}, learning rate {optimizer.lr:g}, {optimizer.schedule}{end}{warmup}, gradient norm {bound}"


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
    oldest = _oldest(num_slots, count)
    if oldest == 0:
        return "synchronous: every token is sampled by the weights that the step then trains"
    updates = "one update old" if oldest == 1 else f"{oldest} updates old"
    num_oldest = num_slots - oldest * count
    if num_oldest == count:
        return f"any group may be up to {updates} when it is trained on, and none is older"
    some = "half" if 2 * num_oldest == count else f"{num_oldest} of {count}"
    rest = "fresh" if oldest == 1 else "fresher"
    return f"at most {some} of the groups are {updates}, the others are {rest}"


def _oldest(num_slots: int, count: int) -> int:
    """Updates that the oldest groups of a batch have not seen."""
    return math.ceil(num_slots / count) - 1


def _algorithm(run: Run) -> list[tuple[str, str]]:
    """Part by part, in the order in which they act; what is not there is not mentioned."""
    algorithm = run.algorithm
    return [
        ("recipe", algorithm.recipe or "none: spelled out in the file"),
        *_each("filters", algorithm.filters),
        *_each("shaping", algorithm.shaping),
        *([("KL", _kl(algorithm.kl))] if algorithm.kl else []),
        ("advantage", in_words("advantage", algorithm.advantage)),
        *_afterthoughts(algorithm),
        *_each("emphasis", algorithm.emphasis),
        *_each("masks", algorithm.masks),
        ("loss", in_words("loss", algorithm.loss)),
        *_correction(run),
        *([("entropy", f"L - {algorithm.entropy:g} x entropy of the policy")] if algorithm.entropy else []),
        ("aggregation", in_words("aggregation", algorithm.aggregation)),
        ("updates", _updates(algorithm)),
        *_roles(run),
    ]


def _each(part: str, names: tuple[Named, ...]) -> list[tuple[str, str]]:
    return [(part, in_words(part, named)) for named in names]


def _kl(kl: Kl) -> str:
    estimate = in_words("estimator", kl.estimator)
    where = "added to the loss" if kl.place == "loss" else "taken off the reward, token by token, before advantages"
    adapted = (
        "fixed"
        if kl.target is None
        else f"adapted every step towards a mean of {kl.target:g}, over {kl.horizon} trajectories"
    )
    return f"{kl.coefficient:g} x {estimate}, d = logprob - reference logprob, {where}; the coefficient is {adapted}"


def _afterthoughts(algorithm: Algorithm) -> list[tuple[str, str]]:
    rows = [("whitening", "A = (A - mean) / std, over all trained tokens of the batch")] if algorithm.whiten else []
    bound = algorithm.clip
    return [*rows, *([] if bound is None else [("clip", f"A = clip(A, -{bound:g}, {bound:g})")])]


def uncorrected(run: Run) -> str:
    """That old tokens are trained on as if they were fresh, in one line; empty where they are not."""
    oldest = _oldest(run.rollout.num_slots, run.rollout.groups_per_step)
    if oldest == 0 or run.algorithm.correction is not None or run.algorithm.loss.kind in _CORRECTING:
        return ""
    old = f"tokens up to {_counted(oldest, 'step')} old are trained on as if they were fresh"
    return f"none: {old}; set algorithm.correction"


def _correction(run: Run) -> list[tuple[str, str]]:
    loss = run.algorithm.loss.kind
    if run.algorithm.correction is not None:
        return [("correction", in_words("correction", run.algorithm.correction))]
    if loss in _CORRECTING and _oldest(run.rollout.num_slots, run.rollout.groups_per_step):
        return [("correction", f"none beside the loss {loss}, which weighs tokens by who sampled them")]
    return [("correction", found)] if (found := uncorrected(run)) else []


def _updates(algorithm: Algorithm) -> str:
    if _num_updates(algorithm) == 1:
        return "1 a batch: the old weights are the current ones, so r = 1 and clipping never acts"
    return (
        f"{_num_updates(algorithm)} a batch = {_counted(algorithm.epochs, 'epoch')} x "
        f"{_counted(algorithm.minibatches, 'minibatch')}; old logprobs are those before the first"
    )


def _num_updates(algorithm: Algorithm) -> int:
    return algorithm.epochs * algorithm.minibatches


def _counted(number: int, noun: str) -> str:
    plural = f"{noun}es" if noun in ("minibatch", "process") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def _roles(run: Run) -> list[tuple[str, str]]:
    """What is started or computed besides the actor, and why."""
    needs = run.needs
    words = {
        "reference": _reference,
        "critic": _critic,
        "teacher": _teacher,
        "reward_model": _reward_model,
        "old_logprobs": _old_logprobs,
        "states": _states,
    }
    rows = [(need.replace("_", " "), tell(run)) for need, tell in words.items() if need in needs]
    return rows or [("roles", "the actor alone: no reference, critic, teacher or reward model is started")]


def _reference(run: Run) -> str:
    if run.reference_is_base:
        return "none is started: the actor without its adapters, in the trainer's own process"
    origin = f"weights of {run.reference.path}" if run.reference.path else "the weights the actor starts from"
    return f"started, frozen, with {origin}: {'for the KL' if run.algorithm.kl else 'the recipe asks for it'}"


def _critic(run: Run) -> str:
    algorithm = run.algorithm
    origin = f"weights of {run.critic.path}" if run.critic.path else "the actor's weights and a new head"
    alone = f"; it learns alone for {algorithm.critic_warmup} steps" if algorithm.critic_warmup else ""
    return (
        f"started with {origin}, trained beside the actor: values for the advantage {algorithm.advantage.kind}; "
        f"{in_words('loss', algorithm.value_loss)}{alone}"
    )


def _teacher(run: Run) -> str:
    assert run.teacher is not None, "a run whose algorithm needs a teacher has one"
    reason = f"logprobs for the advantage {run.algorithm.advantage.kind}"
    return f"started, frozen, with weights of {run.teacher.path}: {reason}"


def _reward_model(run: Run) -> str:
    assert run.reward_model is not None, "a run whose algorithm needs a reward model has one"
    return f"started with weights of {run.reward_model.path}: {run.reward_model.weight:g} x its score joins the reward"


def _states(run: Run) -> str:
    return f"named by the environments, for the advantage {run.algorithm.advantage.kind}"


def _old_logprobs(run: Run) -> str:
    algorithm = run.algorithm
    num_updates = _num_updates(algorithm)
    reasons = [f"{num_updates} updates a batch"] if num_updates > 1 else []
    if algorithm.correction is not None and algorithm.correction.kind != "truncate":
        reasons.append(f"the correction {algorithm.correction.kind} chooses tokens by them")
    return f"computed once more before the update: {', '.join(reasons) or 'the recipe asks for them'}"


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
