"""Every verifier that reads a reply as text, against thousands of replies made to break it."""

import itertools
import time

from benchmarks.strings import CASES, replies, slowest_s
from roll.registry import REWARDS

NUM_REPLIES = 5_000
LIMIT_S = 20.0
SLOW_S = 3.0

NOT_TEXT = {"code", "judge", "model", "remote", "reasoning_gym", "test_cases", "weighted"}
"""Rewards that need more than a task and a reply: a sandbox, another model, a service, a package, other rewards."""


def test_every_reward_is_tried_here_or_needs_more_than_a_reply():
    assert set(REWARDS.targets) <= CASES.keys() | NOT_TEXT


def test_no_reply_crashes_or_hangs_a_verifier():
    texts = list(itertools.islice(replies(), NUM_REPLIES))
    start = time.process_time()
    slow = {name: took for name in CASES if name in REWARDS.targets if (took := slowest_s(name, texts)) > SLOW_S}
    assert slow == {}
    assert time.process_time() - start < LIMIT_S
