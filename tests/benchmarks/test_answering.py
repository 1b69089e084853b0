import asyncio

from benchmarks.answering import Answering
from benchmarks.controller import sampled
from roll.data.collate import collate
from roll.types import Finish
from tests.engines.models import request


def test_every_reply_is_there_at_once_and_as_long_as_was_asked_for() -> None:
    async def run() -> None:
        engine = Answering(0, num_tokens=10)
        assert await engine.events(0.01) == []
        await engine.submit([request("a", [1], 10), request("b", [1], 4)])
        found = await engine.events(5.0)
        assert [(output.id, len(output.ids), len(output.logprobs)) for output in found] == [("a", 10, 10), ("b", 4, 4)]

    asyncio.run(run())


def test_while_paused_nothing_is_answered_and_what_is_aborted_comes_back_empty() -> None:
    async def run() -> None:
        engine = Answering(0, num_tokens=10)
        await engine.pause()
        await engine.submit([request("a", [1], 10), request("b", [1], 10)])
        await engine.abort(["a"])
        (gone,) = await engine.events(5.0)
        assert (gone.id, gone.finish, len(gone.ids)) == ("a", Finish.ABORT, 0)
        await engine.resume(3)
        (found,) = await engine.events(5.0)
        assert (found.id, found.version) == ("b", 3)

    asyncio.run(run())


def test_the_groups_of_the_controllers_step_are_a_batch() -> None:
    batch = collate(sampled(3, 2, prompt=4, reply=5))
    assert batch.lengths == (9,) * 6 and int(batch.trained.sum()) == 30 and batch.group.tolist() == [0, 0, 1, 1, 2, 2]
