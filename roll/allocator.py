"""Memory settings of the process: environment variables, set before torch is imported, and garbage collection."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from contextlib import contextmanager

_SETTINGS = {"MIMALLOC_PURGE_DELAY": "10000"}  # ms
_GC_THRESHOLD = 100_000
"""New objects between two collections: more than a thousand attempts in flight have, at about 60 each."""


def keep_freed_memory() -> None:
    """Let mimalloc, where torch uses it, keep freed memory for the next step.

    By default it returns memory within milliseconds and faults it in again page by page, which costs a tenth of an
    update on a CPU. Variables set by the user are not changed.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)


def foreign_environment() -> dict[str, str]:
    """The environment for other programs, without the settings of `keep_freed_memory`."""
    return {name: value for name, value in os.environ.items() if _SETTINGS.get(name) != value}


@contextmanager
def freeze_startup_objects() -> Generator[None]:
    """Excludes existing objects from garbage collection inside this block, and collects new ones less often.

    torch and transformers create hundreds of thousands of permanent objects; scanning them repeatedly takes a tenth
    of a busy controller's time.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
