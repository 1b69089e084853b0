"""Starting, stopping and interrupting a run: shared by the commands that use models."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Protocol, TypeVar, cast

import typer

import roll
from roll.checkpoint import Checkpoints
from roll.config.schema import Run
from roll.data.screening import ScreeningCounts
from roll.device_failure import device_failure
from roll.errors import RollError
from roll.pipelines.interrupt import INTERRUPTED, Interrupt
from roll.proxy.server import Proxy
from roll.rewards.base import RewardService, stop_rewards
from roll.rollout.environments import Environments
from roll.tracking.directory import RunDirectory
from roll.tracking.log import Terminal, announce, controller_log, log_only
from roll.wiring.models import Roles
from roll.wiring.monitoring import log_settings

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
_POLL_S = 0.1
"""Python runs signal handlers only between two operations of the main thread, not while it waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """How a program follows and stops a run that is a part of it, and that never ends the process."""

    on_start: Callable[[Interrupt], None] | None = None
    """Called once, with the interrupt whose `requested` ends the run after its step."""
    on_step: Callable[[int, Mapping[str, float]], None] | None = None
    """Called after every step, in the thread of the run."""


class Engines(Protocol):
    """The models of a run."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def leave(self) -> None:
        """Stop after an unexpected exception."""
        ...


@asynccontextmanager
async def running(
    roles: Engines | None, *services: RewardService | Environments | Proxy | None
) -> AsyncGenerator[None]:
    """Starts models and services in this order, and stops them in reverse order at the end of the block."""
    async with AsyncExitStack() as stack:
        if roles is not None:
            await roles.start()
            stack.push_async_exit(partial(_end_models, roles))
        for service in services:
            if service is not None:
                stack.push_async_callback(stop_rewards, service, partial(typer.echo, err=True))
                await service.start()
        yield


async def _end_models(
    roles: Engines, kind: type[BaseException] | None, error: BaseException | None, trace: Any
) -> None:
    unexpected = isinstance(error, Exception) and not isinstance(error, RollError)
    await (roles.leave() if unexpected else roles.stop())


@asynccontextmanager
async def routing(roles: Roles) -> AsyncGenerator[asyncio.Task[None]]:
    """Serves the initial weights as version 0 inside this block; yields the task that routes requests."""
    task = asyncio.create_task(roles.routers.run())
    try:
        await roles.routers.release(0)
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def await_with_routing(work: Awaitable[T], router_task: asyncio.Task[None]) -> T:
    """The result of `work`; raises the error of `router_task` if that ends first."""
    task = asyncio.ensure_future(work)
    await asyncio.wait([router_task, task], return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        task.cancel()
        await router_task
    return await task


def run_async(work: Coroutine[Any, Any, T], interrupt: Interrupt | None = None) -> T:
    """The result of the coroutine, from a new event loop.

    If this thread runs a loop already, as in a notebook, the new one runs in another thread. Signals still arrive here:
    `interrupt` counts them, and a `KeyboardInterrupt` cancels the coroutine.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    started: Future[asyncio.Task[Any]] = Future()

    async def run() -> T:
        started.set_result(cast("asyncio.Task[Any]", asyncio.current_task()))
        return await work

    with ThreadPoolExecutor(1, thread_name_prefix="roll") as pool, interrupt or nullcontext():
        result = pool.submit(asyncio.run, run())
        try:
            while not result.done():
                wait([result], timeout=_POLL_S)
        except KeyboardInterrupt:
            task = started.result()
            task.get_loop().call_soon_threadsafe(task.cancel)
            wait([result])
            raise
        return result.result()


@contextmanager
def _interruptible() -> Generator[None]:
    """Until the run handles signals itself, SIGTERM interrupts its start like Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_to_end(
    work: Callable[[Terminal], Coroutine[Any, Any, T]], directory: RunDirectory, interrupt: Interrupt, run: Run
) -> T:
    """The result of the coroutine, with a log; if its step is abandoned, prints how to resume."""
    with controller_log(directory.log, log_settings(run)) as terminal:
        _LOG.info("roll %s: %s, process %d on %s", roll.__version__, directory.path, os.getpid(), socket.gethostname())
        announce(
            f"{'loading' if run.executor == 'inline' else 'starting workers for'} {run.model.path or 'a new model'}"
        )
        try:
            with _interruptible():
                return run_async(work(terminal), interrupt)
        except KeyboardInterrupt:
            others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
            if interrupt.exit_now is not None and not all(thread.daemon for thread in others):
                exit_at_once(directory)  # the interpreter would wait for them
            _LOG.warning("%s", _resume_hint(directory))
            raise
        except RollError as error:
            log_only(str(error), logging.ERROR)
            raise
        except Exception as error:
            log_only("".join(traceback.format_exception(error)), logging.ERROR)
            if (failure := device_failure(error, directory.path)) is not None:
                raise failure from error
            raise


def interrupt_of(run: Run, directory: RunDirectory, *, embedded: Embedded | None = None) -> Interrupt:
    """The reaction of a run to signals; an embedded one never ends the process."""
    settings, exit_now = run.interrupt, None if embedded else partial(exit_at_once, directory)
    interrupt = Interrupt(mode=settings.mode, grace_s=settings.grace_s, exit_now=exit_now)
    if embedded is not None and embedded.on_start is not None:
        embedded.on_start(interrupt)
    return interrupt


def exit_at_once(directory: RunDirectory) -> None:
    """End the process without waiting for anything; files are complete after any crash."""
    hint = _resume_hint(directory)
    typer.echo(hint, err=True)
    log_only(hint, logging.WARNING)
    sys.stdout.flush()
    os._exit(INTERRUPTED)


def _resume_hint(directory: RunDirectory) -> str:
    last = Checkpoints(directory.path / "checkpoints", keep=1).latest()
    hint = f"resume from {last.name} with `roll resume {directory.path}`" if last else "there is no checkpoint yet"
    return f"interrupted at once; {hint}"


def report_screening(screened: Sequence[ScreeningCounts], directory: RunDirectory) -> None:
    """Print how many tasks each source has and lost, and write the same to the run directory."""
    for account in screened:
        announce(str(account))
    lines = [json.dumps(asdict(account), ensure_ascii=False) + "\n" for account in screened]
    (directory.path / "screening.jsonl").write_text("".join(lines), encoding="utf-8", errors="backslashreplace")
