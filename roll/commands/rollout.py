"""`roll rollout`: attempts at a run's tasks, by its model or by an agent, to be read. Nothing is trained."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import typer
from rich.console import Console

from roll.config.load import Loaded
from roll.config.schema import Run
from roll.config.sources import Source as SourceConfig
from roll.errors import ConfigError, did_you_mean, leaf
from roll.rollout.episode.runner import Attempt
from roll.rollout.episode.transcripts import Transcript, at_random, by_name, sampled, scripted
from roll.rollout.source import Source, check_environments
from roll.tracking.progress import bar
from roll.types import Call
from roll.wiring.data import build_sources
from roll.wiring.environments import build_environments
from roll.wiring.proxy import build_players, build_proxy
from roll.wiring.rewards import build_scorer

_UNDER_WAY = 256
"""Attempts that may be under way at once; keeps memory bounded."""
Attempted: TypeAlias = Callable[[Source, Attempt], Awaitable[Transcript]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked for on the command line; None where nothing was said."""

    tasks: str | None = None
    """The source, by its name."""
    num: int = 8
    agent: str = "model"
    output: Path | None = None


def rollout(loaded: Loaded, request: Request) -> None:
    """Attempt so many tasks of a source; print the transcripts, or write them, and what they came to."""
    config = _chosen(loaded, request.tasks)
    found = asyncio.run(_attempted(loaded.run, config, request))
    if request.output is None:
        for transcript in found:
            typer.echo(_printed(transcript))
    else:
        _write(request.output, config.name, found)
        typer.echo(f"{len(found)} attempts: {request.output}")
    typer.echo(_summary(found))


async def _attempted(run: Run, config: SourceConfig, request: Request) -> list[Transcript]:
    run = run if request.agent != "random" else _inline(run)
    scorer, envs, proxy = build_scorer(run.rewards), build_environments(run), build_proxy(run)
    (source,) = build_sources([config], scorer.score, envs.make, build_players(run, proxy))
    async with contextlib.AsyncExitStack() as stack:
        for service in (scorer, envs, *([] if proxy is None else [proxy])):
            stack.push_async_callback(service.stop)
            await service.start()
        await check_environments(envs, [source])
        attempt = await stack.enter_async_context(_agent(run, config, request.agent))
        return await _all(source, attempt, run.seed, request.num)


def _inline(run: Run) -> Run:
    """With environments that can be asked what can be done in them."""
    return run.model_copy(update={"envs": run.envs.model_copy(update={"workers": 0, "memory_mb": None})})


async def _all(source: Source, attempt: Attempted, seed: int, num: int) -> list[Transcript]:
    free, size = asyncio.Semaphore(_UNDER_WAY), len(source.tasks)

    async def one(number: int) -> Transcript:
        task, again = source.tasks[number % size], number // size
        async with free:
            found = await attempt(
                source, Attempt(task=task, sibling=0, number=again, purpose="rollout", order=number, seed=seed)
            )
        advance(1)
        return found

    with bar(num, "rollout", console=Console(stderr=True)) as advance:
        try:
            async with asyncio.TaskGroup() as under_way:
                asked = [under_way.create_task(one(number)) for number in range(num)]
        except BaseExceptionGroup as group:
            raise leaf(group) from None
    return [each.result() for each in asked]


@contextlib.asynccontextmanager
async def _agent(run: Run, config: SourceConfig, name: str) -> AsyncGenerator[Attempted]:
    """How an attempt is made, inside this block."""
    if name == "model":
        async with _model(run, held_out=config in run.validation.tasks) as attempt:
            yield attempt
        return
    env = Call(config.env.kind, config.env.arguments)
    make = at_random(env, run.seed) if name == "random" else by_name(name)
    yield lambda source, attempt: scripted(source, make, attempt, max_turns=run.rollout.max_turns)


@contextlib.asynccontextmanager
async def _model(run: Run, *, held_out: bool) -> AsyncGenerator[Attempted]:
    """The model, sampled as in training or, at a held-out task, as in validation."""
    from roll.wiring.models import build_roles, sampling_of
    from roll.wiring.run import build_validator

    roles = build_roles(run, run.actor_train.optimizer, run.steps, supervised=True)
    runner = build_validator(run, roles, []).runner
    if not held_out:
        limits = replace(runner.limits, sampling=sampling_of(run), max_new_tokens=run.rollout.max_new_tokens)
        runner = replace(runner, limits=limits)
    await roles.start()
    routing = asyncio.create_task(roles.pool.run())
    try:
        await roles.pool.release(0)

        async def attempt(source: Source, given: Attempt) -> Transcript:
            playing = asyncio.ensure_future(sampled(source, runner, given))
            await asyncio.wait([routing, playing], return_when=asyncio.FIRST_COMPLETED)
            if not playing.done():
                playing.cancel()
                await routing  # raises what ended it
            return await playing

        yield attempt
    finally:
        routing.cancel()
        await asyncio.gather(routing, return_exceptions=True)
        await roles.stop()


def _chosen(loaded: Loaded, name: str | None) -> SourceConfig:
    known = {source.name: source for source in (*loaded.run.validation.tasks, *loaded.run.tasks)}
    if name is None:
        return loaded.run.tasks[0]
    if name not in known:
        raise ConfigError(f"--tasks: {loaded.path} has no source named {name!r}{did_you_mean(name, known)}")
    return known[name]


def _printed(transcript: Transcript) -> str:
    head = f"== {transcript.task.id}: {_outcome(transcript)}"
    said = [f"[{message.role}] {message.content}".rstrip("\n") for message in transcript.messages]
    return "\n".join([head, *said, ""])


def _outcome(transcript: Transcript) -> str:
    if transcript.reward is None:
        return f"{transcript.status}, {transcript.reason}"
    cut = f" ({transcript.reason})" if transcript.reason else ""
    return f"{transcript.status}{cut}, reward {transcript.reward:g}, {transcript.num_turns} turns"


def _summary(found: Sequence[Transcript]) -> str:
    """One line; means are over the attempts that did not fail."""
    valid = [each for each in found if each.reward is not None]
    means = ""
    if valid:
        success, reward, turns = (
            sum(numbers) / len(valid)
            for numbers in (
                [each.success for each in valid],
                [each.reward or 0.0 for each in valid],
                [each.num_turns for each in valid],
            )
        )
        means = f": success {success:.3f}, reward {reward:.3f}, {turns:.1f} turns"
    failed = Counter(str(each.status) for each in found if each.reward is None)
    return f"{len(found)} attempts{means}" + "".join(f"; {status}: {count}" for status, count in failed.items())


def _write(output: Path, source: str, found: Sequence[Transcript]) -> None:
    lines = [json.dumps(_row(source, each), ensure_ascii=False) + "\n" for each in found]
    try:
        output.write_text("".join(lines), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--output {output}: cannot be written ({error.strerror}); give another path") from None


def _row(source: str, transcript: Transcript) -> dict[str, Any]:
    return {
        "source": source,
        "id": transcript.task.id,
        "attempt": transcript.attempt,
        "status": str(transcript.status),
        "reason": transcript.reason,
        "reward": transcript.reward,
        "turns": transcript.num_turns,
        "metrics": transcript.metrics,
        "messages": [{"role": message.role, "content": message.content} for message in transcript.messages],
    }
