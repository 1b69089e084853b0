"""The isolation available on this machine, found by a trial run; untrusted code is refused without it.

`sandbox: auto` means bubblewrap, or a `ConfigError` with the reason why it does not work here. The only way to run code
without it is the explicit `sandbox: "none: I trust this code"`; then there are resource limits and nothing else.
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
from roll.sandbox.base import Program, ProgramResult, ResourceLimits, Run, SandboxFailed

T = TypeVar("T")

TRUSTED_CODE = "none: I trust this code"
OPTIONS = ("auto", "bubblewrap", TRUSTED_CODE)
_MARK = b"it works"
_TRIAL_LIMITS = ResourceLimits(wall_s=10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLevel:
    """One way of running programs, and the attacks it does not stop."""

    name: str
    run: Run
    lacks: tuple[str, ...] = ()


BUBBLEWRAP = SandboxLevel(name="bubblewrap", run=bubblewrap.run)
PLAIN = SandboxLevel(name="plain", run=plain.run, lacks=plain.LACKS)


def available() -> SandboxLevel:
    """The best level that works here."""
    return PLAIN if unavailable_reason() else BUBBLEWRAP


@functools.cache
def unavailable_reason() -> str:
    """Why bubblewrap does not work here; empty if it does. Tried once per process."""
    probe = Program(argv=("cat",), stdin=_MARK)
    try:
        result = run_coroutine(bubblewrap.run(probe, _TRIAL_LIMITS))
    except SandboxFailed as error:
        return str(error)
    if result.stdout == _MARK and result.succeeded:
        return ""
    return f"sandbox: a trial ended with {result.reason} (stderr {result.stderr.decode(errors='replace').strip()!r})"


def choose(option: str) -> SandboxLevel:
    """The level of an option; refuses anything below bubblewrap except with the explicit option."""
    if option == TRUSTED_CODE:
        return PLAIN
    if option not in OPTIONS:
        raise ConfigError(f"sandbox: no such option (got {option!r}); choose one of {', '.join(map(repr, OPTIONS))}")
    if reason := unavailable_reason():
        raise ConfigError(
            f"sandbox: untrusted code is not run without bubblewrap ({reason}); "
            f"run `apt-get install bubblewrap`, or write sandbox: {TRUSTED_CODE!r}"
        )
    return BUBBLEWRAP


def run(program: Program, limits: ResourceLimits, option: str = "auto") -> ProgramResult:
    """Run a program at the chosen level, for callers without an event loop."""
    return run_coroutine(choose(option).run(program, limits))


def run_coroutine(work: Awaitable[T]) -> T:
    """The result of a coroutine, whether or not this thread has a running event loop."""
    results: list[T] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            results.append(asyncio.run(_await(work)))
        except Exception as error:  # noqa: BLE001 - raised in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


async def _await(work: Awaitable[T]) -> T:
    return await work
