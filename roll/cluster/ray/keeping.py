"""Workers that outlive their controller for a while, so that the next one takes them up. Does not import Ray."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

_POLL_S = 1.0
_RENEWALS = 10
"""Renewals of a lease in the time for which it is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptWorkers:
    """What the controllers of one supervisor share about the workers that they take up from each other."""

    namespace: str
    """Ray's namespace of these workers."""
    holders: int
    """Descriptor that reads the end of a pipe: the supervisor and its controllers hold the other end."""
    take_up: bool = False
    """Whether the state of living workers can be made right; otherwise all of them are started anew."""
    seconds: float = 0.0
    """How long a worker stays without a controller."""
    roles: tuple[str, ...] = ()
    """Roles that are kept; workers of others end with the controller."""
    together: tuple[str, ...] = ()
    """Roles of which all workers are taken up or none."""
    identity: str = ""
    """Workers are taken up if they were built with the same one."""


class Lease:
    """Ends this process when it has not been renewed for some time."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._polls = seconds, 0
        threading.Thread(target=self._watch, name="lease", daemon=True).start()

    def renew(self) -> None:
        self._polls = 0

    def _watch(self) -> None:
        while self._polls * _POLL_S < self._seconds:  # not the clock: nothing counts while this process is stopped
            threading.Event().wait(_POLL_S)
            self._polls += 1
        sys.stderr.write(f"no controller for {self._seconds:g} s (ray.keep_workers_s): process {os.getpid()} ends\n")
        sys.stderr.flush()
        os._exit(1)


class LeaseRenewal:
    """Calls `renew` regularly in a thread, also while the event loop is busy."""

    def __init__(self, renew: Callable[[], None]) -> None:
        self._renew, self._stopped = renew, threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, seconds: float) -> None:
        """Renew leases of so many seconds until `stop`; 0: there are none."""
        if not seconds:
            return
        self._thread = threading.Thread(target=self._run, args=(seconds / _RENEWALS,), name="leases", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, every_s: float) -> None:
        while not self._stopped.wait(every_s):
            self._renew()
