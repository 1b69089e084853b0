"""Generation without a queue: all groups are assigned at once, and siblings enter and leave a device together."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def batch_at_once(groups: Sequence[Sequence[float]], *, devices: int, lanes: int) -> float:
    """Seconds until the last group is done; a group is the list of its siblings' durations.

    Groups are assigned round robin before the start. A device decodes `lanes` groups at a time; the next one enters
    when the slowest sibling of one of them has ended.
    """
    return max(_device([max(group) for group in groups[first::devices]], lanes) for first in range(devices))


def _device(durations: Sequence[float], lanes: int) -> float:
    free = [0.0] * lanes
    for duration in durations:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)
