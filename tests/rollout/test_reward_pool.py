"""Rewards in processes: same scores as a plain call; a hang or a death costs one trajectory."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from roll.cluster.process import ProcessCluster
from roll.errors import ConfigError, RewardFailed
from roll.journal.events import RunStarted
from roll.journal.store import Journal
from roll.report.ledger import read_ledger
from roll.rewards.base import LocalRewards, RewardService
from roll.rewards.result import RewardFault, RewardResult, RewardStatus
from roll.rollout.reward_pool import RewardPool
from roll.sandbox.level import unavailable_reason
from roll.types import Score, Spec, Task

pytestmark = pytest.mark.slow

TASK = Task(id="t", domain="d", answer="4")


def right(task: Task, response: str) -> Score:
    return Score(float(response == task.answer), {"length": float(len(response))})


def endless(task: Task, response: str) -> float:
    while True:
        time.sleep(0.01)


def deadly(task: Task, response: str, *, witness: str, times: int = 1000) -> float:
    """Kills its process on the first calls."""
    called = len(os.listdir(witness))
    Path(witness, str(called)).touch()
    if called < times:
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


def strange(task: Task, response: str) -> Any:
    return {"nan": float("nan"), "text": "good", "huge": 1e30}[response]


def flaky(task: Task, response: str, *, witness: str, times: int) -> float:
    """A service that fails on the first calls."""
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

    def score(self, task: Task, response: str) -> float:
        if response == "die":
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
        workers = ProcessCluster[LocalRewards](
            Spec("roll.rewards.base:LocalRewards"),
            2,
            name="reward worker",
            timeout_s=limit_s,
            timeouts={"start_reward": 20.0},
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
    found = within(lambda pool: pool.score(Spec(f"{__name__}:right"), TASK, "4"))
    assert found == RewardResult.from_score(Score(1.0, {"length": 1.0}))


def test_programs_with_limits_of_their_own_are_given_the_time_these_add_up_to() -> None:
    """Twelve honest cases take longer than the limit of a score."""
    if reason := unavailable_reason():
        pytest.skip(reason)
    cases = [{"stdin": str(number), "stdout": str(number + 1)} for number in range(12)]
    task = Task(id="slow", domain="code", metadata={"cases": cases})
    response = "import time\nx = int(input())\ntime.sleep(0.3)\nprint(x + 1)"
    result = within(lambda pool: pool.score(Spec("code"), task, response), limit_s=0.5)
    assert result == RewardResult.from_score(Score(1.0, {"passed": 1.0, "checks": 12.0}))


def test_a_hanging_reward_is_killed_and_the_next_one_is_scored() -> None:
    async def use(pool: RewardPool) -> RewardResult:
        began = time.monotonic()
        hanging = [pool.score(Spec(f"{__name__}:endless"), TASK, "4") for _ in range(4)]
        found = await asyncio.gather(*hanging)
        assert all(each.status is RewardStatus.TIMED_OUT and "timed out after 3 s" in each.reason for each in found)
        assert time.monotonic() - began < 60
        return await pool.score(Spec(f"{__name__}:right"), TASK, "5")

    assert within(use, limit_s=3.0) == RewardResult.from_score(Score(0.0, {"length": 1.0}))


def test_a_process_that_dies_is_a_failure_of_ours_and_tried_again(tmp_path: Path) -> None:
    twice = Spec(f"{__name__}:deadly", {"witness": str(tmp_path), "times": 2})
    assert within(lambda pool: pool.score(twice, TASK, "4")) == RewardResult.from_score(Score(1.0))
    assert len(list(tmp_path.iterdir())) == 3, "it really died twice"


def test_a_process_that_always_dies_ends_in_a_failure_and_not_in_a_score(tmp_path: Path) -> None:
    always = Spec(f"{__name__}:deadly", {"witness": str(tmp_path)})
    found = within(lambda pool: pool.score(always, TASK, "4"))
    assert found.status is RewardStatus.FAILED and found.fault is RewardFault.INFRASTRUCTURE
    assert "was killed by SIGKILL during score" in found.reason and "out-of-memory" in found.reason
    assert len(list(tmp_path.iterdir())) == 3, "it was asked for as often as it may"


def test_a_strange_answer_is_a_failure_with_its_reason() -> None:
    said = {"nan": "not finite", "text": "not a number (got 'good')", "huge": "(got 1e+30)", "none": "KeyError: 'none'"}

    async def use(pool: RewardPool) -> list[RewardResult]:
        return [await pool.score(Spec(f"{__name__}:strange"), TASK, response) for response in said]

    for outcome, message in zip(within(use), said.values(), strict=True):
        assert outcome.fault is RewardFault.REWARD and message in outcome.reason
    assert f"({__file__}:" in outcome.reason, "the line that raised is told from another process too"


@pytest.mark.parametrize("inline", [True, False])
def test_a_failing_service_is_retried(inline: bool, tmp_path: Path) -> None:
    twice = Spec(f"{__name__}:flaky", {"witness": str(tmp_path), "times": 2})
    more = Spec(f"{__name__}:flaky", {"witness": str(tmp_path), "times": 6})

    async def use(scorer: RewardService) -> tuple[RewardResult, RewardResult]:
        return await scorer.score(twice, TASK, "4"), await scorer.score(more, TASK, "4")

    found = asyncio.run(use(LocalRewards(max_retries=2))) if inline else within(use)
    assert found[0] == RewardResult.from_score(Score(1.0))
    assert found[1].fault is RewardFault.INFRASTRUCTURE and "service: no answer" in found[1].reason
    assert len(list(tmp_path.iterdir())) == 6


def test_the_journal_records_the_activity_of_each_worker(tmp_path: Path) -> None:
    reward = Spec(f"{__name__}:Diarist", {"folder": str(tmp_path), "start_s": 0.2})

    async def use(pool: RewardPool) -> None:
        with closing(Journal(tmp_path / "journal.db")) as journal:
            pool.record_activity(journal)
            journal.record(RunStarted(config_digest=""))
            await asyncio.sleep(0.1)
            await asyncio.gather(*(pool.score(reward, TASK, "4") for _ in range(6)))
            await pool.score(reward, TASK, "die")  # whoever is killed is at work again afterwards
            await asyncio.sleep(0.1)

    within(use, max_retries=0)
    found = read_ledger(tmp_path).time
    assert [sheet.worker for sheet in found.workers] == ["reward-0", "reward-1"]
    for sheet in found.workers:
        assert set(sheet.activity_s) == {"score", "start", "idle: responses"}
        assert abs(sheet.unaccounted_s) < 0.02 * sheet.wall_s
        assert (
            sheet.activity_s["score"] > 0.04
            and sheet.activity_s["start"] > 0.2
            and sheet.activity_s["idle: responses"] > 0.15
        )
    assert sum(sheet.activity_s["score"] for sheet in found.workers) > 0.3, "six of 0.05 s, whoever did them"


def diaries(folder: Path) -> list[str]:
    return sorted(path.read_text().strip() for path in folder.iterdir())


def test_a_class_lives_once_in_every_process_and_ends_with_the_pool(tmp_path: Path) -> None:
    reward = Spec(f"{__name__}:Diarist", {"folder": str(tmp_path)})

    async def use(pool: RewardPool) -> list[RewardResult]:
        return list(await asyncio.gather(*(pool.score(reward, TASK, "4") for _ in range(8))))

    assert within(use) == [RewardResult.from_score(Score(1.0))] * 8
    assert diaries(tmp_path) == ["made started stopped"] * 2


def test_a_class_lives_once_where_there_are_no_processes(tmp_path: Path) -> None:
    reward = Spec(f"{__name__}:Diarist", {"folder": str(tmp_path)})

    async def use() -> list[RewardResult]:
        scorer = LocalRewards(max_retries=0)
        await scorer.start()
        found = await asyncio.gather(*(scorer.score(reward, TASK, "4") for _ in range(3)))
        await scorer.stop()
        return list(found)

    assert asyncio.run(use()) == [RewardResult.from_score(Score(1.0))] * 3
    assert diaries(tmp_path) == ["made started stopped"]


def test_a_start_may_last_longer_than_a_score_and_is_made_again_in_a_fresh_process(tmp_path: Path) -> None:
    reward = Spec(f"{__name__}:Diarist", {"folder": str(tmp_path), "start_s": 2.5})

    async def use(pool: RewardPool) -> tuple[RewardResult, RewardResult]:
        return await pool.score(reward, TASK, "die"), await pool.score(reward, TASK, "4")

    died, scored = within(use, limit_s=2.0, max_retries=0)
    assert died.fault is RewardFault.INFRASTRUCTURE and scored == RewardResult.from_score(Score(1.0))
    assert diaries(tmp_path) == ["made started", "made started stopped"]


@pytest.mark.parametrize("name", ["exakt", f"{__name__}:Impossible", f"{__name__}:missing"])
def test_a_reward_that_cannot_be_constructed_ends_the_run(name: str) -> None:
    with pytest.raises(ConfigError, match=r"exact|not today|missing"):
        within(lambda pool: pool.score(Spec(name), TASK, "4"))
