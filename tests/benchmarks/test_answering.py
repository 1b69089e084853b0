import asyncio

from benchmarks.answering import InstantGenerator
from benchmarks.controller import random_groups
from roll.data.collate import collate
from roll.types import Finish
from tests.engines.models import request


def test_every_response_is_immediate_and_has_the_requested_length() -> None:
    async def run() -> None:
        engine = InstantGenerator(0, num_tokens=10)
        assert await engine.events(0.01) == []
        await engine.submit([request("a", [1], 10), request("b", [1], 4)])
        outputs = await engine.events(5.0)
        assert [(output.id, len(output.ids), len(output.logprobs)) for output in outputs] == [
            ("a", 10, 10),
            ("b", 4, 4),
        ]

    asyncio.run(run())


def test_a_paused_generator_does_not_answer_and_an_aborted_request_ends_without_tokens() -> None:
    async def run() -> None:
        engine = InstantGenerator(0, num_tokens=10)
        await engine.pause()
        await engine.submit([request("a", [1], 10), request("b", [1], 10)])
        await engine.abort(["a"])
        (aborted,) = await engine.events(5.0)
        assert (aborted.id, aborted.finish, len(aborted.ids)) == ("a", Finish.ABORT, 0)
        await engine.resume(3)
        (output,) = await engine.events(5.0)
        assert (output.id, output.version) == ("b", 3)

    asyncio.run(run())


def test_the_groups_of_the_controllers_step_make_a_batch() -> None:
    batch = collate(random_groups(3, 2, prompt=4, response=5))
    assert batch.lengths == (9,) * 6 and int(batch.trained.sum()) == 30 and batch.group.tolist() == [0, 0, 1, 1, 2, 2]
