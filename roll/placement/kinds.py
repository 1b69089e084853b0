"""Speed and memory of device kinds, from data sheets: dense bf16 FLOP/s, memory size and bandwidth.

A CPU slot is one core with vector units, in fp32; its memory is a part of the machine's.
"""

from __future__ import annotations

from dataclasses import dataclass

from roll.errors import did_you_mean
from roll.placement.records import CPU

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of device."""

    name: str
    flops: float
    """Floating point operations per second."""
    bytes_per_s: float
    """Memory bandwidth."""
    memory: int
    """Bytes that CUDA reports, slightly less than the nominal size."""


_LISTED = (
    ("B200", 2250e12, 8.0e12, 178),
    ("H200", 989e12, 4.8e12, 139),
    ("H100", 989e12, 3.35e12, 79),
    ("H800", 989e12, 3.35e12, 79),
    ("H20", 148e12, 4.0e12, 95),
    ("A100", 312e12, 2.0e12, 79),
    ("A800", 312e12, 2.0e12, 79),
    ("L40S", 362e12, 0.86e12, 44),
    ("L4", 121e12, 0.3e12, 22),
    ("A10", 125e12, 0.6e12, 22),
    ("4090", 165e12, 1.0e12, 23),
    ("V100", 125e12, 0.9e12, 31),
    ("T4", 65e12, 0.3e12, 15),
)
KINDS = {name: Kind(name=name, flops=flops, bytes_per_s=speed, memory=gib * GIB) for name, flops, speed, gib in _LISTED}
KINDS[CPU] = Kind(name=CPU, flops=5e10, bytes_per_s=1e10, memory=4 * GIB)


def kind_named(name: str) -> Kind | None:
    """The kind of a device name such as `H100` or `NVIDIA H100 80GB HBM3`; None if it is not listed."""
    words = name.upper().replace("-", " ").split()
    return next((kind for listed, kind in KINDS.items() if listed.upper() in words), None)


def unknown_kind(name: str) -> str:
    """End of an error about a kind that is not listed."""
    return did_you_mean(name, KINDS)
