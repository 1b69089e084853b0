"""Simulated generators whose decode steps depend on the number of running sequences."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from roll.engines.base import Request
from roll.sim.batched import BatchedGenerator, DecodeSpeed
from roll.sim.clock import VirtualLoop, run_virtual
from roll.sim.workload import Constant, RecordedLengths, TurnLengths
from roll.types import Finish, Sampling

T = TypeVar("T")


def request(key: int, *, turn: int = 0, produced: int = 0, family: str = "f") -> Request:
    return Request(
        id=f"train/sums/{key}/0/0/{turn}~1",
        ids=(4,) * (1 + produced),
        max_new_tokens=10**6,
        sampling=Sampling(),
        stop=frozenset({1}),
        key=key,
        produced=produced,
        family=family,
    )


def played(speed: DecodeSpeed, play: Callable[[BatchedGenerator, VirtualLoop], Awaitable[T]], tokens: float = 10) -> T:
    loop = VirtualLoop()

    async def main() -> T:
        generator = BatchedGenerator(Constant(value=tokens), speed, loop)
        await generator.pause()
        await generator.resume(0)
        return await play(generator, loop)

    return run_virtual(main(), loop)


async def ends(generator: BatchedGenerator, loop: VirtualLoop, num: int) -> list[float]:
    times: list[float] = []
    while len(times) < num:
        num_ended = len(await generator.events(3600.0))
        times += [loop.time()] * num_ended
    return times


@pytest.mark.parametrize(("num", "seconds"), [(1, 10 * 1.5), (2, 10 * 2.0), (4, 10 * 3.0)])
def test_a_decode_step_takes_longer_with_more_sequences(num: int, seconds: float) -> None:
    async def play(generator: BatchedGenerator, loop: VirtualLoop) -> list[float]:
        await generator.submit([request(key) for key in range(num)])
        return await ends(generator, loop, num)

    assert played(DecodeSpeed(slots=4, step_s=1.0, sequence_s=0.5), play) == pytest.approx([seconds] * num)


def test_a_sequence_that_joins_slows_those_that_run() -> None:
    async def play(generator: BatchedGenerator, loop: VirtualLoop) -> list[float]:
        await generator.submit([request(0)])
        await asyncio.sleep(5.0)
        await generator.submit([request(1)])
        return await ends(generator, loop, 2)

    # alone 1 s per step: 5 steps; together 2 s: the first ends 10 s later, the second has 5 steps left, alone again
    assert played(DecodeSpeed(slots=4, step_s=0.0, sequence_s=1.0), play) == pytest.approx([15.0, 20.0])


def test_a_context_is_prefilled_before_others_decode_on() -> None:
    async def play(generator: BatchedGenerator, loop: VirtualLoop) -> list[float]:
        await generator.submit([request(0)])
        await asyncio.sleep(5.0)
        await generator.submit([request(1, turn=1)])
        return await ends(generator, loop, 2)

    speed = DecodeSpeed(slots=4, step_s=1.0, prefill_s=0.5, contexts=(0.0, 8.0))
    assert played(speed, play) == pytest.approx([14.0, 19.0])


def test_a_pause_and_an_abort_keep_complete_tokens_only() -> None:
    async def play(generator: BatchedGenerator, loop: VirtualLoop) -> tuple[int, Finish | None, float]:
        await generator.submit([request(0)])
        await asyncio.sleep(3.5)
        generator.freeze()
        await asyncio.sleep(100.0)
        await generator.abort()
        (output,) = await generator.events(0.0)
        generator.thaw()
        await generator.submit([request(0, produced=len(output.ids))])
        (end,) = await ends(generator, loop, 1)
        return len(output.ids), output.finish, end

    assert played(DecodeSpeed(slots=4, step_s=1.0), play) == (3, Finish.ABORT, pytest.approx(103.5 + 7.0))


def test_a_simulated_token_may_represent_several() -> None:
    async def play(generator: BatchedGenerator, loop: VirtualLoop) -> list[float]:
        await generator.submit([request(0)])
        return await ends(generator, loop, 1)

    assert played(DecodeSpeed(slots=1, step_s=0.5, scale=20.0), play, tokens=1000) == pytest.approx([500.0])


def test_lengths_of_turns_follow_their_distributions_and_siblings_resemble_each_other() -> None:
    lengths = TurnLengths(observed=[range(100), [1000.0]], sibling_correlation=0.9)
    assert lengths.draw_for(request(3, turn=1)) == lengths.draw_for(request(3, turn=7)) == 1000.0
    drawn = [[lengths.draw_for(request(key, family=f"{family}")) for key in range(20)] for family in range(50)]
    assert abs(sum(map(sum, drawn)) / 1000 - 49.5) < 12
    within = sum(max(each) - min(each) for each in drawn) / 50
    independent = TurnLengths(observed=[range(100)])
    spread = [independent.draw_for(request(key)) for key in range(20)]
    assert within < 0.8 * (max(spread) - min(spread))
    assert RecordedLengths(observed=[5.0]).draw(1) == 5.0
