"""The knobs of how weights get to the generators."""

from __future__ import annotations

from typing import Literal

from roll.config.section import Section


class Publication(Section):
    """How weights get to the generators, and how it is proved that they did."""

    transport: Literal["disk", "gloo", "ipc", "nccl"] = "disk"
    """Between processes: through files in the run's directory, broadcast over the network, through memory of the one
    GPU that all of them use, or broadcast between GPUs. Inline needs none of them."""
    canary: bool = True
    """Compare logprobs of a fixed text at every version, besides the digest; once where both share a module."""
