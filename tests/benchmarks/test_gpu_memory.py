"""The ladders of `gpu_memory` without a GPU: the predictions of the plan, and the summary of trials."""

import pytest

from benchmarks.gpu_memory import LADDERS, Ladder, Trial, _summary, parameters_of, predict
from benchmarks.gpu_memory_try import batch
from roll.placement.machine import GIB

FULL, LORA = LADDERS


def test_parameters_are_those_of_the_shapes_as_published() -> None:
    # in billions, as the model cards say
    assert parameters_of(FULL, 36) / 1e9 == pytest.approx(8.2, abs=0.05)
    assert parameters_of(LORA, 64) / 1e9 == pytest.approx(32.8, abs=0.05)


@pytest.mark.parametrize("ladder", LADDERS, ids=lambda ladder: ladder.name)
def test_by_the_plan_the_smallest_model_fits_and_the_largest_does_not(ladder: Ladder) -> None:
    lowest, highest = (predict(ladder, ladder.layers[index]) for index in (0, -1))
    assert lowest[0] and not highest[0]
    assert lowest[1] < 139 * GIB < highest[1] * 1.06


def test_the_plan_counts_sixteen_bytes_per_parameter_and_activations() -> None:
    # 8.19 billion parameters in 36 layers: 122.1 GiB, and 9.2 for a sequence, a chunk of logits and one layer
    assert predict(FULL, 36)[1] / GIB == pytest.approx(122.1 + 9.2, abs=0.3)


def test_the_largest_model_that_fits_is_compared_with_the_planned_one() -> None:
    ladder = Ladder(name="full", shape=FULL.shape, layers=(30, 31, 32))
    trials = {
        1: Trial(fits=True, peak=110 * GIB, parameters=parameters_of(FULL, 31)),
        2: Trial(fits=False, peak=130 * GIB, parameters=0),
    }
    summary = _summary(ladder, [30], trials)
    assert (summary["layers"], summary["planned_layers"], summary["tried"]) == (31, 30, {31: 110.0, 32: 130.0})
    assert summary["parameters_apart"] == pytest.approx(1 - parameters_of(FULL, 30) / parameters_of(FULL, 31), abs=1e-4)
    assert _summary(ladder, [30], {0: Trial(fits=False, peak=0, parameters=0, why="(exit code 1)")})["why"]


def test_a_trial_trains_on_sequences_of_2048_tokens() -> None:
    sequences = batch()
    assert sequences.lengths == (2048,) * 4 and int(sequences.trained.sum()) == 4 * 1920
