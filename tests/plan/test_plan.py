"""`roll plan`: the search, its file, and one line for every kind of bad input."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from roll.config.load import load
from roll.errors import ConfigError
from roll.journal.store import Journal
from roll.placement.facts import facts_of
from roll.placement.machine import parse_cluster
from roll.placement.planner import plan_devices
from roll.plan.calibration import RunCalibration
from roll.plan.candidates import PlanBounds, PlanCandidate, placed_runs, staleness_choices
from roll.plan.plan import PlanRequest, RunPlan, check_output, make_plan, write_plan
from roll.plan.predict import StepPrediction, StepSchedule
from roll.plan.search import PlanSearch, RatedCandidate, frontier, rate, schedule_for
from roll.plan.speeds import DeviceTimes, modelled_times, scaled_times
from roll.plan.workload import parse_lengths, stated_workload

RUN = """
executor: ray
steps: 10
model: {path: models/Qwen2.5-1.5B-Instruct}
algorithm: {recipe: grpo}
tasks:
  - {name: sums, data: {kind: arithmetic}, reward: exact}
rollout: {groups_per_step: 4, group_size: 2, max_seq_len: 2048, max_new_tokens: 1024}
actor_train: {backend: fsdp2, dtype: bfloat16, activation_checkpointing: true}
actor_infer: {backend: vllm, dtype: bfloat16}
weight_sync: {transport: gloo}
"""


TOKENS = "actor_train.tokens_per_microbatch=32768"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "run.yaml"
    file.write_text(RUN, encoding="utf-8")
    return file


def candidates(path: Path, cluster: str = "1x4xH200", *, budget: int = 4) -> list[RatedCandidate]:
    run = load(path).run
    workload, _ = stated_workload(run)
    bounds = PlanBounds(num_devices=budget, max_staleness=1.0)
    placed, _ = placed_runs(facts_of(run), parse_cluster(cluster), bounds)
    timed = [(each, modelled_times(each.facts, each.placement, workload)) for each in placed]
    return rate(run, workload, timed, [0.0, 1.0], [0])


def test_a_search_finds_placements_that_share_and_that_divide(path: Path) -> None:
    rated = candidates(path)
    assert {each.schedule.shared for each in rated} == {True, False}
    assert {each.schedule.num_generators for each in rated} >= {1, 2, 3}
    assert [each.estimate_s for each in rated] == sorted(each.estimate_s for each in rated)
    assert all(each.schedule.num_devices <= 4 for each in rated)


def test_a_budget_bounds_the_devices(path: Path) -> None:
    assert max(each.schedule.num_devices for each in candidates(path, budget=2)) == 2


def formula(schedule: StepSchedule, workload: RunCalibration) -> StepPrediction:
    """A step that is fastest with three generators, and faster with staleness."""
    step_s = 10.0 + abs(schedule.num_generators - 3) - schedule.max_staleness
    return StepPrediction(
        step_s=step_s,
        phases_s={"wait": step_s},
        max_staleness=schedule.max_staleness,
        trainer_idle=1.0,
        slots_idle=0.0,
        gpu_hours=schedule.num_devices * step_s / 3600,
        error=0.0,
    )


def test_neighbours_of_the_best_are_simulated_until_none_is_better(path: Path) -> None:
    workload, _ = stated_workload(load(path).run)
    misled = [
        replace(each, estimate_s=each.schedule.num_generators + each.schedule.num_devices / 10)
        for each in candidates(path)
    ]
    search = PlanSearch(workload, misled, "fastest", simulation=formula)
    results = search.run(lambda num: None)
    assert search.complete and search.num_simulated < len({each.schedule for each in misled})
    best = results[0]
    assert (best.schedule.num_generators, best.schedule.max_staleness) == (3, 1.0)
    assert best in frontier(results)
    cheapest = PlanSearch(workload, misled, "cheapest", simulation=formula).run(lambda num: None)[0]
    assert cheapest.schedule.num_devices < best.schedule.num_devices


def test_a_candidate_that_cannot_be_configured_is_left_out(path: Path) -> None:
    workload, _ = stated_workload(load(path).run)

    def check(candidate: PlanCandidate) -> None:
        if candidate.max_staleness > 0:
            raise ConfigError("rollout.max_staleness: not with this recipe; set it to 0")

    search = PlanSearch(workload, candidates(path), "fastest", simulation=formula, check=check)
    assert {each.candidate.max_staleness for each in search.run(lambda num: None)} == {0.0} and search.faults
    stale = [each for each in candidates(path) if each.candidate.max_staleness > 0]
    with pytest.raises(ConfigError, match=r"^rollout\.max_staleness: not with this recipe"):
        PlanSearch(workload, stale, "fastest", simulation=formula, check=check).run(lambda num: None)


def test_a_search_ends_at_its_limit_of_time(path: Path) -> None:
    answers = iter([True, False])
    workload, _ = stated_workload(load(path).run)
    search = PlanSearch(workload, candidates(path), "fastest", in_time=lambda: next(answers), simulation=formula)
    search.run(lambda num: None)
    assert search.num_simulated == 2 and not search.complete


def test_a_recorded_run_scales_the_model_of_other_configurations(path: Path) -> None:
    workload, _ = stated_workload(load(path).run)
    measured = replace(workload, step_s=replace(workload.step_s, value=0.02, count=10))
    times = DeviceTimes(
        step_s=0.01,
        sequence_s=1e-5,
        prefill_s=1e-6,
        update_s=0.0,
        update_token_s=1e-5,
        publish_s=1.0,
        other_s=0.5,
        slots=64,
        num_generators=2,
        num_devices=4,
        shared=False,
    )
    faster = replace(times, step_s=0.005, num_generators=4)
    scaled = scaled_times(faster, times, measured)
    assert scaled.step_s == pytest.approx(0.01) and scaled.num_generators == 4


def test_a_generator_decodes_as_many_sequences_as_its_cache_holds(path: Path) -> None:
    run = load(
        path, ["rollout.max_seq_len=32768", "rollout.max_new_tokens=30000", "actor_infer.kv_cache_gib=4", TOKENS]
    ).run
    workload, _ = stated_workload(run)
    facts = facts_of(run)
    times = modelled_times(facts, plan_devices(facts, parse_cluster("1x2xH200")), workload)
    assert 1 < times.slots < 256
    assert schedule_for(run, times, 1.0, 2).slots == times.slots


@pytest.fixture
def plan(path: Path) -> RunPlan:
    return make_plan(PlanRequest(path=path, cluster="1x2xH200", lengths="30:0.5", max_staleness=0.0))


def test_a_plan_is_a_valid_run_file_that_is_not_replaced_once_edited(plan: RunPlan, tmp_path: Path) -> None:
    output = tmp_path / "plan.yaml"
    write_plan(plan, output)
    run = load(output).run
    assert run.rollout.max_staleness == plan.best.candidate.max_staleness == 0.0
    assert facts_of(run).role("actor_infer").devices != "auto"
    write_plan(plan, output)  # an unchanged plan may be replaced
    output.write_text(output.read_text(encoding="utf-8").replace("steps: 10", "steps: 11"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^--output .*: this plan was edited by hand; name another file"):
        check_output(output)


def test_a_file_that_is_no_plan_is_not_replaced(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--output .*: exists and is not a plan; name another file$"):
        check_output(path)


def test_a_cluster_on_which_nothing_fits(path: Path) -> None:
    path.write_text(RUN.replace("Qwen2.5-1.5B", "Qwen2.5-32B"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^roll plan: nothing fits \(\d+ placements tried\); the first: [^\n]+$"):
        make_plan(PlanRequest(path=path, cluster="1xT4"))


def test_bounds_that_exclude_everything(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--max-staleness: no staleness is at most -1; give 0 or more$"):
        staleness_choices(load(path).run, PlanBounds(num_devices=8, max_staleness=-1.0))
    workload, _ = stated_workload(load(path).run)
    with pytest.raises(ConfigError, match=r"^roll plan: the bounds exclude every candidate; raise --budget"):
        PlanSearch(workload, [], "fastest")


def test_no_such_run_and_a_run_without_finished_steps(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"runs/none: no such directory; give the directory of a run"):
        make_plan(PlanRequest(path=path, cluster="1x2xH200", source=Path("runs/none")))
    run = tmp_path / "runs" / "short"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(RUN, encoding="utf-8")
    (run / "metrics.jsonl").write_text("", encoding="utf-8")
    Journal(run / "journal.db").close()
    with pytest.raises(ConfigError, match=r"short: no finished step with its attempts; give the directory of a longer"):
        make_plan(PlanRequest(path=path, cluster="1x2xH200", source=run))


@pytest.mark.parametrize("text", ["", "x", "0", "-3:1", "100:x", "100:-1", "nan", "inf:1"])
def test_lengths_that_are_no_distribution(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--lengths: expected median and sigma of tokens, such as 2000:0\.8 \(got"):
        parse_lengths(text)


def test_stated_lengths_are_cut_at_the_limit(path: Path) -> None:
    workload, statement = stated_workload(load(path).run, "1000:1")
    assert workload.lengths[0][-1] == 1024 and 0.4 < workload.censored < 0.6
    assert "log-normal with median 1000" in statement and "cut at 1024" in statement
    _, assumed = stated_workload(load(path).run)
    assert "median 512" in assumed and "assumed" in assumed
    assert json.dumps(workload.lengths)
