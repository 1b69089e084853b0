"""Which metrics a checkpoint can be the best by: those of a step and its validation that are there when it is saved."""

from __future__ import annotations

from collections.abc import Iterator

from roll.config.schema import Checkpoint, Run
from roll.errors import did_you_mean

_OF_A_STEP = (
    *("reward/mean", "reward/std", "reward/model", "reward/masked"),
    *("length/mean", "length/max", "length/truncated", "age/mean", "age/max", "tokens/generated", "tokens/trained"),
    *("gap/mean", "gap/max", "kl/reference", "kl/coefficient", "waiting/groups", "waiting/length", "waiting/reward"),
    *("bias/length", "bias/reward", "time/wait", "time/score", "time/update", "time/publish", "time/validate"),
)
_FREE = ("loss/", "critic/", "reward_part/", "age/", "waiting/share/", "bias/share/")
"""What begins so may go on as it likes: losses, rewards and environments give names of their own."""


def best_fault(run: Run) -> str:
    """Why no checkpoint could ever be the best by what `checkpoint.best` names; empty where one could."""
    best, known = (
        run.checkpoint.best,
        [*_of_validation(run), *_OF_A_STEP, *(f"reward/{task.name}" for task in run.tasks)],
    )
    if best == Checkpoint().best or best in known or best.startswith(tuple(_beginnings(run))):
        return ""
    if best.startswith("validation/") and not run.validation.tasks:
        return f"there are no held-out tasks to measure {best!r} on; add validation.tasks, or take reward/mean"
    return f"no step and no validation of this run measures {best!r}{did_you_mean(best, known)}"


def _beginnings(run: Run) -> Iterator[str]:
    yield from _FREE
    for source in run.tasks:
        yield from (f"reward/{source.name}/", f"env/{source.name}/")
    for policy in run.policies:
        yield f"policy/{policy.name}/"


def _of_validation(run: Run) -> Iterator[str]:
    """Over all held-out tasks and by source; what several attempts tell only where there are several."""
    if not run.validation.tasks:
        return
    samples = run.validation.samples
    several = {*(2**power for power in range(1, samples.bit_length())), samples} - {1}
    together = ["majority", *(f"pass@{k}" for k in sorted(several))] if several else []
    yield "validation/length"
    for prefix in ("validation", *(f"validation/{source.name}" for source in run.validation.tasks)):
        yield from (f"{prefix}/{name}" for name in ("reward", "accuracy", "failed", *together))
