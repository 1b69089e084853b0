"""Environments in processes, and how many may start at once, wherever they are."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from roll.envs.base import Env
from roll.envs.guess_number import GuessNumber
from roll.errors import EnvFailed
from roll.rollout.env_pool import EnvPool, EnvWorkerLimits
from roll.rollout.environments import InlineEnvs
from roll.types import Spec, Task
from tests.rollout import slow_envs

pytestmark = pytest.mark.slow

GUESS = Spec("guess_number")
SLOW = Spec(f"{slow_envs.__name__}:Slow")


def task(seed: int = 0, **metadata: Any) -> Task:
    return Task(id=f"t{seed}", domain="d", seed=seed, metadata=metadata)


def within(use: Callable[[EnvPool], Awaitable[Any]], size: int = 1, **given: Any) -> Any:
    async def run() -> Any:
        pool = EnvPool(size, names=[GUESS.name, SLOW.name], **given)
        try:
            async with asyncio.timeout(60):
                await pool.start()
                return await use(pool)
        finally:
            await pool.stop()
            assert not pool.pids

    return asyncio.run(run())


async def played(env: Env) -> list[Any]:
    found: list[Any] = [await env.start()]
    for reply in ("5", "x", "2", "9"):
        found.append(await env.step(reply))
        if found[-1].done:
            break
    await env.close()
    await env.close()
    return found


def test_hundreds_of_environments_share_two_processes_and_behave_as_inline_ones() -> None:
    async def use(pool: EnvPool) -> None:
        envs = await asyncio.gather(*(pool.make(GUESS, task(seed)) for seed in range(300)))
        assert [seat.num_envs for seat in pool._workers] == [150, 150]
        there = await asyncio.gather(*map(played, envs))
        here = [await played(GuessNumber(task(seed))) for seed in range(300)]
        assert there == here
        assert [seat.num_envs for seat in pool._workers] == [0, 0] and pool.num_replaced == 0

    within(use, size=2)


@pytest.mark.parametrize("where", ["here", "there"])
def test_concurrent_starts_are_limited_and_queueing_does_not_count_towards_the_timeout(
    where: str, tmp_path: Path
) -> None:
    async def use(envs: Any) -> None:
        asked = [envs.make(SLOW, task(number, start_s=0.15, witness=str(tmp_path))) for number in range(9)]
        for env in await asyncio.gather(*asked):
            assert await env.start()
            await env.close()

    if where == "here":
        asyncio.run(use(InlineEnvs(start_limit=3, limit_s=0.4)))
    else:
        within(use, start_limit=3, limit_s=0.4)
    starting = [int(path.read_text()) for path in tmp_path.iterdir()]
    assert len(starting) == 9 and max(starting) == 3


def test_an_environment_that_times_out_fails_alone() -> None:
    async def use(pool: EnvPool) -> None:
        other = await pool.make(GUESS, task(1))
        env = await pool.make(SLOW, task(0, step_s=1000))
        before = pool.pids
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await env.step("5")
        await env.close()
        await asyncio.sleep(0.4)
        assert pool.pids == before and pool.num_replaced == 0
        await played(other)

    within(use, limits=EnvWorkerLimits(grace_s=0.3))


def test_an_environment_that_blocks_costs_its_process_and_the_others_fail_with_the_reason() -> None:
    async def use(pool: EnvPool) -> None:
        other = await pool.make(GUESS, task(1))
        env = await pool.make(SLOW, task(0, block_s=1000))
        (before,) = pool.pids
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await env.step("5")
        began = time.monotonic()
        await env.close()
        assert time.monotonic() - began < 60
        with pytest.raises(Exception, match=r"environment worker 0: an environment in it did not respond within 0.3 s"):
            await other.step("5")
        await other.close()
        fresh = await pool.make(GUESS, task(2))
        assert pool.num_replaced == 1 and before not in pool.pids
        assert pool.drain_counts() == {"envs/replaced": 1.0} and pool.drain_counts() == {}
        await played(fresh)

    within(use, limits=EnvWorkerLimits(grace_s=0.3))


def test_arguments_that_do_not_fit_are_reported_by_a_process() -> None:
    async def use(pool: EnvPool) -> None:
        assert "needs 0 <= low < high" in await pool.unusable_reason(
            Spec("guess_number", {"low": 9, "high": 3}), task(0)
        )
        assert await pool.unusable_reason(GUESS, task(0)) == ""
        assert pool.num_replaced == 0

    within(use)


def test_a_process_that_grows_too_large_is_replaced_when_empty_and_killed_if_it_keeps_growing() -> None:
    async def use(pool: EnvPool) -> None:
        (old,) = pool.pids
        leaking = await pool.make(SLOW, task(0, leak_mb=320))
        await leaking.step("5")
        await _until(lambda: pool.num_replaced == 1)
        other = await pool.make(SLOW, task(1, leak_mb=700))
        assert len(pool.pids) == 2 and old in pool.pids, "the full one lives on for those in it"
        await leaking.close()
        await _until(lambda: old not in pool.pids)
        with pytest.raises(
            Exception, match=r"it held \d+ MB of memory where 300 are allowed \(envs.memory_mb\); it was"
        ):
            for _ in range(100):
                await other.step("5")
                await asyncio.sleep(0.05)

    within(use, limits=EnvWorkerLimits(memory_bytes=300 * 2**20, memory_poll_s=0.05))


async def _until(there: Callable[[], bool]) -> None:
    while not there():
        await asyncio.sleep(0.02)


def test_an_environment_that_cannot_start_is_closed_and_its_process_is_unaffected(tmp_path: Path) -> None:
    async def use(pool: EnvPool) -> None:
        with pytest.raises(EnvFailed, match=r"of task 't0', starting: TimeoutError: no answer within 0.2 s"):
            await pool.make(SLOW, task(0, start_s=1000, witness=str(tmp_path)))
        with pytest.raises(EnvFailed, match="no environment named 'gues_number'; did you mean 'guess_number'"):
            await pool.make(Spec("gues_number"), task(0))
        with pytest.raises(EnvFailed, match="needs 0 <= low < high"):
            await pool.make(Spec("guess_number", {"low": 9}), task(0))
        assert pool._workers[0].num_envs == 0 and (tmp_path / "t0-closed").exists()
        cancelled = asyncio.ensure_future(pool.make(SLOW, task(1, start_s=0.15, witness=str(tmp_path))))
        await asyncio.sleep(0.1)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert pool._workers[0].num_envs == 0

    within(use, limit_s=0.2)


def test_remaining_environments_are_closed_when_the_pool_stops(tmp_path: Path) -> None:
    async def use(pool: EnvPool) -> None:
        for number in range(3):
            await pool.make(SLOW, task(number, witness=str(tmp_path)))

    within(use)
    assert len(list(tmp_path.glob("*-closed"))) == 3


def test_a_process_that_cannot_start_fails_attempts_by_name() -> None:
    async def use(pool: EnvPool) -> None:
        with pytest.raises(
            EnvFailed, match=r"environment worker 0: did not start within 0.0.* s; raise envs.start_timeout_s"
        ):
            await pool.make(GUESS, task(0))

    async def run() -> None:
        pool = EnvPool(1, limits=EnvWorkerLimits(start_timeout_s=0.01))
        await use(pool)
        await pool.stop()

    asyncio.run(run())
