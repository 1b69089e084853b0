"""Rewards in processes: scores come as from a plain call, and what hangs or dies costs one trajectory."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from roll.cluster.processes import ProcessCluster
from roll.errors import RewardFailed
from roll.rewards.worker import RewardWorker
from roll.rollout.pool import RewardPool
from roll.types import Call, Score, Task

TASK = Task(id="t", domain="d", answer="4")


def right(task: Task, reply: str) -> Score:
    return Score(float(reply == task.answer), {"length": float(len(reply))})


def endless(task: Task, reply: str) -> float:
    while True:
        time.sleep(0.01)


def deadly(task: Task, reply: str, *, witness: str, times: int = 1000) -> float:
    """Kills its process the first so many times it is called."""
    called = len(os.listdir(witness))
    Path(witness, str(called)).touch()
    if called < times:
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


def strange(task: Task, reply: str) -> Any:
    return {"nan": float("nan"), "text": "good", "huge": 1e30}[reply]


def within(use: Callable[[RewardPool], Awaitable[Any]], *, limit_s: float = 20.0, max_retries: int = 2) -> Any:
    async def run() -> Any:
        workers = ProcessCluster[RewardWorker](
            Call("roll.rewards.worker:RewardWorker"), 2, name="reward worker", limit_s=limit_s
        )
        pool = RewardPool(workers=workers, max_retries=max_retries)
        await pool.start()
        try:
            async with asyncio.timeout(60):
                return await use(pool)
        finally:
            await pool.stop()

    return asyncio.run(run())


def test_a_score_comes_with_its_parts() -> None:
    found = within(lambda pool: pool.score(Call(f"{__name__}:right"), TASK, "4"))
    assert found == Score(1.0, {"length": 1.0})


def test_what_never_ends_is_killed_and_the_next_score_still_comes() -> None:
    async def use(pool: RewardPool) -> Score:
        began = time.monotonic()
        hanging = [pool.score(Call(f"{__name__}:endless"), TASK, "4") for _ in range(4)]
        found = await asyncio.gather(*hanging, return_exceptions=True)
        assert all(isinstance(each, RewardFailed) and "timed out after 0.5 s" in str(each) for each in found)
        assert time.monotonic() - began < 10
        return await pool.score(Call(f"{__name__}:right"), TASK, "5")

    assert within(use, limit_s=0.5).value == 0.0


def test_a_process_that_dies_is_a_failure_of_ours_and_tried_again(tmp_path: Path) -> None:
    twice = Call(f"{__name__}:deadly", {"witness": str(tmp_path), "times": 2})
    assert within(lambda pool: pool.score(twice, TASK, "4")).value == 1.0
    assert len(list(tmp_path.iterdir())) == 3, "it really died twice"


def test_a_process_that_always_dies_ends_in_a_failure_and_not_in_a_score(tmp_path: Path) -> None:
    always = Call(f"{__name__}:deadly", {"witness": str(tmp_path)})
    with pytest.raises(RewardFailed, match="its process died 3 times"):
        within(lambda pool: pool.score(always, TASK, "4"))


@pytest.mark.parametrize(("reply", "message"), [("nan", "not finite"), ("text", "not a number"), ("none", "KeyError")])
def test_a_strange_answer_is_a_failure_with_its_reason(reply: str, message: str) -> None:
    with pytest.raises(RewardFailed, match=message):
        within(lambda pool: pool.score(Call(f"{__name__}:strange"), TASK, reply))
