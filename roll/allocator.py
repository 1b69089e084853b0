"""How the process holds memory: said through its environment, before torch is imported, and to Python's collector."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from contextlib import contextmanager

_SETTINGS = {"MIMALLOC_PURGE_DELAY": "10000"}  # ms
_MANY = 100_000
"""New objects between two looks at the youngest: more than those of a thousand attempts under way, each some sixty."""


def keep_freed_memory() -> None:
    """Where torch allocates by mimalloc, let what one step has freed serve the next one.

    By default it is given back within milliseconds and faulted in again, page by page, which costs an update on a CPU
    a tenth of its time. Whatever the user has set stays.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)


def environment_of_others() -> dict[str, str]:
    """The environment for a program that is not ours: without what `keep_freed_memory` has put there."""
    return {name: value for name, value in os.environ.items() if _SETTINGS.get(name) != value}


@contextmanager
def startup_set_aside() -> Generator[None]:
    """In this block the collector of cycles leaves alone what was there before it, and looks at the rest more rarely.

    Hundreds of thousands of objects come with torch and transformers and stay; to look through them again and again
    takes a tenth of a busy controller's time.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_MANY, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
