"""What attempts are waiting for while no generator has them, so that an idle generator can say why."""

from __future__ import annotations

from collections.abc import Callable


class Waits:
    """Attempts by what they wait for: environments, or else rewards."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._by_name = {name: Wait(changed) for name in ("environments", "rewards")}

    def on(self, name: str) -> Wait:
        """One attempt waits for this inside a `with` block of it."""
        return self._by_name[name]

    def count(self, name: str, change: int) -> None:
        """So many attempts more, or fewer, wait for this."""
        self._by_name[name].count(change)

    def reason(self) -> str:
        """What keeps requests from coming: what attempts wait for, or else the slots that training has to free."""
        return next(iter(self.counts()), "slots")

    def counts(self) -> dict[str, int]:
        """How many attempts wait for what."""
        return {name: wait.number for name, wait in self._by_name.items() if wait.number}


class Wait:
    """How many attempts wait for one thing. It only counts, so that one serves the blocks of all of them."""

    __slots__ = ("_changed", "number")

    def __init__(self, changed: Callable[[], None]) -> None:
        self.number, self._changed = 0, changed

    def count(self, change: int) -> None:
        """So many attempts more, or fewer."""
        self.number = now = self.number + change
        if not now or now == change:
            self._changed()

    def __enter__(self) -> None:
        self.count(1)

    def __exit__(self, *_: object) -> None:
        self.count(-1)
