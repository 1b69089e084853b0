"""Environments in Ray's processes: played as here, and a process that never gives way is replaced."""

import asyncio
from pathlib import Path

import pytest

from roll.config.envs import Envs
from roll.config.load import load
from roll.envs.guess_number import GuessNumber
from roll.rollout.env_pool import WORKER, EnvPool, HostLimits, members_of
from roll.types import Call, Task
from tests.rollout import slow_envs

GUESS = Call("guess_number")
SLOW = Call(f"{slow_envs.__name__}:Slow")


def task(seed: int, **metadata: float) -> Task:
    return Task(id=f"t{seed}", domain="d", seed=seed, metadata=dict(metadata))


def test_environments_live_in_actors_and_one_that_never_gives_way_costs_its_own(
    ray_address: str, tmp_path: Path
) -> None:
    from roll.cluster.ray.cluster import RayExecutor, Site

    async def use() -> None:
        executor = RayExecutor(Site(name="envs", directory=tmp_path))
        cluster = executor.cluster(WORKER, 1, role="envs")
        pool = EnvPool(1, names=[GUESS.name], open_host=members_of(cluster), limits=HostLimits(grace_s=0.5))
        await executor.start()
        try:
            await pool.start()
            env, here = await pool.make(GUESS, task(3)), GuessNumber(task(3))
            assert await env.start() == await here.start()
            assert [await env.step(reply) for reply in ("x", "5")] == [await here.step(reply) for reply in ("x", "5")]
            await env.close()
            stuck, (before,) = await pool.make(SLOW, task(0, block_s=1000)), pool.pids
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await stuck.step("5")
            await stuck.close()
            seat = pool._seats[0]
            while seat is not None and not seat.host.why:
                await asyncio.sleep(0.05)
            fresh = await pool.make(GUESS, task(2))
            await fresh.start()
            await fresh.close()
            assert pool.drain_counts() == {"envs/replaced": 1.0} and before not in pool.pids
        finally:
            await pool.stop()
            await executor.stop()

    asyncio.run(asyncio.wait_for(use(), 120))


def test_environments_cannot_be_on_ray_without_it(tmp_path: Path) -> None:
    text = "model: {shape: {hidden: 64}}\nalgorithm: grpo\ntasks: [{name: lake, env: frozen_lake}]\n"
    (tmp_path / "run.yaml").write_text(f"{text}rollout: {{context: 300}}\n")
    with pytest.raises(Exception, match="the run itself has no Ray"):
        load(tmp_path / "run.yaml", ["envs={executor: ray, workers: 2}"])
    for wrong, says in (
        ({"executor": "ray"}, "set workers"),
        ({"executor": "ray", "workers": 1, "memory_mb": 9}, "Ray"),
    ):
        with pytest.raises(ValueError, match=says):
            Envs.model_validate(wrong)
