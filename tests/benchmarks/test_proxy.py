"""The benchmark of the proxy at a small size: its clients hold conversations and count the responses."""

import asyncio

import pytest

from benchmarks.proxy import measure

pytestmark = pytest.mark.slow


def test_clients_in_another_process_hold_conversations_and_count_the_responses() -> None:
    paced, full = asyncio.run(measure([(40.0, 0.5), (0.0, 0.5)], sessions=4))
    assert 20 <= paced["requests"] <= 24, "four clients send ten requests per second each for half a second"
    assert full["requests"] > 4 and 0 < full["median_ms"] <= full["p99_ms"]
