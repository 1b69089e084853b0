"""The section `weight_sync`: how new weights reach the generators."""

from __future__ import annotations

from typing import Literal

from roll.config.section import Section


class WeightSync(Section):
    """Transport of new weights from the trainer to the generators, and the proof that they arrived."""

    transport: Literal["disk", "gloo", "ipc", "nccl"] = "disk"
    """Between processes: files in the run's directory, broadcast over the network, shared memory of one GPU that all
    processes use, or broadcast between GPUs. `executor: inline` needs no transport."""
    canary: bool = True
    """Compare logprobs of a fixed text at every version, in addition to the digest; only once if trainer and generator
    share a module."""
