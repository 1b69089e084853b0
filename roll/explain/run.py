"""`roll explain`: what a configuration file does, with defaults and formulas filled in, as records and as text."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence

from roll.config.algorithm import Algorithm, Kl
from roll.config.decoder import engine_of
from roll.config.interrupt import InterruptConfig
from roll.config.monitoring import MetricsConfig
from roll.config.schema import Run
from roll.config.section import SpecConfig
from roll.config.turns import turn_warnings
from roll.explain.calls import count, describe
from roll.explain.devices import device_rows
from roll.explain.distillation import distillation_rows
from roll.explain.placement import format_placement, placement_of
from roll.explain.preferences import preference_rows, reward_training_rows
from roll.explain.records import Explanation, Paragraph, Row, StepSize
from roll.explain.rollout import oldest_age, redundancy_rows, sequence_rows, staleness_rows
from roll.explain.tasks import responses_text, sampling_text, task_rows
from roll.placement.architecture import read_values
from roll.placement.facts import scored_by

_WIDTH = 110
_CORRECTING = ("decoupled", "topr")
"""Losses that correct for the sampler themselves."""
_NOTATION = "A advantage, r = exp(logprob - old logprob), old: before the step's first update"


def explain_on(run: Run, cluster: str | None = None) -> Explanation:
    """Everything about a run and its placement on a cluster such as `8xH200`, or on this machine."""
    placement = placement_of(run, cluster)
    return Explanation(
        name=run.name,
        step=step_size(run),
        paragraphs=paragraphs(run, cluster),
        placement=placement,
        warnings=tuple(filter(None, (uncorrected(run), placement.fault, *turn_warnings(run)))),
    )


def format_explanation(explanation: Explanation) -> str:
    """The page for the terminal."""
    return f"{_format_paragraphs(explanation.paragraphs)}\n\n{format_placement(explanation.placement)}"


def explain(run: Run) -> str:
    """The page without the placement."""
    return _format_paragraphs(paragraphs(run))


def paragraphs(run: Run, cluster: str | None = None) -> tuple[Paragraph, ...]:
    """One step, staleness, devices, loss, tasks and checkpoints."""
    step = step_size(run)
    blocks = [
        ("Run", _run(run)),
        ("One step", _step(run, step)),
        ("Staleness", staleness_rows(run.rollout)),
        ("Devices", device_rows(run, cluster)),
        *([("Policies", list(_policies(run)))] if run.policies else []),
        ("Algorithm", _algorithm(run)),
        *([("Preferences", preference_rows(run.dpo))] if run.dpo is not None else []),
        *([("Reward model", reward_training_rows(run.reward_training))] if run.reward_training is not None else []),
        *([("Distillation", distillation_rows(run, run.distill))] if run.distill is not None else []),
        ("Tasks", task_rows(run)),
        ("Results", _results(run)),
    ]
    return tuple(
        Paragraph(title=title, rows=tuple(Row(label=label, text=text) for label, text in rows))
        for title, rows in blocks
    )


def step_size(run: Run) -> StepSize:
    """The amounts of one step."""
    rollout, budget = run.rollout, run.actor_train.tokens_per_microbatch
    num_trajectories = rollout.groups_per_step * rollout.group_size
    return StepSize(
        groups=rollout.groups_per_step,
        attempts_per_group=rollout.group_size,
        trajectories=num_trajectories,
        max_new_tokens=rollout.max_new_tokens,
        max_seq_len=rollout.max_seq_len,
        max_staleness=rollout.max_staleness,
        groups_in_flight=rollout.num_slots,
        updates=run.algorithm.num_updates,
        tokens_per_microbatch=budget,
        max_microbatches=math.ceil(num_trajectories / (budget // rollout.max_seq_len)),
        scored_by=scored_by(run),
    )


def headline(run: Run) -> str:
    """The run in one line, and one line per environment whose attempts it cuts short."""
    rollout = run.rollout
    line = (
        f"{run.name}: {run.steps} steps of {rollout.groups_per_step} groups x {rollout.group_size} attempts, "
        f"{run.algorithm.recipe or run.algorithm.loss.kind}, staleness at most {rollout.max_staleness:g}, "
        f"tasks {', '.join(source.name for source in run.tasks)}"
    )
    return "\n".join([line, *turn_warnings(run)])


def _run(run: Run) -> list[tuple[str, str]]:
    shape = run.model.shape
    new = f"{shape.architecture} with {shape.layers} layers of width {shape.hidden}, random weights" if shape else ""
    same = "the same seed gives the same parameters and metrics" if run.deterministic else "not guaranteed"
    return [
        ("name", f"{run.name}, saved in {run.directory}/{run.name}"),
        ("model", new or f"weights of {run.model.path}"),
        *_engine(run),
        ("length", f"{run.steps} steps, seed {run.seed}"),
        ("determinism", same),
    ]


def _engine(run: Run) -> list[tuple[str, str]]:
    """The code that computes the model, where its directory is here."""
    config = None if run.model.path is None else read_values(run.model.path)
    if config is None:
        return []
    if engine_of(config, run.model.engine, run.rollout.max_seq_len) == "native":
        return [("engine", "native: the built-in decoder")]
    return [("engine", f"hf: {config.get('model_type')} of transformers, sequences packed without padding")]


def _step(run: Run, step: StepSize) -> list[tuple[str, str]]:
    rollout, length = run.rollout, f"{step.max_seq_len} tokens in total"
    return [
        (
            "trajectories",
            f"{step.trajectories} = {step.groups} groups (tasks) x {step.attempts_per_group} attempts each",
        ),
        ("each attempt", f"at most {step.max_new_tokens} new tokens per response, {responses_text(run)}, {length}"),
        *sequence_rows(rollout),
        *redundancy_rows(rollout),
        ("sampled from", sampling_text(rollout.temperature, rollout.top_p, rollout.top_k)),
        ("optimizer", f"{count(step.updates, 'step')} per batch; {_optimizer(run)}"),
        *_adapters(run),
        *_fp8(run),
        (
            "micro-batches",
            f"of at most {step.tokens_per_microbatch} tokens: {step.max_microbatches} if every attempt has "
            f"{step.max_seq_len} tokens, else fewer; "
            "the split does not change gradients",
        ),
    ]


def _fp8(run: Run) -> list[tuple[str, str]]:
    products = getattr(run.actor_train, "fp8_products", "none")
    if products == "none":
        return []
    kept = "logprobs, weights and samples do not change"
    changed = {
        "gradients": f"gradients of inputs of large projections are rounded to 8 bits; {kept}",
        "all": "large projections and gradients of their inputs are rounded to 8 bits: the trainer's logprobs and "
        "gradients change, published weights and samples do not; sampler_mismatch includes the difference",
    }
    return [("fp8 products", changed[products])]


def _adapters(run: Run) -> list[tuple[str, str]]:
    lora = run.actor_train.lora
    if lora is None:
        return []
    where = f"{', '.join(lora.target_modules)} of every layer: W x + {lora.scale:g} x B A x"
    start = f"from {lora.path}" if lora.path else "B starts at 0, so version 0 is the model"
    return [("adapters", f"rank {lora.rank} on {where}; only they are trained and published; {start}")]


def _optimizer(run: Run) -> str:
    optimizer = run.actor_train.optimizer
    warmup = f" after {optimizer.warmup_steps} warm-up steps" if optimizer.warmup_steps else ""
    end = "" if optimizer.schedule == "constant" else f" down to {optimizer.final_lr_ratio * optimizer.lr:g}"
    name = {"adamw": "AdamW", "sgd": "SGD"}.get(optimizer.kind, optimizer.kind)
    bound = "not clipped" if optimizer.max_grad_norm is None else f"clipped at {optimizer.max_grad_norm:g}"
    return f"{name}, learning rate {optimizer.lr:g}, {optimizer.schedule}{end}{warmup}, gradient norm {bound}"


def _policies(run: Run) -> Iterator[tuple[str, str]]:
    """One row per policy: agents, initial weights, learning rate."""
    for policy in run.policies:
        start = f"weights of {policy.path}" if policy.path else "initial weights of the run's model"
        lr = (policy.optimizer or run.actor_train.optimizer).lr
        training = "frozen" if policy.frozen else f"learning rate {lr:g}"
        agents = f"agents {', '.join(policy.agents)}"
        yield policy.name, f"{agents}; {start}; {training}; its own trainer, generators and checkpoints"


def _algorithm(run: Run) -> list[tuple[str, str]]:
    """The parts of the algorithm in the order of their use; absent parts have no row."""
    algorithm = run.algorithm
    entropy, clip = algorithm.entropy_coefficient, algorithm.advantage_clip
    return [
        ("recipe", algorithm.recipe or "none: written out in the file"),
        ("notation", _NOTATION),
        *_list("filters", algorithm.filters),
        *_list("shaping", algorithm.shaping),
        *([("KL", _kl(algorithm.kl))] if algorithm.kl else []),
        ("advantage", describe("advantage", algorithm.advantage)),
        *([("whitening", "A = (A - mean) / std, over all trained tokens of the batch")] if algorithm.whiten else []),
        *([("clipping", f"A = clip(A, -{clip:g}, {clip:g})")] if clip is not None else []),
        *_list("advantage_weights", algorithm.advantage_weights),
        *_list("masks", algorithm.masks),
        ("loss", describe("loss", algorithm.loss)),
        *_correction(run),
        *([("entropy", f"loss - {entropy:g} x entropy of the policy")] if entropy else []),
        ("aggregation", describe("aggregation", algorithm.aggregation)),
        ("updates", _updates(algorithm)),
        *_roles(run),
    ]


def _list(part: str, sections: tuple[SpecConfig, ...]) -> list[tuple[str, str]]:
    return [(part, describe(part, section)) for section in sections]


def _kl(kl: Kl) -> str:
    use = "added to the loss" if kl.apply_to == "loss" else "subtracted from the reward per token, before advantages"
    coefficient = (
        "constant"
        if kl.target is None
        else f"adapted every step towards a mean KL of {kl.target:g}, over {kl.horizon} trajectories"
    )
    estimate = describe("estimator", kl.estimator)
    return f"{kl.coefficient:g} x {estimate}; d = logprob - reference logprob; {use}; the coefficient is {coefficient}"


def uncorrected(run: Run) -> str:
    """A warning if stale tokens are trained on without a correction; empty otherwise."""
    oldest = oldest_age(run)
    if oldest == 0 or run.algorithm.correction is not None or run.algorithm.loss.kind in _CORRECTING:
        return ""
    age = f"up to {count(oldest, 'step')} old"
    return f"none: tokens {age} are trained on as if they were new; set algorithm.correction"


def _correction(run: Run) -> list[tuple[str, str]]:
    loss = run.algorithm.loss.kind
    if run.algorithm.correction is not None:
        return [("correction", f"loss x {describe('correction', run.algorithm.correction)}")]
    if loss in _CORRECTING and oldest_age(run):
        return [("correction", f"only in the loss {loss}, which reads the sampler's logprobs")]
    return [("correction", warning)] if (warning := uncorrected(run)) else []


def _updates(algorithm: Algorithm) -> str:
    if algorithm.num_updates == 1:
        return "1 per batch: old and current weights are the same, so r = 1 and clipping has no effect"
    return (
        f"{algorithm.num_updates} per batch = {count(algorithm.epochs, 'epoch')} x "
        f"{count(algorithm.minibatches, 'minibatch')}; old logprobs are those before the first"
    )


def _roles(run: Run) -> Iterator[tuple[str, str]]:
    """Models and inputs in addition to the actor, with the reason for each."""
    advantage = f"the advantage {run.algorithm.advantage.kind}"
    if "reference" in run.needs:
        yield "reference", _reference(run)
    if "critic" in run.needs:
        yield "critic", _critic(run)
    if run.teacher is not None and "teacher" in run.needs:
        yield "teacher", f"started, frozen, with weights of {run.teacher.path}: logprobs for {advantage}"
    if model := run.reward_model:
        yield (
            "reward model",
            f"started with weights of {model.path}: {model.weight:g} x its score is added to the reward",
        )
    if "old_logprobs" in run.needs:
        yield "old logprobs", _old_logprobs(run)
    if "states" in run.needs:
        yield "states", f"reported by the environments, for {advantage}"
    if not run.needs:
        yield "roles", "only the actor: no reference, critic, teacher or reward model is started"


def _reference(run: Run) -> str:
    if run.reference_is_base:
        return "not started: the actor without its adapters, in the trainer's own process"
    origin = f"weights of {run.reference.path}" if run.reference.path else "the actor's initial weights"
    return f"started, frozen, with {origin}: {'for KL' if run.algorithm.kl else 'algorithm.needs has it'}"


def _critic(run: Run) -> str:
    algorithm = run.algorithm
    origin = f"weights of {run.critic.path}" if run.critic.path else "the actor's weights and a new head"
    warmup = f"; trained alone for {algorithm.critic_warmup} steps" if algorithm.critic_warmup else ""
    return (
        f"started with {origin} and trained: values for the advantage {algorithm.advantage.kind}; "
        f"{describe('loss', algorithm.value_loss)}{warmup}"
    )


def _old_logprobs(run: Run) -> str:
    algorithm = run.algorithm
    reasons = [f"{algorithm.num_updates} updates per batch"] if algorithm.num_updates > 1 else []
    if algorithm.correction is not None and algorithm.correction.kind != "truncate":
        reasons.append(f"the correction {algorithm.correction.kind} selects tokens by them")
    return f"recomputed before the update: {', '.join(reasons) or 'algorithm.needs has them'}"


def _results(run: Run) -> list[tuple[str, str]]:
    checkpoint = run.checkpoint
    often = [f"every {checkpoint.every} steps"] if checkpoint.every else []
    often += [f"after {checkpoint.every_minutes:g} minutes without one"] if checkpoint.every_minutes else []
    observers = (*run.callbacks, *run.tracking.sinks)
    retained = f"the newest {checkpoint.keep} and the best by {checkpoint.best_metric} are kept"
    return [
        ("validation", _validation(run)),
        ("checkpoints", f"{', '.join([*often, 'at the end'])} and on an interrupt; {retained}"),
        ("signals", _signals(run.interrupt)),
        *([("notices", f"all but {', '.join(run.tracking.silenced)}")] if run.tracking.silenced else []),
        *([("callbacks", ", ".join(section.kind for section in observers))] if observers else []),
        *([("metrics", _metrics(run.metrics))] if run.metrics.port is not None else []),
    ]


def _metrics(metrics: MetricsConfig) -> str:
    port = f"port {metrics.port}" if metrics.port else "a free port"
    readers = "every machine that reaches it" if metrics.expose else "this machine alone"
    limit = f"unhealthy after {metrics.stalled_after_s:g} s without progress"
    return f"served on {metrics.host}, {port}, to {readers}; {limit}"


def _signals(interrupt: InterruptConfig) -> str:
    abandon = "abandons the step and exits within seconds"
    if interrupt.mode == "now":
        return f"SIGINT or SIGTERM {abandon}, without a checkpoint"
    grace_s = interrupt.grace_s
    grace = "" if grace_s is None else f", as does the end of 80 % of the grace time ({grace_s:g} s)"
    return f"SIGINT or SIGTERM finishes the step; a second one {abandon}{grace}"


def _validation(run: Run) -> str:
    validation = run.validation
    if not validation.tasks:
        return "none: no validation.tasks"
    moments = ["before the first step"] if validation.at_start else []
    moments += [f"every {validation.every} steps"] if validation.every else []
    how = "greedy" if validation.temperature == 0 else f"at temperature {validation.temperature:g}"
    names = ", ".join(source.name for source in validation.tasks)
    return f"{names}, {how}, {', '.join(moments)}{' and ' if moments else ''}after the last; with one version each"


def _format_paragraphs(texts: Sequence[Paragraph]) -> str:
    return "\n\n".join(f"{each.title}\n{_format_rows(each.rows)}" for each in texts)


def _format_rows(rows: Sequence[Row]) -> str:
    width = max(12, max(len(row.label) for row in rows))
    return "\n".join(
        textwrap.fill(
            row.text,
            _WIDTH,
            initial_indent=f"  {row.label:<{width}}  ",
            subsequent_indent=" " * (width + 4),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for row in rows
    )
