"""`roll rollout`: attempts tasks of a run with its model or an agent, and shows the transcripts. Trains nothing."""

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

from roll.config.load import LoadedRun
from roll.config.schema import Run
from roll.config.sources import TaskSourceConfig
from roll.errors import ConfigError, did_you_mean, root_cause
from roll.rollout.episode.runner import Attempt
from roll.rollout.episode.transcripts import Transcript, named_agent, random_agent, record_agent, record_policy
from roll.rollout.source import TaskSource, check_environments
from roll.tracking.progress import bar
from roll.wiring.data import build_sources
from roll.wiring.environments import build_environments
from roll.wiring.proxy import build_attempt_runners, build_proxy
from roll.wiring.rewards import build_reward_service

_MAX_INFLIGHT = 256
"""Concurrent attempts; bounds memory."""
MakeAttempt: TypeAlias = Callable[[TaskSource, Attempt], Awaitable[Transcript]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutOptions:
    """Options of the command line."""

    tasks: str | None = None
    """Name of the task source; None: the first."""
    num: int = 8
    agent: str = "model"
    output: Path | None = None


def rollout(loaded: LoadedRun, options: RolloutOptions) -> None:
    """Attempt `options.num` tasks of a source; print or write the transcripts, and print a summary."""
    config = _choose_source(loaded, options.tasks)
    transcripts = asyncio.run(_attempt_tasks(loaded.run, config, options))
    if options.output is None:
        for transcript in transcripts:
            typer.echo(_format(transcript))
    else:
        _write(options.output, config.name, transcripts)
        typer.echo(f"{len(transcripts)} attempts: {options.output}")
    typer.echo(_summary(transcripts))


async def _attempt_tasks(run: Run, config: TaskSourceConfig, options: RolloutOptions) -> list[Transcript]:
    run = run if options.agent != "random" else _inline(run)
    rewards, envs, proxy = build_reward_service(run.rewards), build_environments(run), build_proxy(run)
    (source,) = build_sources([config], rewards, envs.make, build_attempt_runners(run, proxy))
    async with contextlib.AsyncExitStack() as stack:
        for service in (rewards, envs, *([] if proxy is None else [proxy])):
            stack.push_async_callback(service.stop)
            await service.start()
        await check_environments(envs, [source])
        attempt = await stack.enter_async_context(_agent(run, config, options.agent))
        return await _all(source, attempt, run.seed, options.num)


def _inline(run: Run) -> Run:
    """The run with environments in this process, whose legal actions a random agent can read."""
    return run.model_copy(update={"envs": run.envs.model_copy(update={"workers": 0, "memory_mb": None})})


async def _all(source: TaskSource, attempt: MakeAttempt, seed: int, num: int) -> list[Transcript]:
    slots, size = asyncio.Semaphore(_MAX_INFLIGHT), len(source.tasks)

    async def one(number: int) -> Transcript:
        task, epoch = source.tasks[number % size], number // size
        async with slots:
            transcript = await attempt(
                source, Attempt(task=task, sibling=0, number=epoch, purpose="rollout", order=number, seed=seed)
            )
        advance(1)
        return transcript

    with bar(num, "rollout", console=Console(stderr=True)) as advance:
        try:
            async with asyncio.TaskGroup() as group:
                attempts = [group.create_task(one(number)) for number in range(num)]
        except BaseExceptionGroup as errors:
            raise root_cause(errors) from None
    return [each.result() for each in attempts]


@contextlib.asynccontextmanager
async def _agent(run: Run, config: TaskSourceConfig, name: str) -> AsyncGenerator[MakeAttempt]:
    """The function that makes an attempt, usable inside this block."""
    if name == "model":
        async with _model(run, held_out=config in run.validation.tasks) as attempt:
            yield attempt
        return
    env = config.env.spec
    make = random_agent(env, run.seed) if name == "random" else named_agent(name)
    yield lambda source, attempt: record_agent(source, make, attempt, max_turns=run.rollout.max_turns)


@contextlib.asynccontextmanager
async def _model(run: Run, *, held_out: bool) -> AsyncGenerator[MakeAttempt]:
    """Attempts by the model, with the sampling of training or, for held-out tasks, of validation."""
    from roll.commands.lifecycle import await_with_routing, routing
    from roll.wiring.models import build_roles, sampling_of
    from roll.wiring.run import build_validator

    roles = build_roles(run, run.actor_train.optimizer, run.steps, supervised=True)
    runner = build_validator(run, roles, []).runner
    if not held_out:
        limits = replace(runner.limits, sampling=sampling_of(run), max_new_tokens=run.rollout.max_new_tokens)
        runner = replace(runner, limits=limits)
    await roles.start()
    try:
        async with routing(roles) as router_task:
            yield lambda source, attempt: await_with_routing(record_policy(source, runner, attempt), router_task)
    finally:
        await roles.stop()


def _choose_source(loaded: LoadedRun, name: str | None) -> TaskSourceConfig:
    known = {source.name: source for source in (*loaded.run.validation.tasks, *loaded.run.tasks)}
    if name is None:
        return loaded.run.tasks[0]
    if name not in known:
        raise ConfigError(f"--tasks: {loaded.path} has no source named {name!r}{did_you_mean(name, known)}")
    return known[name]


def _format(transcript: Transcript) -> str:
    head = f"== {transcript.task.id}: {_outcome(transcript)}"
    messages = [f"[{message.role}] {message.content}".rstrip("\n") for message in transcript.messages]
    return "\n".join([head, *messages, ""])


def _outcome(transcript: Transcript) -> str:
    if transcript.reward is None:
        return f"{transcript.status}, {transcript.reason}"
    reason = f" ({transcript.reason})" if transcript.reason else ""
    return f"{transcript.status}{reason}, reward {transcript.reward:g}, {transcript.num_turns} turns"


def _summary(transcripts: Sequence[Transcript]) -> str:
    """One line; means are over the attempts that did not fail."""
    valid = [each for each in transcripts if each.reward is not None]
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
    failed = Counter(str(each.status) for each in transcripts if each.reward is None)
    return f"{len(transcripts)} attempts{means}" + "".join(f"; {status}: {count}" for status, count in failed.items())


def _write(output: Path, source: str, transcripts: Sequence[Transcript]) -> None:
    lines = [json.dumps(_row(source, each), ensure_ascii=False) + "\n" for each in transcripts]
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
