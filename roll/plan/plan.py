"""`roll plan`: the best use of a cluster for a run file, as a record, as text, and as a file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from roll.config.document import override
from roll.config.load import dump_tree, load, read
from roll.config.schema import Run
from roll.config.variables import substitute
from roll.errors import ConfigError
from roll.placement.facts import facts_of
from roll.placement.machine import parse_cluster
from roll.placement.planner import plan_devices
from roll.placement.records import Inventory
from roll.plan.calibration import RunCalibration, calibrate
from roll.plan.candidates import PlanBounds, PlanCandidate, placed_runs, redundancy_choices, staleness_choices
from roll.plan.observations import observe_run
from roll.plan.search import Goal, PlanSearch, RatedCandidate, frontier, rate
from roll.plan.speeds import DeviceTimes, modelled_times, scaled_times
from roll.plan.workload import stated_workload
from roll.report.report import table

_HEADER = "# roll plan sha256="
_MOST_ROWS = 12
_MOST_OF = 0.9
"""Share of a step from which the trainer binds it."""
_FEW = 0.2
"""Share of idle slots up to which the generators bind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What the user asks for."""

    path: Path
    overrides: Sequence[str] = ()
    cluster: str
    source: Path | None = None
    """A recorded run."""
    recorded_on: str | None = None
    """Cluster of the recorded run; None: the same one."""
    budget: int | None = None
    """Most devices."""
    goal: Goal = "fastest"
    max_staleness: float = 2.0
    lengths: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The result of a search."""

    request: PlanRequest
    statement: str
    """Where lengths and durations come from."""
    best: RatedCandidate
    frontier: tuple[RatedCandidate, ...]
    num_placements: int
    refused: dict[str, int]
    num_candidates: int
    num_simulated: int
    complete: bool
    """False if the time limit ended the search."""
    measured: bool
    """Whether durations come from a recorded run."""


def make_plan(request: PlanRequest, advance: Callable[[int], None] = lambda num: None) -> RunPlan:
    """Search; `advance` is called with the number of candidates that were simulated."""
    inventory = parse_cluster(request.cluster)
    run = load(request.path, request.overrides).run
    bounds = PlanBounds(
        num_devices=inventory.num_devices if request.budget is None else request.budget,
        max_staleness=request.max_staleness,
    )
    staleness = staleness_choices(run, bounds)
    workload, statement, recorded = _workload(request, run, inventory)
    placed, refused = placed_runs(facts_of(run), inventory, bounds)
    timed = [(each, modelled_times(each.facts, each.placement, workload)) for each in placed]
    if recorded is not None:
        timed = [(each, scaled_times(times, recorded, workload)) for each, times in timed]
    rated = rate(run, workload, timed, staleness, redundancy_choices(run))
    search = PlanSearch(workload, rated, request.goal, check=partial(_check_valid, request))
    results = search.run(advance)
    return RunPlan(
        request=request,
        statement=statement,
        best=results[0],
        frontier=tuple(frontier(results)),
        num_placements=len(placed),
        refused=refused,
        num_candidates=len(rated),
        num_simulated=search.num_simulated,
        complete=search.complete,
        measured=recorded is not None,
    )


def _workload(request: PlanRequest, run: Run, inventory: Inventory) -> tuple[RunCalibration, str, DeviceTimes | None]:
    """Lengths and latencies, where they come from, and the cost model's durations of the recorded run."""
    if request.source is None:
        return *stated_workload(run, request.lengths), None
    if request.lengths is not None:
        raise ConfigError("roll plan: --lengths states what --from records; leave one of them out")
    recorded, observed = observe_run(request.source)
    _check_same_model(request, run, recorded)
    calibration = calibrate(observed)
    facts = facts_of(recorded)
    where = inventory if request.recorded_on is None else parse_cluster(request.recorded_on)
    try:
        times = modelled_times(facts, plan_devices(facts, where), calibration)
    except ConfigError as error:
        raise ConfigError(
            f"{request.source}: was not recorded on {request.recorded_on or request.cluster} ({error}); name its "
            "cluster with --recorded-on"
        ) from None
    statement = f"lengths, latencies and durations: {request.source}, {len(observed.steps)} steps"
    return calibration, statement, times


def _check_valid(request: PlanRequest, candidate: PlanCandidate) -> None:
    """`ConfigError` if the configuration refuses a candidate."""
    load(request.path, [*request.overrides, *candidate.overrides])


def _check_same_model(request: PlanRequest, run: Run, recorded: Run) -> None:
    ours, theirs = (facts_of(each).role("actor_train").model for each in (run, recorded))
    if ours != theirs or (ours is None and run.model.path != recorded.model.path):
        names = [str(each.model.path or "a model of random weights") for each in (recorded, run)]
        raise ConfigError(
            f"--from {request.source}: a run of another model ({names[0]}, not {names[1]}); give a run of this one, or "
            "leave --from out"
        )
    if recorded.rollout.max_new_tokens < run.rollout.max_new_tokens:
        raise ConfigError(
            f"--from {request.source}: its responses were cut at {recorded.rollout.max_new_tokens} tokens, those of "
            f"{request.path} at {run.rollout.max_new_tokens}; give a run with as many max_new_tokens"
        )


