"""The lower bound that lets the exhaustive search of `roll bench plan` leave candidates out."""

from dataclasses import replace

import pytest

from benchmarks.plan_workloads import least_step_s
from roll.config.load import load
from roll.plan.calibration import RunCalibration
from roll.plan.predict import StepSchedule, predict
from roll.plan.workload import stated_workload

SCHEDULE = StepSchedule(
    num_generators=2,
    slots=8,
    step_s=0.04,
    sequence_s=0.005,
    prefill_s=0.0,
    update_s=1.0,
    update_token_s=0.01,
    publish_s=0.5,
    other_s=0.25,
    groups_per_step=8,
    group_size=2,
    max_staleness=0.0,
)


@pytest.fixture
def hundred() -> RunCalibration:
    """16 attempts of 100 tokens: at least 1,600 (0.04 / 8 + 0.005) / 2 = 8 s of decoding, and an update of 17 s."""
    tree = {
        "model": {"shape": {"max_seq_len": 256}},
        "algorithm": {"recipe": "grpo"},
        "tasks": [{"name": "sums", "data": {"kind": "arithmetic"}, "reward": "exact"}],
        "rollout": {"max_seq_len": 256, "max_new_tokens": 128},
    }
    stated, _ = stated_workload(load(tree).run)
    return replace(stated, lengths=((100.0,),), contexts=(0.0,))


def test_a_step_takes_at_least_its_decoding_and_its_update_in_turn_or_the_longer_one(hundred: RunCalibration) -> None:
    assert least_step_s(SCHEDULE, hundred) == pytest.approx(8.0 + 1.0 + 16.0 + 0.5 + 0.25)
    apart = replace(SCHEDULE, max_staleness=1.0)
    assert least_step_s(apart, hundred) == pytest.approx(17.75)
    assert least_step_s(replace(apart, update_token_s=0.0), hundred) == pytest.approx(8.5)
    assert least_step_s(replace(apart, shared=True), hundred) == pytest.approx(25.75)


@pytest.mark.parametrize("staleness", [0.0, 1.0])
def test_no_simulated_step_is_shorter_than_the_bound(staleness: float, hundred: RunCalibration) -> None:
    schedule = replace(SCHEDULE, max_staleness=staleness)
    simulated_s = predict(schedule, hundred, num_steps=3).step_s
    assert least_step_s(schedule, hundred) <= simulated_s < 1.5 * least_step_s(schedule, hundred)
