"""Which isolation there is on this machine, found out by trying; and the refusal to run untrusted code with less.

`sandbox: auto` means bubblewrap, or a `ConfigError` that says why it does not work here. The only way to run code
without it is to say so in words, `sandbox: "none: I trust this code"`; then there are limits and nothing else.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from roll.errors import ConfigError
from roll.sandbox import bubblewrap, plain
from roll.sandbox.base import Limits, Outcome, Program, Run, SandboxFailed

T = TypeVar("T")

TRUSTED = "none: I trust this code"
OPTIONS = ("auto", "bubblewrap", TRUSTED)
_MARK = b"it works"
_PATIENCE = Limits(wall_s=10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One way of running programs, and what it does not stop."""

    name: str
    run: Run
    lacks: tuple[str, ...] = ()


BUBBLEWRAP = Level(name="bubblewrap", run=bubblewrap.run)
PLAIN = Level(name="plain", run=plain.run, lacks=plain.LACKS)


def available() -> Level:
    """The best level that works here."""
    return PLAIN if why_not() else BUBBLEWRAP


@functools.cache
def why_not() -> str:
    """Why bubblewrap does not work here; empty if it does. Tried once in each process."""
    probe = Program(argv=("cat",), stdin=_MARK)
    try:
        outcome = wait_for(bubblewrap.run(probe, _PATIENCE))
    except SandboxFailed as error:
        return str(error)
    if outcome.stdout == _MARK and outcome.succeeded:
        return ""
    return f"sandbox: a trial ended with {outcome.ended} (stderr {outcome.stderr.decode(errors='replace').strip()!r})"


def choose(option: str) -> Level:
    """The level that an option asks for; refuses to go below bubblewrap unless it is told to in words."""
    if option == TRUSTED:
        return PLAIN
    if option not in OPTIONS:
        raise ConfigError(f"sandbox: no such option (got {option!r}); choose one of {', '.join(map(repr, OPTIONS))}")
    if reason := why_not():
        raise ConfigError(
            f"sandbox: untrusted code is not run without bubblewrap ({reason}); "
            f"run `apt-get install bubblewrap`, or write sandbox: {TRUSTED!r}"
        )
    return BUBBLEWRAP


def run(program: Program, limits: Limits, option: str = "auto") -> Outcome:
    """Like the chosen level's own `run`, for callers without a loop."""
    return wait_for(choose(option).run(program, limits))


def wait_for(work: Awaitable[T]) -> T:
    """The result of a coroutine, from a thread with a running loop or without one."""
    found: list[T] = []
    failed: list[BaseException] = []

    def body() -> None:
        try:
            found.append(asyncio.run(_awaited(work)))
        except Exception as error:  # noqa: BLE001 - handed over to the caller's thread
            failed.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


async def _awaited(work: Awaitable[T]) -> T:
    return await work
