"""A run simulated with known speeds is calibrated back to these speeds."""

from dataclasses import replace

import numpy as np
import pytest

from roll.engines.base import Request
from roll.plan.calibration import calibrate
from roll.plan.decode_fit import fit_decode, nonnegative
from roll.plan.observations import AttemptSample, RunObservations, StepSample, TurnSample
from roll.sim.batched import BatchedGenerator, DecodeSpeed
from roll.sim.clock import VirtualLoop, run_virtual
from roll.sim.workload import LogNormal
from roll.types import Sampling

SPEED = DecodeSpeed(slots=16, step_s=0.02, sequence_s=0.001, prefill_s=0.0005, contexts=(200.0,))


def simulated_turns(speed: DecodeSpeed, *, num: int = 400, at_once: int = 40) -> list[TurnSample]:
    """Responses of one generator that gets a new burst of requests whenever it is empty."""
    loop, turns = VirtualLoop(), list[TurnSample]()
    sent: dict[str, float] = {}

    async def main() -> None:
        generator = BatchedGenerator(LogNormal(median=60, sigma=0.8), speed, loop)
        generator.on_end = lambda item, at, num_tokens: turns.append(
            TurnSample(
                start=sent[item.request.id],
                end=at,
                num_tokens=num_tokens,
                context=200,
                turn=0,
                order=(item.request.key, 0),
            )
        )
        await generator.pause()
        await generator.resume(0)
        for key in range(0, num, at_once):
            requests = [_request(each) for each in range(key, key + at_once)]
            sent.update((request.id, loop.time()) for request in requests)
            await generator.submit(requests)
            while len(turns) < key + at_once:
                await generator.events(3600.0)

    run_virtual(main(), loop)
    return turns


def _request(key: int) -> Request:
    return Request(
        id=f"train/t/{key}/0/0/0", ids=(4,), max_new_tokens=10**6, sampling=Sampling(), stop=frozenset({1}), key=key
    )


def test_the_speed_of_a_simulated_generator_is_calibrated_back() -> None:
    fit = fit_decode(simulated_turns(SPEED), num_generators=1, slots=16)
    step_s, sequence_s, prefill_s, request_s = fit.values
    assert step_s == pytest.approx(SPEED.step_s, rel=0.15)
    assert sequence_s == pytest.approx(SPEED.sequence_s, rel=0.15)
    assert step_s + 12 * sequence_s == pytest.approx(SPEED.step_s + 12 * SPEED.sequence_s, rel=0.03)
    assert prefill_s == pytest.approx(SPEED.prefill_s, rel=0.1)
    assert request_s < 0.1
    assert fit.count == 400 and all(
        error < 0.1 * value for error, value in zip(fit.errors, fit.values[:2], strict=False)
    )


def test_a_few_stalled_responses_do_not_change_the_fit() -> None:
    turns = simulated_turns(SPEED)
    stalled = [replace(turn, end=turn.end + 30.0 * (index % 40 == 0)) for index, turn in enumerate(turns)]
    fit = fit_decode(stalled, num_generators=1, slots=10**6)
    assert fit.values[0] + 12 * fit.values[1] == pytest.approx(SPEED.step_s + 12 * SPEED.sequence_s, rel=0.6)


def test_least_squares_without_negative_coefficients() -> None:
    columns = np.column_stack([np.arange(1.0, 9.0), np.ones(8)])
    assert nonnegative(columns, 2.0 * np.arange(1.0, 9.0) - 1.0)[1] == 0.0
    assert nonnegative(columns, 2.0 * np.arange(1.0, 9.0) + 3.0) == pytest.approx([2.0, 3.0])


def step(number: int, *, tokens: int = 1000, update_s: float = 4.0) -> StepSample:
    return StepSample(
        step=number,
        total_s=10.0,
        wait_s=4.0,
        update_s=update_s,
        publish_s=1.0,
        validate_s=0.0,
        checkpoint_s=0.5,
        num_tokens=tokens,
        staleness=0.0,
    )


def observations(steps: list[StepSample]) -> RunObservations:
    attempts = [
        AttemptSample(group=number // 4, lengths=(10 * (1 + number // 4), 5), waits_s=(1.0, 2.0), rest_s=0.25)
        for number in range(16)
    ]
    turns = simulated_turns(SPEED, num=40)
    return RunObservations(turns=tuple(turns), attempts=tuple(attempts), steps=tuple(steps), num_generators=1, slots=16)


def test_steps_give_the_times_of_updates_publications_and_the_rest() -> None:
    tokens = [1000 + 100 * (number % 5) for number in range(20)]
    calibration = calibrate(
        observations([step(index, tokens=num, update_s=1.0 + 0.002 * num) for index, num in enumerate(tokens, 1)])
    )
    assert calibration.update_s.value == pytest.approx(1.0) and calibration.update_token_s.value == pytest.approx(0.002)
    assert calibration.publish_s.value == 1.0 and calibration.publish_s.count == 19
    assert calibration.other_s.value == pytest.approx(np.mean([5.0 - 1.0 - 0.002 * num + 0.0 for num in tokens[1:]]))


def test_an_update_of_equal_batches_is_all_per_token() -> None:
    calibration = calibrate(observations([step(number) for number in range(1, 6)]))
    assert calibration.update_s.value == 0.0 and calibration.update_token_s.value == pytest.approx(0.004)


def test_lengths_are_by_turn_and_siblings_that_are_alike_are_noticed() -> None:
    calibration = calibrate(observations([step(1)]))
    assert sorted(set(calibration.lengths[0])) == [10, 20, 30, 40] and set(calibration.lengths[1]) == {5}
    assert calibration.sibling_correlation > 0.9
    assert set(calibration.turns) == {2} and calibration.tokens_per_attempt == pytest.approx(30.0)
    assert set(calibration.waits_s) == {1.0, 2.0} and set(calibration.ends_s) == {0.25}
