"""`roll rollout`: attempts tasks of a run with its model or an agent, and shows the transcripts. Trains nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import typer
from rich.console import Console

from roll.commands.lifecycle import await_with_routing, routing, running
from roll.config.load import LoadedRun
from roll.config.schema import Run
from roll.config.sources import TaskSourceConfig
from roll.config.turns import turn_limit
from roll.data.messages import message_entry
from roll.errors import ConfigError, did_you_mean, root_cause
from roll.report.attempts import check_output, write_rows
from roll.rollout.episode.runner import Attempt
from roll.rollout.episode.transcripts import Transcript, named_agent, random_agent, record_agent, record_policy
from roll.rollout.source import TaskSource, check_environments
from roll.tracking.progress import bar
from roll.wiring.actor import sampling_of
from roll.wiring.data import build_sources
from roll.wiring.models import build_roles
from roll.wiring.proxy import build_attempt_runners, build_proxy
from roll.wiring.run import build_validator
from roll.wiring.services import build_environments, build_reward_service

_MAX_INFLIGHT = 256
"""Concurrent attempts; bounds memory."""
MakeAttempt: TypeAlias = Callable[[TaskSource, Attempt], Awaitable[Transcript]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFilter:
    """Which attempts to keep."""

    min_reward: float | None = None
    """Least reward; None: any, and without reward too."""
    best: int | None = None
    """Attempts per task, those with the highest rewards, the earlier one among equals; None: all."""

    def select(self, transcripts: Sequence[Transcript]) -> list[Transcript]:
        """The attempts to keep, in their order."""
        if self.min_reward is None and self.best is None:
            return list(transcripts)
        least = float("-inf") if self.min_reward is None else self.min_reward
        eligible = [each for each in transcripts if each.reward is not None and each.reward >= least]
        if self.best is None:
            return eligible
        ranks, best = Counter[str](), set[int]()
        for each in sorted(eligible, key=lambda each: (-(each.reward or 0.0), each.attempt)):
            ranks[each.task.id] += 1
            if ranks[each.task.id] <= self.best:
                best.add(id(each))
        return [each for each in eligible if id(each) in best]


def rollout(
    loaded: LoadedRun, *, tasks: str | None, num: int, agent: str, output: Path | None, selection: AttemptFilter
) -> None:
    """Attempt `num` tasks of a source, the first if `tasks` is None; print or write the transcripts and a summary."""
    config = _choose_source(loaded, tasks)
    if output is not None:
        check_output(output)
    transcripts = asyncio.run(_attempt_tasks(loaded.run, config, agent, num))
    selected = selection.select(transcripts)
    if output is None:
        for transcript in selected:
            typer.echo(_format(transcript))
    else:
        write_rows(output, [_row(config.name, each) for each in selected])
        count = f"{len(transcripts)}" if len(selected) == len(transcripts) else f"{len(selected)} of {len(transcripts)}"
        typer.echo(f"{count} attempts: {output}")
    typer.echo(_summary(transcripts))


async def _attempt_tasks(run: Run, config: TaskSourceConfig, agent: str, num: int) -> list[Transcript]:
    if agent == "random":  # it reads the legal actions of environments in this process
        run = run.model_copy(update={"envs": run.envs.model_copy(update={"workers": 0, "memory_mb": None})})
    rewards, envs, proxy = build_reward_service(run.rewards), build_environments(run), build_proxy(run)
    (source,) = build_sources([config], rewards, envs.make, build_attempt_runners(run, proxy))
    async with running(None, rewards, envs, proxy):
        await check_environments(envs, [source])
        async with _agent(run, config, agent) as attempt:
            return await _all(source, attempt, run.seed, num)


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
    yield lambda source, attempt: record_agent(source, make, attempt, max_turns=turn_limit(run))


@contextlib.asynccontextmanager
async def _model(run: Run, *, held_out: bool) -> AsyncGenerator[MakeAttempt]:
    """Attempts by the model, with the sampling of training or, for held-out tasks, of validation."""
    roles = build_roles(run, run.actor_train.optimizer, run.steps, supervised=True)
    runner = build_validator(run, roles, []).runner
    if not held_out:
        limits = replace(runner.limits, sampling=sampling_of(run), max_new_tokens=run.rollout.max_new_tokens)
        runner = replace(runner, limits=limits)
    async with running(roles), routing(roles) as router_task:
        yield lambda source, attempt: await_with_routing(record_policy(source, runner, attempt), router_task)


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
        success = sum(each.success for each in valid) / len(valid)
        reward = sum(each.reward or 0.0 for each in valid) / len(valid)
        turns = sum(each.num_turns for each in valid) / len(valid)
        means = f": success {success:.3f}, reward {reward:.3f}, {turns:.1f} turns"
    failed = Counter(str(each.status) for each in transcripts if each.reward is None)
    return f"{len(transcripts)} attempts{means}" + "".join(f"; {status}: {count}" for status, count in failed.items())


def _row(source: str, transcript: Transcript) -> dict[str, Any]:
    return {
        "source": source,
        "id": f"{transcript.task.id}#{transcript.attempt}" if transcript.attempt else transcript.task.id,
        "task": transcript.task.id,
        "attempt": transcript.attempt,
        "status": str(transcript.status),
        "reason": transcript.reason,
        "reward": transcript.reward,
        "turns": transcript.num_turns,
        "metrics": transcript.metrics,
        "messages": [message_entry(message) for message in transcript.messages],
    }
