"""One worker: an instance of each reward with its options, started once and stopped at the end."""

import asyncio

from roll.rewards.outcome import Outcome
from roll.rewards.worker import RewardWorker, Unready
from roll.types import Call, Score, Task

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

    def score(self, task: Task, reply: str) -> float:
        return len(self.name)


def called(name: str) -> Call:
    return Call(f"{__name__}:Named", {"name": name})


def test_a_reward_has_one_instance_for_each_set_of_options_and_all_are_stopped():
    DIARY.clear()

    async def use() -> list[Outcome | Unready]:
        worker = RewardWorker(3)
        found = [await worker.score(called("a"), TASK, "")]
        await asyncio.gather(worker.start(called("a")), worker.start(called("a")), worker.start(called("bb")))
        found += [await worker.score(called(name), TASK, "") for name in ("a", "bb", "a")]
        await worker.stop()
        return [*found, await worker.score(called("a"), TASK, "")]

    one, two = Outcome.of(Score(1.0)), Outcome.of(Score(2.0))
    assert asyncio.run(use()) == [Unready(3), one, two, one, Unready(3)]
    assert DIARY == ["a made", "a started", "bb made", "bb started", "bb stopped", "a stopped"]
