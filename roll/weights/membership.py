"""Membership in the group of processes that transfer weights; it lasts as long as no version is left out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import contextmanager

from roll.weights.buckets import blame_transfer


class Membership(ABC):
    """One end of a channel whose members are connected.

    After a gap in the versions, and when they meet elsewhere, all members form a new group, in which a replacement may
    have the place of a member that died. A member whose transfer fails leaves the group, so that the others fail at
    once instead of after a timeout.
    """

    _last: int | None = None
    """The most recent version; None outside of a group."""

    def _moved(self) -> bool:
        """Whether the members meet elsewhere than at the last transfer."""
        return False

    @abstractmethod
    def _join(self, version: int) -> None:
        """Form a group with the members that are called with the same version."""

    @abstractmethod
    def _leave(self) -> None:
        """Close the connections to the other members, if there are any."""

    @contextmanager
    def _transfer(self, version: int) -> Generator[None]:
        """A transfer in the current group or a new one; versions are equal everywhere, so all members agree on it."""
        try:
            with blame_transfer(version):
                last, self._last = self._last, version
                if self._moved() or last is None or version != last + 1:
                    self._leave()
                    self._join(version)
                yield
        except BaseException:
            if self._last == version:  # a reader of an earlier version may be closed late
                self._last = None
                self._leave()
            raise
