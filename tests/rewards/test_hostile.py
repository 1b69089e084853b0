"""Every verifier that reads a response as text, against thousands of responses made to break it."""

import itertools

import pytest

from benchmarks.strings import CASES, responses, slowest_s
from roll.registry import REWARDS

pytestmark = pytest.mark.slow

SLOW_S = 10.0

NOT_TEXT = {"code", "judge", "model", "remote", "reasoning_gym", "test_cases", "weighted"}
"""Rewards that need more than a task and a response: a sandbox, another model, a service, a package, other rewards."""


def test_every_reward_is_tried_here_or_needs_more_than_a_response():
    assert set(REWARDS.targets) <= CASES.keys() | NOT_TEXT


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize("num_responses", [500, 5_000])
def test_no_response_crashes_or_hangs_a_verifier(num_responses: int):
    texts = list(itertools.islice(responses(), num_responses))
    slow = {name: took for name in CASES if name in REWARDS.targets if (took := slowest_s(name, texts)) > SLOW_S}
    assert slow == {}
