"""Reward and environment workers that die in their first start are replaced within a limit, and reported."""

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from roll.cluster.process import ProcessCluster
from roll.cluster.replacement import FirstStart
from roll.errors import RunStopped
from roll.journal.events import WorkerReplaced
from roll.journal.store import Journal
from roll.rewards.base import LocalRewards
from roll.rollout.env_pool import EnvPool, EnvWorkerLimits
from roll.rollout.environments import InlineEnvs
from roll.rollout.reward_pool import RewardPool
from roll.types import Spec, Task
from roll.wiring.services import record_replacements

pytestmark = pytest.mark.slow


MODULE = """\
import os
import signal

died = len(os.listdir({folder!r}))
if died < {times}:
    open({folder!r} + f"/{{died}}", "w").close()
    os.kill(os.getpid(), signal.SIGKILL)

from roll.envs.guess_number import GuessNumber as Env
from roll.rewards.base import LocalRewards as Rewards
"""
"""A module that kills the first processes that import it."""


def write_module(folder: Path, times: int) -> str:
    name = f"dying_{times}"
    (folder.parent / f"{name}.py").write_text(MODULE.format(folder=str(folder), times=times))
    return name


def reward_pool(folder: Path, times: int) -> RewardPool:
    spec = Spec(f"{write_module(folder, times)}:Rewards")
    return RewardPool(workers=ProcessCluster[LocalRewards](spec, 1, name="reward worker"), max_retries=1)


def env_pool(folder: Path, times: int) -> EnvPool:
    first = FirstStart(max_deaths=1, setting="rollout.max_retries")
    return EnvPool(1, names=[f"{write_module(folder, times)}:Env"], limits=EnvWorkerLimits(first_start=first))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "died").mkdir()
    return tmp_path / "died"


async def started(pool: Any, journal: Journal) -> None:
    """Start a pool and use it; its replacements are recorded after the start, when the journal is open."""
    try:
        async with asyncio.timeout(120):
            await pool.start()
            is_envs = isinstance(pool, EnvPool)
            with record_replacements(journal, LocalRewards() if is_envs else pool, pool if is_envs else InlineEnvs()):
                task = Task(id="t", domain="d", answer="4", seed=1)
                if is_envs:
                    await (await pool.make(Spec("guess_number"), task)).close()
                else:
                    assert (await pool.score(Spec("math"), task, "4")).score is not None
    finally:
        await pool.stop()


@pytest.mark.parametrize(
    ("make", "name"), [(reward_pool, "reward worker 0"), (env_pool, "environment worker 0")], ids=["reward", "env"]
)
def test_a_worker_that_dies_in_its_first_start_is_replaced_within_the_limit(
    make: Any, name: str, folder: Path, tmp_path: Path
) -> None:
    with closing(Journal(tmp_path / "journal.db")) as journal:
        asyncio.run(started(make(folder, 1), journal))
        (event,) = [entry.event for entry in journal.events(WorkerReplaced)]
        assert event.worker == name and "was killed by SIGKILL during" in event.reason
        with pytest.raises(RunStopped, match=rf"{name}.* \(1 before it died in their first start too, see r\w+.max_re"):
            asyncio.run(started(make(folder, 3), journal))
