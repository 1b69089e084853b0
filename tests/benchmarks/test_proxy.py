"""The benchmark of the proxy, in small: its clients talk to it, and what they count is what it answered."""

import asyncio

from benchmarks.proxy import measured


def test_clients_in_another_process_hold_conversations_and_count_their_answers() -> None:
    paced, full = asyncio.run(measured([(40.0, 0.5), (0.0, 0.5)], sessions=4))
    assert 20 <= paced["requests"] <= 24, "four clients with ten requests a second each, give or take the last"
    assert full["requests"] > 4 and 0 < full["median_ms"] <= full["p99_ms"]
