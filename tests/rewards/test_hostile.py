"""Every verifier that reads a response as text, against thousands of responses made to break it."""

import itertools
import time

import pytest

from benchmarks.strings import CASES, responses, slowest_s
from roll.registry import REWARDS

pytestmark = pytest.mark.slow

NUM_REPLIES = 5_000
LIMIT_S = 20.0
SLOW_S = 3.0

NOT_TEXT = {"code", "judge", "model", "remote", "reasoning_gym", "test_cases", "weighted"}
"""Rewards that need more than a task and a response: a sandbox, another model, a service, a package, other rewards."""


def test_every_reward_is_tried_here_or_needs_more_than_a_response():
    assert set(REWARDS.targets) <= CASES.keys() | NOT_TEXT


def test_no_response_crashes_or_hangs_a_verifier():
    texts = list(itertools.islice(responses(), NUM_REPLIES))
    start = time.process_time()
    slow = {name: took for name in CASES if name in REWARDS.targets if (took := slowest_s(name, texts)) > SLOW_S}
    assert slow == {}
    assert time.process_time() - start < LIMIT_S