def format_plan(plan: RunPlan) -> str:
    """The frontier, the best and why, what binds it, and how sure that is."""
    lines = [f"{plan.request.path} on {plan.request.cluster}", plan.statement, ""]
    lines += table([_HEADING, *(_row(each, plan) for each in _shown(plan))])
    lines += ["", *_explain(plan), "", f"{plan.request.goal}:", *(f"  {key}" for key in plan.best.candidate.overrides)]
    return "\n".join(lines)


_HEADING = ("", "steps/h", "GPU h/step", "staleness", "devices", "train", "tp", "s/step", "waits", "idle slots")


def _shown(plan: RunPlan) -> list[RatedCandidate]:
    rows = list(plan.frontier)[:_MOST_ROWS]
    return rows if plan.best in rows else [plan.best, *rows]


def _row(rated: RatedCandidate, plan: RunPlan) -> tuple[str, ...]:
    prediction, placement = rated.prediction, rated.candidate.placed.placement
    assert prediction is not None
    train = len(placement.role("actor_train").devices)
    return (
        "best" if rated == plan.best else "",
        f"{prediction.steps_per_hour:.1f}",
        f"{prediction.gpu_hours:.3g}",
        f"{rated.candidate.max_staleness:g}",
        str(rated.schedule.num_devices),
        "shared" if rated.schedule.shared else str(train),
        str(placement.role("actor_infer").tp),
        f"{prediction.step_s:.2f}",
        f"{100 * prediction.trainer_idle:.0f} %",
        f"{100 * prediction.slots_idle:.0f} %",
    )


def _explain(plan: RunPlan) -> Iterator[str]:
    prediction, best = plan.best.prediction, plan.best
    assert prediction is not None
    spent = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in prediction.phases_s.items())
    yield f"The best takes {prediction.step_s:.2f} s per step: {spent}."
    yield f"What binds it: {binding(best)}."
    others = [each for each in plan.frontier if each.candidate.placed.kind != best.candidate.placed.kind]
    if others:
        goal = plan.request.goal
        second = min(others, key=lambda each: each.cost(goal))
        factor = second.cost(goal) / best.cost(goal)
        yield f"The next placement of the frontier needs {factor:.2f} times as much: {describe(second)}."
    source = "calibration and simulation" if plan.measured else "simulation; the cost model may be a third off"
    yield f"How sure: {100 * prediction.error:.0f} % standard error from {source}."
    stopped = "" if plan.complete else "; the time limit ended the search"
    yield f"{plan.num_candidates} candidates, {plan.num_simulated} of them simulated{stopped}."
    for reason, num in sorted(plan.refused.items(), key=lambda item: -item[1])[:3]:
        yield f"{num} placements do not fit: {reason}"


def binding(rated: RatedCandidate) -> str:
    """The part of a step that limits it, in words."""
    prediction, schedule = rated.prediction, rated.schedule
    assert prediction is not None
    busy = (prediction.step_s - prediction.phases_s["wait"]) / prediction.step_s
    if busy >= _MOST_OF:
        return f"the trainer, which is busy for {100 * busy:.0f} % of the time"
    if schedule.max_staleness == 0 or schedule.shared:
        share = 100 * prediction.trainer_idle
        return f"generation and training alternate; generation takes {share:.0f} % of the step"
    if prediction.slots_idle <= _FEW:
        return "the generators: nearly all slots are busy"
    return "the slowest attempts: slots are idle while the trainer waits for the groups that were admitted first"


def describe(rated: RatedCandidate) -> str:
    """A candidate in a few words."""
    placement, schedule = rated.candidate.placed.placement, rated.schedule
    train, tp = len(placement.role("actor_train").devices), placement.role("actor_infer").tp
    where = f"{schedule.num_devices} devices shared" if schedule.shared else f"{train} of {schedule.num_devices} train"
    return f"{where}, tp {tp}, staleness {rated.candidate.max_staleness:g}"


def write_plan(plan: RunPlan, output: Path) -> None:
    """Write the best as a run file. Refuses to replace a file that is no plan, or one that was edited since."""
    check_output(output)
    document = read(plan.request.path)
    for assignment in (*plan.request.overrides, *plan.best.candidate.overrides):
        override(document, assignment)
    substitute(document)
    document.tree.pop("vars", None)
    prediction = plan.best.prediction
    assert prediction is not None
    text = (
        f"# {plan.request.goal} on {plan.request.cluster}: {prediction.step_s:.2f} s per step predicted.\n"
        f"# To change it, edit {plan.request.path} and plan again, or edit this file under another name.\n"
        f"{dump_tree(document.tree)}"
    )
    try:
        output.write_text(f"{_HEADER}{_digest(text)}\n{text}", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--output {output}: cannot be written ({error.strerror}); name another file") from error


def check_output(output: Path) -> None:
    """`ConfigError` unless a plan may be written here."""
    if not output.exists():
        return
    content = output.read_text(encoding="utf-8", errors="replace") if output.is_file() else ""
    head, _, text = content.partition("\n")
    if not head.startswith(_HEADER):
        raise ConfigError(f"--output {output}: exists and is not a plan; name another file")
    if head.removeprefix(_HEADER) != _digest(text):
        raise ConfigError(f"--output {output}: this plan was edited by hand; name another file, or delete this one")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
