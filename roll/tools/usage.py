"""How often tools were called in one attempt, and what went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from roll.data.tools import CallFault
from roll.tools.base import ToolFault

FAULTS = (*CallFault, *ToolFault)
"""Those of the reply, then those of the tool."""


class Usage:
    """Counts of one attempt."""

    def __init__(self) -> None:
        self._num_calls = 0
        self._faults: Counter[str] = Counter()

    def count(self, num_calls: int, faults: Iterable[CallFault | ToolFault]) -> None:
        """One more reply: the calls that could be read, and every fault of reading or running them."""
        self._num_calls += num_calls
        self._faults.update(str(fault) for fault in faults)

    def metrics(self) -> dict[str, float]:
        """As an environment reports them: sums over the attempt, with a zero for what did not happen."""
        by_kind = {f"tools/faults/{fault}": float(self._faults[str(fault)]) for fault in FAULTS}
        return {"tools/calls": float(self._num_calls), "tools/faults": float(self._faults.total()), **by_kind}
