"""Checks that `checkpoint.best_metric` names a metric that this run measures before it saves a checkpoint."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from roll.config.schema import Checkpoint, Run
from roll.errors import did_you_mean

_STEP_METRICS = (
    *("reward/mean", "reward/std", "reward/model", "reward/masked"),
    *("length/mean", "length/max", "length/truncated", "staleness/mean", "staleness/max"),
    *("tokens/generated", "tokens/trained", "sampler_mismatch/mean", "sampler_mismatch/max"),
    *("kl/reference", "kl/coefficient", "waiting/groups", "waiting/length", "waiting/reward"),
    *("bias/length", "bias/reward", "time/wait", "time/score", "time/update", "time/publish", "time/validate"),
)
_OPEN_PREFIXES = ("loss/", "critic/", "staleness/", "waiting/share/", "bias/share/")
"""Any name with one of these prefixes is valid: losses, rewards and environments name their own metrics."""


def best_fault(run: Run) -> str:
    """Why this run never measures `checkpoint.best_metric`; empty if it does."""
    best = run.checkpoint.best_metric
    known = [*_validation_metrics(run), *_STEP_METRICS, *(f"domain/{task.name}/reward" for task in run.tasks)]
    valid = best in known or best.startswith(tuple(_prefixes(run))) or _is_reward_part(best)
    if valid or best == Checkpoint().best_metric:
        return ""
    if best.startswith("validation/") and not run.validation.tasks:
        return f"there are no held-out tasks to measure {best!r} on; add validation.tasks, or take reward/mean"
    return f"no step and no validation of this run measures {best!r}{did_you_mean(best, known)}"


def _is_reward_part(best: str) -> bool:
    """Whether this may name a part of a score: any `reward/` name except a misspelt metric of the run."""
    part = best.removeprefix("reward/")
    reserved = [name.removeprefix("reward/") for name in _STEP_METRICS if name.startswith("reward/")]
    return part != best and not difflib.get_close_matches(part, reserved, cutoff=0.75)


def _prefixes(run: Run) -> Iterator[str]:
    yield from _OPEN_PREFIXES
    for source in run.tasks:
        yield from (f"domain/{source.name}/reward/", f"env/{source.name}/")
    for policy in run.policies:
        yield f"policy/{policy.name}/"


def _validation_metrics(run: Run) -> Iterator[str]:
    """Metrics over all held-out tasks and per source; pass@k and majority only with several samples per task."""
    if not run.validation.tasks:
        return
    samples = run.validation.samples
    ks = {*(2**power for power in range(1, samples.bit_length())), samples} - {1}
    multi_sample = ["majority", *(f"pass@{k}" for k in sorted(ks))] if ks else []
    yield "validation/length"
    for prefix in ("validation", *(f"validation/{source.name}" for source in run.validation.tasks)):
        yield from (f"{prefix}/{name}" for name in ("reward", "accuracy", "failed", *multi_sample))
