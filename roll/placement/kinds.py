"""What kinds of devices can do, by their makers' data sheets: dense bf16 products, memory and its speed.

A slot of a CPU stands for one core with vector units, fp32; its memory is a part of the machine's.
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
    """Floating point operations a second."""
    bytes_per_s: float
    """Of its memory."""
    memory: int
    """What CUDA says there is, a little under what is printed on the box."""


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
    """The kind that a driver or a person calls `name`, such as `NVIDIA H100 80GB HBM3`; None where it is not listed."""
    words = name.upper().replace("-", " ").split()
    return next((kind for listed, kind in KINDS.items() if listed.upper() in words), None)


def unknown_kind(name: str) -> str:
    """The tail of an error about a kind that is not listed."""
    return did_you_mean(name, KINDS)
