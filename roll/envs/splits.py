"""Train and held-out splits of generated worlds, decided by a hash of the world, not of its seed."""

from __future__ import annotations

import hashlib
from typing import Literal

from roll.errors import UnknownName

Split = Literal["all", "train", "held_out"]
SPLITS = ("all", "train", "held_out")


def in_split(world: str, split: str) -> bool:
    """Whether a world, given as text, belongs to the split; a quarter of all worlds is held out."""
    if split not in SPLITS:
        raise UnknownName("split", split, SPLITS)
    held_out = hashlib.blake2b(world.encode(), digest_size=8).digest()[0] < 64
    return split == "all" or held_out == (split == "held_out")
