"""Environments in Ray processes: the same results as inline, and a process that blocks is replaced."""

import asyncio
from pathlib import Path

import pytest

from roll.config.envs import Envs
from roll.config.load import load
from roll.envs.guess_number import GuessNumber
from roll.rollout.env_pool import WORKER, EnvPool, EnvWorkerLimits, cluster_workers
from roll.types import Spec, Task
from tests.rollout import slow_envs

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

GUESS = Spec("guess_number")
SLOW = Spec(f"{slow_envs.__name__}:Slow")


def task(seed: int, **metadata: float) -> Task:
    return Task(id=f"t{seed}", domain="d", seed=seed, metadata=dict(metadata))


def test_environments_run_in_actors_and_one_that_blocks_costs_only_its_actor(ray_address: str, tmp_path: Path) -> None:
    from roll.cluster.ray.config import RayConfig
    from roll.cluster.ray.executor import RayExecutor

    async def use() -> None:
        executor = RayExecutor(RayConfig(name="envs", directory=tmp_path))
        cluster = executor.cluster(WORKER, 1, role="envs")
        pool = EnvPool(
            1, names=[GUESS.name], start_worker=cluster_workers(cluster), limits=EnvWorkerLimits(grace_s=0.5)
        )
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
            seat = pool._workers[0]
            while seat is not None and not seat.process.exit_reason:
                await asyncio.sleep(0.05)
            fresh = await pool.make(GUESS, task(2))
            await fresh.start()
            await fresh.close()
            assert pool.drain_counts() == {"envs/replaced": 1.0} and before not in pool.pids
        finally:
            await pool.stop()
            await executor.stop()

    asyncio.run(asyncio.wait_for(use(), 120))


def test_environments_on_ray_need_the_ray_executor(tmp_path: Path) -> None:
    text = "model: {shape: {hidden: 64}}\nalgorithm: grpo\ntasks: [{name: lake, env: frozen_lake}]\n"
    (tmp_path / "run.yaml").write_text(f"{text}rollout: {{max_seq_len: 300}}\n")
    with pytest.raises(Exception, match="the run itself has no Ray"):
        load(tmp_path / "run.yaml", ["envs={executor: ray, workers: 2}"])
    for wrong, says in (
        ({"executor": "ray"}, "set workers"),
        ({"executor": "ray", "workers": 1, "memory_mb": 9}, "Ray"),
    ):
        with pytest.raises(ValueError, match=says):
            Envs.model_validate(wrong)
