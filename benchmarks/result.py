"""The result record of every benchmark, and its JSON form."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One number of ours and the number it is compared with: a `peer` measured in the same run, or a `bound`."""

    name: str
    unit: str
    higher_is_better: bool
    ours: float | None = None
    peer: float | None = None
    bound: float | None = None
    details: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further measurements, such as the value of each repetition."""
    skipped: str = ""
    """Reason why there are no numbers; empty if there are."""

    def __post_init__(self) -> None:
        assert (self.peer is None) or (self.bound is None), "a result has a peer or a bound, not both"
        assert self.skipped or (self.ours is not None and self.other), "a result has numbers, or a reason for none"

    @property
    def other(self) -> float | None:
        """The peer or the bound."""
        return self.bound if self.peer is None else self.peer

    @property
    def ratio(self) -> float | None:
        """`ours` divided by the peer or the bound, also where lower is better."""
        return self.ours / self.other if self.ours is not None and self.other else None

    def to_json(self) -> str:
        """The result as one line of JSON."""
        against = "peer" if self.bound is None else "bound"
        entries: dict[str, Any] = {
            "name": self.name,
            "ours": _round(self.ours),
            against: _round(self.other),
            "ratio": _round(self.ratio),
            "unit": self.unit,
            "higher_is_better": self.higher_is_better,
        }
        if self.skipped:
            entries["skipped"] = self.skipped
        if self.details:
            entries["details"] = self.details
        return json.dumps(entries)


def _round(value: float | None) -> float | None:
    """Rounded to four significant digits; more would be noise."""
    return None if value is None else float(f"{value:.4g}")
