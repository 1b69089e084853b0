"""Local rewards: one instance per reward and options, started once and stopped at the end."""

import asyncio

import pytest

from roll.rewards.base import LocalRewards, stop_rewards
from roll.rewards.result import RewardResult
from roll.types import Score, Spec, Task

TASK = Task(id="t", domain="d")
DIARY: list[str] = []


class Named:
    def __init__(self, *, name: str) -> None:
        self.name = name
        DIARY.append(f"{name} made")

    async def start(self) -> None:
        await asyncio.sleep(0)
        DIARY.append(f"{self.name} started")

    def stop(self) -> None:
        DIARY.append(f"{self.name} stopped")
        if self.name == "stuck":
            raise OSError("the door is stuck")

    def score(self, task: Task, response: str) -> float:
        return len(self.name)


class First(Named):
    def __init__(self) -> None:
        super().__init__(name="a")


class Stuck(Named):
    def __init__(self) -> None:
        super().__init__(name="stuck")


def called(name: str) -> Spec:
    return Spec(f"{__name__}:Named", {"name": name})


def test_a_reward_has_one_instance_for_each_set_of_options_and_all_are_stopped():
    DIARY.clear()

    async def use() -> list[RewardResult | None]:
        worker = LocalRewards(3)
        found = [await worker.score_if_started(called("a"), TASK, "")]
        await asyncio.gather(
            worker.start_reward(called("a")), worker.start_reward(called("a")), worker.start_reward(called("bb"))
        )
        found += [await worker.score_if_started(called(name), TASK, "") for name in ("a", "bb", "a")]
        await worker.stop()
        return [*found, await worker.score_if_started(called("a"), TASK, "")]

    one, two = RewardResult.from_score(Score(1.0)), RewardResult.from_score(Score(2.0))
    assert asyncio.run(use()) == [None, one, two, one, None]
    assert DIARY == ["a made", "a started", "bb made", "bb started", "bb stopped", "a stopped"]


@pytest.mark.parametrize("weighted", [False, True])
def test_a_stop_that_fails_is_a_notice_and_the_others_are_stopped(weighted: bool):
    DIARY.clear()
    notices: list[str] = []
    rewards = [called("a"), called("stuck")]
    if weighted:
        parts = [{"kind": f"{__name__}:{kind}", "name": kind} for kind in ("First", "Stuck")]
        rewards = [Spec("weighted", {"rewards": parts})]

    async def use() -> None:
        worker = LocalRewards()
        for reward in rewards:
            assert await worker.start_reward(reward) is None
        await stop_rewards(worker, notices.append)

    asyncio.run(use())
    assert DIARY[-2:] == ["stuck stopped", "a stopped"]
    kind = "Stuck" if weighted else "Named"
    (notice,) = notices
    assert notice.startswith(f"reward '{__name__}:{kind}': stop failed: OSError: the door is stuck ({__file__}:")
    assert notice.endswith("); its scores are complete")
