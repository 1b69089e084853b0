"""Which worlds are kept out of training: a hash of the world alone decides, whatever seed it was made from."""

from __future__ import annotations

import hashlib
from typing import Literal

from roll.errors import UnknownName

Split = Literal["all", "train", "held_out"]
SPLITS = ("all", "train", "held_out")


def belongs(world: str, split: str) -> bool:
    """Whether a world, given as text, is one of this split; a quarter of all worlds is held out."""
    if split not in SPLITS:
        raise UnknownName("split", split, SPLITS)
    held_out = hashlib.blake2b(world.encode(), digest_size=8).digest()[0] < 64
    return split == "all" or held_out == (split == "held_out")
