"""Counts of tool calls and faults in one attempt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from roll.data.tools import CallFault
from roll.tools.base import ToolFault

FAULTS = (*CallFault, *ToolFault)
"""Faults of the response, then faults of the tool."""


class ToolUsage:
    """Tool calls and faults of one attempt."""

    def __init__(self) -> None:
        self._num_calls = 0
        self._faults: Counter[str] = Counter()

    def count(self, num_calls: int, faults: Iterable[CallFault | ToolFault]) -> None:
        """Count one response: its parsed calls, and every fault of parsing or running them."""
        self._num_calls += num_calls
        self._faults.update(str(fault) for fault in faults)

    def metrics(self) -> dict[str, float]:
        """Metrics as an environment reports them: totals of the attempt, including zeros."""
        by_kind = {f"tools/faults/{fault}": float(self._faults[str(fault)]) for fault in FAULTS}
        return {"tools/calls": float(self._num_calls), "tools/faults": float(self._faults.total()), **by_kind}
