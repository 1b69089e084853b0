"""What attempts are waiting for while no generator has them, so that an idle generator can say why."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager


class Waits:
    """Attempts by what they wait for: environments, or else rewards."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._counts = {"environments": 0, "rewards": 0}
        self._changed = changed

    def on(self, name: str) -> AbstractContextManager[None]:
        """One attempt waits for this inside the block."""
        return _Wait(self, name)

    def count(self, name: str, change: int) -> None:
        """So many attempts more, or fewer, wait for this."""
        self._counts[name] = now = self._counts[name] + change
        if not now or now == change:
            self._changed()

    def reason(self) -> str:
        """What keeps requests from coming: what attempts wait for, or else the slots that training has to free."""
        return next((name for name, count in self._counts.items() if count), "slots")

    def counts(self) -> dict[str, int]:
        """How many attempts wait for what."""
        return {name: count for name, count in self._counts.items() if count}


class _Wait(AbstractContextManager[None]):
    __slots__ = ("_name", "_waits")

    def __init__(self, waits: Waits, name: str) -> None:
        self._waits, self._name = waits, name

    def __enter__(self) -> None:
        self._waits.count(self._name, 1)

    def __exit__(self, *_: object) -> None:
        self._waits.count(self._name, -1)
