"""How one worker of a role is spread over devices."""

from __future__ import annotations

from pydantic import Field

from roll.config.section import Section


class Parallel(Section):
    """Devices that work on one model together: `tp` times `cp` of them, all on one node."""

    tp: int = Field(default=1, gt=0)
    """Devices that share every layer; attention heads and those of keys and values must divide by it."""
    cp: int = Field(default=1, gt=0)
    """Devices that share every sequence; only trainers of backend fsdp2 have it."""

    @property
    def size(self) -> int:
        """Devices of one group."""
        return self.tp * self.cp
