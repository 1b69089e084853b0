"""Experts that a generator reports with a response: they belong to its last passes, also after an interruption."""

import asyncio

import numpy as np
import pytest

from roll.engines.base import Request
from roll.serving.dispatch import Sampled
from roll.types import Finish
from tests.engines.models import request
from tests.serving.test_router import Watched, routing, until

LAYERS, CHOSEN = 2, 3


def passes(num: int, first: int = 0) -> np.ndarray:
    """Experts that name their position."""
    return np.broadcast_to(np.arange(first, first + num, dtype=np.int16)[:, None, None], (num, LAYERS, CHOSEN))


class Routed(Watched):
    """Reports the experts of all passes with the last output of a request."""

    def _end(self, request: Request, ids: list[int], finish: Finish) -> None:
        super()._end(request, ids, finish)
        if finish is not Finish.ABORT:
            self._outputs[-1].experts = passes(len(request.ids) + len(ids) - 1)


def test_a_response_has_the_experts_of_all_passes_also_after_an_interruption() -> None:
    async def run() -> tuple[Sampled, Sampled]:
        engine = Routed()
        async with routing(engine, version=1) as router:
            whole = await router.sample(request("a", [1, 2, 3], 5))
            asked = asyncio.create_task(router.sample(request("b", [1, 2, 3], 30)))
            await until(lambda: engine.num_sampled("b") > 3)
            await router.hold()
            await router.release(2)
            return whole, await asked

    whole, resumed = asyncio.run(run())
    assert whole.experts is not None and np.array_equal(whole.experts, passes(7))
    assert set(resumed.versions.tolist()) == {1, 2}
    assert resumed.experts is not None and np.array_equal(resumed.experts, passes(32))


def test_a_response_that_a_callback_ends_has_the_experts_of_its_tokens() -> None:
    async def run() -> Sampled:
        async with routing(Routed()) as router:
            return await router.sample(request("a", [1, 2, 3], 5), on_output=lambda output: 2)

    found = asyncio.run(run())
    assert len(found.ids) == 2 and found.experts is not None and np.array_equal(found.experts, passes(4))


@pytest.mark.parametrize(("observed", "expected"), [(3, [-1, 0, 1, 2, 3, 4, 5]), (1, [1, 2, 3, 4, 5])])
def test_a_turn_has_the_experts_of_the_pass_before_each_of_its_tokens(observed: int, expected: list[int]) -> None:
    """The first token of a sequence has no pass before it; a later turn takes only its own."""
    sampled = Sampled(ids=np.arange(4, dtype=np.int32), experts=passes(6))
    found = sampled.turn_experts(observed)
    assert found is not None and found.dtype == np.int16
    assert found[:, 1, 2].tolist() == expected
    again = Sampled(ids=sampled.ids, experts=found).turn_experts(observed)
    assert again is not None and np.array_equal(again, found)
    assert Sampled(ids=sampled.ids).turn_experts(observed) is None
