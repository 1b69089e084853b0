"""How the process holds memory: said through its environment, before torch is imported."""

from __future__ import annotations

import os

_SETTINGS = {"MIMALLOC_PURGE_DELAY": "10000"}  # ms


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
