"""Rewards in processes: scores come as from a plain call, and what hangs or dies costs one trajectory."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from roll.cluster.processes import ProcessCluster
from roll.errors import ConfigError, RewardFailed
from roll.journal.events import RunStarted
from roll.journal.store import Journal
from roll.report.ledger import ledger
from roll.rewards.outcome import Ending, Fault, Outcome
from roll.rewards.worker import RewardWorker
from roll.rollout.reward_pool import InlineRewards, RewardPool, Scorer
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


def flaky(task: Task, reply: str, *, witness: str, times: int) -> float:
    """A service that fails the first so many times."""
    called = len(os.listdir(witness))
    Path(witness, str(called)).touch()
    if called < times:
        raise RewardFailed("service: no answer; start it")
    return 1.0


class Diarist:
    """Notes what happens to it in files that are named after its process."""

    def __init__(self, *, folder: str, start_s: float = 0.0) -> None:
        self.folder, self.start_s = Path(folder), start_s
        self._note("made")

    def start(self) -> None:
        time.sleep(self.start_s)
        self._note("started")

    async def stop(self) -> None:
        self._note("stopped")

    def score(self, task: Task, reply: str) -> float:
        if reply == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.05)
        return 1.0

    def _note(self, what: str) -> None:
        with (self.folder / f"{os.getpid()}").open("a") as diary:
            diary.write(f"{what} ")


class Impossible:
    def __init__(self) -> None:
        raise ValueError("not today")


def within(use: Callable[[RewardPool], Awaitable[Any]], *, limit_s: float = 20.0, max_retries: int = 2) -> Any:
    async def run() -> Any:
        workers = ProcessCluster[RewardWorker](
            Call("roll.rewards.worker:RewardWorker"), 2, name="reward worker", limit_s=limit_s, limits={"start": 20.0}
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
    assert found == Outcome.of(Score(1.0, {"length": 1.0}))


def test_what_never_ends_is_killed_and_the_next_score_still_comes() -> None:
    async def use(pool: RewardPool) -> Outcome:
        began = time.monotonic()
        hanging = [pool.score(Call(f"{__name__}:endless"), TASK, "4") for _ in range(4)]
        found = await asyncio.gather(*hanging)
        assert all(each.ending is Ending.TIMED_OUT and "timed out after 0.5 s" in each.reason for each in found)
        assert time.monotonic() - began < 10
        return await pool.score(Call(f"{__name__}:right"), TASK, "5")

    assert within(use, limit_s=0.5) == Outcome.of(Score(0.0, {"length": 1.0}))


def test_a_process_that_dies_is_a_failure_of_ours_and_tried_again(tmp_path: Path) -> None:
    twice = Call(f"{__name__}:deadly", {"witness": str(tmp_path), "times": 2})
    assert within(lambda pool: pool.score(twice, TASK, "4")) == Outcome.of(Score(1.0))
    assert len(list(tmp_path.iterdir())) == 3, "it really died twice"


def test_a_process_that_always_dies_ends_in_a_failure_and_not_in_a_score(tmp_path: Path) -> None:
    always = Call(f"{__name__}:deadly", {"witness": str(tmp_path)})
    found = within(lambda pool: pool.score(always, TASK, "4"))
    assert found.ending is Ending.FAILED and found.fault is Fault.INFRASTRUCTURE
    assert "its process ended during score" in found.reason
    assert len(list(tmp_path.iterdir())) == 3, "it was asked for as often as it may"


def test_a_strange_answer_is_a_failure_with_its_reason() -> None:
    said = {"nan": "not finite", "text": "not a number (got 'good')", "huge": "(got 1e+30)", "none": "KeyError: 'none'"}

    async def use(pool: RewardPool) -> list[Outcome]:
        return [await pool.score(Call(f"{__name__}:strange"), TASK, reply) for reply in said]

    for outcome, message in zip(within(use), said.values(), strict=True):
        assert outcome.fault is Fault.REWARD and message in outcome.reason
    assert f"({__file__}:" in outcome.reason, "the line that raised is told from another process too"


@pytest.mark.parametrize("inline", [True, False])
def test_a_service_that_fails_is_asked_again(inline: bool, tmp_path: Path) -> None:
    twice = Call(f"{__name__}:flaky", {"witness": str(tmp_path), "times": 2})
    more = Call(f"{__name__}:flaky", {"witness": str(tmp_path), "times": 6})

    async def use(scorer: Scorer) -> tuple[Outcome, Outcome]:
        return await scorer.score(twice, TASK, "4"), await scorer.score(more, TASK, "4")

    found = asyncio.run(use(InlineRewards(max_retries=2))) if inline else within(use)
    assert found[0] == Outcome.of(Score(1.0))
    assert found[1].fault is Fault.INFRASTRUCTURE and "service: no answer" in found[1].reason
    assert len(list(tmp_path.iterdir())) == 6


def test_what_each_worker_does_is_in_the_journal_second_by_second(tmp_path: Path) -> None:
    reward = Call(f"{__name__}:Diarist", {"folder": str(tmp_path), "start_s": 0.2})

    async def use(pool: RewardPool) -> None:
        with closing(Journal(tmp_path / "journal.db")) as journal:
            pool.write_down(journal)
            journal.record(RunStarted(config_digest=""))
            await asyncio.sleep(0.1)
            await asyncio.gather(*(pool.score(reward, TASK, "4") for _ in range(6)))
            await pool.score(reward, TASK, "die")  # whoever is killed is at work again afterwards
            await asyncio.sleep(0.1)

    within(use, max_retries=0)
    found = ledger(tmp_path).hours
    assert [sheet.worker for sheet in found.workers] == ["reward-0", "reward-1"]
    for sheet in found.workers:
        assert set(sheet.doing_s) == {"score", "start", "idle: replies"}
        assert abs(sheet.unaccounted_s) < 0.02 * sheet.wall_s
        assert sheet.doing_s["score"] > 0.04 and sheet.doing_s["start"] > 0.2 and sheet.doing_s["idle: replies"] > 0.15
    assert sum(sheet.doing_s["score"] for sheet in found.workers) > 0.3, "six of 0.05 s, whoever did them"


def diaries(folder: Path) -> list[str]:
    return sorted(path.read_text().strip() for path in folder.iterdir())


def test_a_class_lives_once_in_every_process_and_ends_with_the_pool(tmp_path: Path) -> None:
    reward = Call(f"{__name__}:Diarist", {"folder": str(tmp_path)})

    async def use(pool: RewardPool) -> list[Outcome]:
        return list(await asyncio.gather(*(pool.score(reward, TASK, "4") for _ in range(8))))

    assert within(use) == [Outcome.of(Score(1.0))] * 8
    assert diaries(tmp_path) == ["made started stopped"] * 2


def test_a_class_lives_once_where_there_are_no_processes(tmp_path: Path) -> None:
    reward = Call(f"{__name__}:Diarist", {"folder": str(tmp_path)})

    async def use() -> list[Outcome]:
        scorer = InlineRewards(max_retries=0)
        await scorer.start()
        found = await asyncio.gather(*(scorer.score(reward, TASK, "4") for _ in range(3)))
        await scorer.stop()
        return list(found)

    assert asyncio.run(use()) == [Outcome.of(Score(1.0))] * 3
    assert diaries(tmp_path) == ["made started stopped"]


def test_a_start_may_last_longer_than_a_score_and_is_made_again_in_a_fresh_process(tmp_path: Path) -> None:
    reward = Call(f"{__name__}:Diarist", {"folder": str(tmp_path), "start_s": 2.5})

    async def use(pool: RewardPool) -> tuple[Outcome, Outcome]:
        return await pool.score(reward, TASK, "die"), await pool.score(reward, TASK, "4")

    died, scored = within(use, limit_s=2.0, max_retries=0)
    assert died.fault is Fault.INFRASTRUCTURE and scored == Outcome.of(Score(1.0))
    assert diaries(tmp_path) == ["made started", "made started stopped"]


@pytest.mark.parametrize("name", ["exakt", f"{__name__}:Impossible", f"{__name__}:missing"])
def test_a_reward_that_cannot_be_made_is_no_matter_of_one_attempt(name: str) -> None:
    with pytest.raises(ConfigError, match=r"exact|not today|missing"):
        within(lambda pool: pool.score(Call(name), TASK, "4"))
