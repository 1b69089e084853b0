"""The completion-time bounds of generation with a queue, against the real scheduler on virtual time."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import pytest

from benchmarks.papers.bounds import best_training_share, makespan_bound_s, sample_bound_s, step_bound_s
from benchmarks.papers.queueing import makespan_s
from roll.sim.engines import GeneratorSpeed
from roll.sim.run import SimulationConfig, SimulationResult, simulate
from roll.sim.workload import Constant, Lengths, LogNormal, RecordedLengths

SLOTS, GENERATORS = 8, 2
TOKEN_S = 0.02
BATCH = SimulationConfig(
    steps=8,
    lengths=Constant(value=100),
    speed=GeneratorSpeed(slots=SLOTS, tokens_per_s=1 / TOKEN_S),
    num_generators=GENERATORS,
    update_s=0.0,
    groups_per_step=12,
    group_size=4,
)
LENGTHS: dict[str, Lengths] = {
    "equal": Constant(value=100),
    "moderate": LogNormal(median=100, sigma=0.5),
    "long tail": LogNormal(median=60, sigma=1.2),
    "one in twelve is 20 times longer": RecordedLengths(observed=[*[40.0] * 11, 800.0]),
}


@dataclass(slots=True)
class InOrder:
    """The given lengths, in the order in which attempts are first decoded."""

    values: Sequence[float]
    _drawn: dict[int, float] = field(default_factory=dict[int, float])

    def draw(self, key: int) -> float:
        return self._drawn.setdefault(key, self.values[len(self._drawn) % len(self.values)])


def durations_s(result: SimulationResult) -> list[list[float]]:
    """By step, the decoding time of every attempt."""
    return [[each for group in step for each in group] for step in result.alone_s]


def block_bounds_s(result: SimulationResult, alpha: int) -> list[tuple[float, float]]:
    """Time that `alpha` + 1 consecutive steps took, and its bound, for every such block.

    When the step before a block ends, only attempts of the block and of later steps are unfinished. Attempts start in
    the order of their admission, so until the last of the block starts all slots decode attempts of the block or of
    one that started earlier. An update of the weights aborts running attempts, which lose a started token per slot.
    """
    ends_s, batches = [0.0, *result.ends_s], durations_s(result)
    blocks = range(len(batches) - alpha)
    return [
        (
            ends_s[first + alpha + 1] - ends_s[first],
            makespan_bound_s(
                [each for batch in batches[first : first + alpha + 1] for each in batch], SLOTS * GENERATORS
            )
            + (alpha + 1) * TOKEN_S,
        )
        for first in blocks
    ]


def test_the_bound_of_a_queue_is_that_of_the_worst_order() -> None:
    # the work of the others is 12 on 3 slots, then the longest: 4 + 6
    assert makespan_bound_s([2, 6, 3, 3, 4], 3) == pytest.approx(10.0)
    # six of 2 and then the longest reach it: 2 + 2 + 6
    assert makespan_s([2, 2, 2, 2, 2, 2, 6], 3) == makespan_bound_s([2, 2, 2, 2, 2, 2, 6], 3) == pytest.approx(10.0)
    # the longest first: 6, while the other slots do 12
    assert makespan_s([6, 2, 2, 2, 2, 2, 2], 3) == pytest.approx(6.0)


def test_per_sample_the_tail_is_shared_by_all_batches_in_flight() -> None:
    # 10 s per 5 slots, and 4/5 of 50 s over 20 samples
    assert sample_bound_s(10.0, 50.0, 20, slots=5) == pytest.approx(2.0 + 2.0)
    assert sample_bound_s(10.0, 50.0, 20, slots=5, alpha=1.0) == pytest.approx(2.0 + 1.0)
    assert sample_bound_s(10.0, 50.0, 20, slots=5, alpha=1e9) == pytest.approx(10.0 / 5)
    assert 20 * sample_bound_s(10.0, 50.0, 20, slots=5) == pytest.approx(makespan_bound_s([*[150 / 19] * 19, 50], 5))


def test_at_the_best_split_training_takes_as_long_as_the_bound_of_a_step() -> None:
    share = best_training_share(60.0, 20.0, 40.0, alpha=1.0)
    assert share == pytest.approx(20 / 100)
    assert step_bound_s(60.0, 20.0, 40.0, alpha=1.0) == pytest.approx(100.0) == pytest.approx(20.0 / share)


def test_the_scheduler_meets_the_bound_exactly_in_the_worst_order() -> None:
    lengths = InOrder([2, 2, 2, 2, 2, 2, 6])
    worst = replace(BATCH, steps=1, lengths=lengths, speed=GeneratorSpeed(slots=3, tokens_per_s=1.0), num_generators=1)
    assert simulate(replace(worst, groups_per_step=1, group_size=7)).ends_s == pytest.approx([10.0])


@pytest.mark.parametrize("alpha", [0, 1, 3])
@pytest.mark.parametrize("name", LENGTHS)
def test_no_block_of_steps_takes_longer_than_its_bound(name: str, alpha: int) -> None:
    for seed in range(2):
        result = simulate(replace(BATCH, lengths=LENGTHS[name], max_staleness=float(alpha), seed=seed))
        blocks = block_bounds_s(result, alpha)
        assert len(blocks) == 8 - alpha
        assert [block for block in blocks if block[0] > block[1]] == []
        assert max(took_s / bound_s for took_s, bound_s in blocks) > 0.6, "the bound is too loose to test anything"


@pytest.mark.sweep
@pytest.mark.parametrize("alpha", [0, 1, 2, 4, 8])
@pytest.mark.parametrize("name", LENGTHS)
def test_no_block_of_steps_takes_longer_than_its_bound_for_many_seeds(name: str, alpha: int) -> None:
    for seed in range(10):
        setting = replace(BATCH, steps=20, lengths=LENGTHS[name], max_staleness=float(alpha), seed=seed)
        assert [block for block in block_bounds_s(simulate(setting), alpha) if block[0] > block[1]] == []


def test_two_generators_share_one_queue() -> None:
    alternating = replace(
        BATCH,
        steps=1,
        lengths=InOrder([9, 1, 9, 1, 9, 1]),
        speed=GeneratorSpeed(slots=1, tokens_per_s=1.0),
        groups_per_step=1,
        group_size=6,
    )
    # with a queue one slot decodes 9, 1 and 9, the other 1, 9 and 1
    assert simulate(alternating).ends_s == pytest.approx([19.0])
    assert makespan_bound_s([9, 1, 9, 1, 9, 1], 2) == pytest.approx(10.5 + 9)


def test_with_a_large_ratio_the_time_per_sample_approaches_the_mean_load() -> None:
    steps, num_samples = 24, 48
    loads: dict[int, float] = {}
    for alpha in (0, 8):
        result = simulate(replace(BATCH, steps=steps, lengths=LENGTHS["long tail"], max_staleness=float(alpha)))
        work_s = list(accumulate(sum(batch) for batch in durations_s(result)))
        per_sample_s = result.ends_s[-9] / (num_samples * (steps - 8))
        loads[alpha] = per_sample_s / (work_s[-9] / (num_samples * (steps - 8)) / (SLOTS * GENERATORS))
    assert loads[0] > 1.5
    assert 1.0 <= loads[8] < 1.25
