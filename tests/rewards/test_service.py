"""Local rewards: one instance per reward and options, started once and stopped at the end."""

import asyncio

from roll.rewards.result import RewardResult
from roll.rewards.service import LocalRewards
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

    def score(self, task: Task, response: str) -> float:
        return len(self.name)


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
