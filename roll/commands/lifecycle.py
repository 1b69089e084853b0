"""Starting, stopping and interrupting a run: shared by the commands that use models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import typer

from roll.checkpoint import Checkpoints
from roll.data.screening import ScreeningCounts
from roll.errors import ConfigError
from roll.proxy.server import Proxy
from roll.rewards.base import RewardService, stop_rewards
from roll.rollout.environments import Environments
from roll.tracking.directory import RunDirectory
from roll.wiring.models import Roles

T = TypeVar("T")

INTERRUPTED = 130
"""The exit code that shells use for Ctrl-C."""


@asynccontextmanager
async def running(roles: Roles | None, *services: RewardService | Environments | Proxy | None) -> AsyncGenerator[None]:
    """Starts models and services in this order, and stops them in reverse order at the end of the block."""
    async with AsyncExitStack() as stack:
        if roles is not None:
            await roles.start()
            stack.push_async_callback(roles.stop)
        for service in services:
            if service is not None:
                stack.push_async_callback(stop_rewards, service, partial(typer.echo, err=True))
                await service.start()
        yield


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


def run_to_end(work: Coroutine[Any, Any, None], directory: RunDirectory) -> None:
    """Run the coroutine; a second Ctrl-C ends it at once and prints how to resume."""
    try:
        asyncio.run(work)
    except KeyboardInterrupt:
        last = Checkpoints(directory.path / "checkpoints", keep=1).latest()
        hint = f"resume from {last.name} with `roll resume {directory.path}`" if last else "there is no checkpoint yet"
        typer.echo(f"interrupted at once; {hint}", err=True)
        raise typer.Exit(INTERRUPTED) from None


def report_screening(screened: Sequence[ScreeningCounts], directory: RunDirectory) -> None:
    """Print how many tasks each source has and lost, and write the same to the run directory."""
    for account in screened:
        typer.echo(str(account))
    lines = [json.dumps(asdict(account), ensure_ascii=False) + "\n" for account in screened]
    (directory.path / "screening.jsonl").write_text("".join(lines), encoding="utf-8")


def write_rows(output: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write one line of JSON per row to the file of `--output`."""
    try:
        output.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--output {output}: cannot be written ({error.strerror}); give another path") from None
