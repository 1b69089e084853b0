"""Simulated generators: every response has its length and its duration, despite aborts and pauses."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from roll.engines.base import Output, Request
from roll.sim.clock import VirtualLoop, run_virtual
from roll.sim.engines import GeneratorSpeed, SimGenerator
from roll.sim.workload import Constant, Lengths, LogNormal, RecordedLengths
from roll.types import Finish, Sampling

T = TypeVar("T")


def request(key: int, *, produced: int = 0, most: int = 10**6) -> Request:
    return Request(
        id=f"r{key}",
        ids=(4,) * (1 + produced),
        max_new_tokens=most - produced,
        sampling=Sampling(),
        stop=frozenset({1}),
        key=key,
        produced=produced,
    )


def played(lengths: Lengths, speed: GeneratorSpeed, play: Callable[[SimGenerator, VirtualLoop], Awaitable[T]]) -> T:
    loop = VirtualLoop()

    async def main() -> T:
        generator = SimGenerator(lengths, speed, loop)
        await generator.pause()
        await generator.resume(0)
        return await play(generator, loop)

    return run_virtual(main(), loop)


async def drained(generator: SimGenerator, loop: VirtualLoop, num: int) -> list[tuple[float, Output]]:
    """The outputs of a number of requests, and their times."""
    found: list[tuple[float, Output]] = []
    while len(found) < num:
        outputs = await generator.events(3600.0)
        found += [(loop.time(), output) for output in outputs]
    return found


def test_a_free_slot_is_refilled_at_once() -> None:
    async def play(generator: SimGenerator, loop: VirtualLoop) -> list[float]:
        await generator.submit([request(key) for key in range(5)])
        return [when for when, _ in await drained(generator, loop, 5)]

    # 10 tokens at 5 a second are 2 seconds; two slots, five requests
    assert played(Constant(value=10), GeneratorSpeed(slots=2, tokens_per_s=5.0), play) == [2.0, 2.0, 4.0, 4.0, 6.0]


def test_a_free_slot_is_refilled_even_without_calls() -> None:
    async def play(generator: SimGenerator, loop: VirtualLoop) -> tuple[int, float]:
        await generator.submit([request(key) for key in range(5)])
        await asyncio.sleep(5.0)
        outputs = await generator.events(0.0)
        await generator.abort()
        partial = (await generator.events(0.0))[0]
        return len(outputs), len(partial.ids)

    # four have ended at 2 and 4; the fifth has been decoding for one second, which is 5 tokens
    assert played(Constant(value=10), GeneratorSpeed(slots=2, tokens_per_s=5.0), play) == (4, 5)


def test_a_request_gets_exactly_its_length_despite_aborts() -> None:
    lengths = LogNormal(median=200, sigma=1.1)
    speed = GeneratorSpeed(slots=3, tokens_per_s=7.0)

    async def play(generator: SimGenerator, loop: VirtualLoop) -> dict[int, int]:
        counted = dict.fromkeys(range(10), 0)
        open_keys = set(counted)
        await generator.submit([request(key) for key in counted])
        version = 0
        while open_keys:
            await asyncio.sleep(3.3)
            await generator.pause()
            await generator.abort()
            for output in await generator.events(0.0):
                key = int(output.id[1:])
                counted[key] += len(output.ids)
                if output.finish is Finish.STOP:
                    open_keys.remove(key)
            version += 1
            await generator.receive(version)
            await generator.resume(version)
            await generator.submit([request(key, produced=counted[key]) for key in sorted(open_keys)])
        return counted

    found = played(lengths, speed, play)
    assert found == {key: max(1, -int(-lengths.draw(key) // 1)) for key in found}
    assert max(found.values()) > 7 * 3.3 * 3, "some were cut more than once"


def test_an_aborted_part_carries_the_version_that_sampled_it_and_the_rest_the_next() -> None:
    async def play(generator: SimGenerator, loop: VirtualLoop) -> list[tuple[float, int, int, Finish | None]]:
        began = loop.time()
        await generator.submit([request(0)])
        await asyncio.sleep(1.0)
        await generator.pause()
        await generator.abort()
        found = [(loop.time() - began, output) for output in await generator.events(0.0)]
        await generator.receive(1)
        await generator.resume(1)
        await generator.submit([request(0, produced=5)])
        found += [(loop.time() - began, output) for output in await generator.events(60.0)]
        return [(when, len(output.ids), output.version, output.finish) for when, output in found]

    speed = GeneratorSpeed(slots=1, tokens_per_s=5.0, receive_s=0.25, resume_s=0.25)
    # five tokens in one second, half a second for the new version, the other five
    assert played(Constant(value=10), speed, play) == [(1.0, 5, 0, Finish.ABORT), (2.5, 5, 1, Finish.STOP)]


def test_a_paused_generator_continues_where_it_stopped() -> None:
    async def play(generator: SimGenerator, loop: VirtualLoop) -> list[float]:
        await generator.submit([request(0)])
        await asyncio.sleep(1.5)
        await generator.pause()
        await asyncio.sleep(10.0)
        await generator.resume(0)
        return [when for when, _ in await drained(generator, loop, 1)]

    assert played(Constant(value=10), GeneratorSpeed(slots=1, tokens_per_s=5.0), play) == [12.0]


def test_a_response_is_cut_at_its_limit() -> None:
    async def play(generator: SimGenerator, loop: VirtualLoop) -> list[tuple[float, int, Finish | None]]:
        await generator.submit([request(0, most=4)])
        return [(when, len(output.ids), output.finish) for when, output in await drained(generator, loop, 1)]

    assert played(Constant(value=10), GeneratorSpeed(slots=1, tokens_per_s=4.0), play) == [(1.0, 4, Finish.LENGTH)]


def test_waiting_for_events_ends_with_its_limit() -> None:
    async def play(generator: SimGenerator, loop: VirtualLoop) -> tuple[int, float]:
        return len(await generator.events(7.0)), loop.time()

    assert played(Constant(value=10), GeneratorSpeed(slots=1, tokens_per_s=4.0), play) == (0, 7.0)


def test_recorded_lengths_are_drawn_by_frequency() -> None:
    lengths = RecordedLengths(observed=[3.0, 3.0, 3.0, 9.0])
    drawn = [lengths.draw(key) for key in range(2000)]
    assert set(drawn) == {3.0, 9.0}
    assert 0.70 < drawn.count(3.0) / len(drawn) < 0.80
    assert drawn == [lengths.draw(key) for key in range(2000)]
