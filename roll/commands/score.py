"""`roll score`: the scores of a file of responses, without a model or a run. Imports no torch."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import sys
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer
from pydantic import ValidationError
from rich.console import Console

from roll.config.document import COMMAND_LINE, override, parse
from roll.config.faults import raise_all
from roll.config.load import load
from roll.config.reward import Reward
from roll.config.schema import Rewards
from roll.data.replies import AnsweredTask, read_replies
from roll.errors import ConfigError, did_you_mean, root_cause
from roll.preflight import importable, preflight
from roll.registry import REWARDS
from roll.rewards.base import stop_rewards
from roll.rewards.result import RewardResult, RewardStatus
from roll.tracking.progress import bar
from roll.types import Spec, Task
from roll.wiring.services import build_reward_service, check_sandbox

_WORKERS = 2
_MAX_PENDING = 256
"""Responses scored concurrently; bounds memory on long files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """The command-line arguments; None for those not given."""

    path: Path
    reward: str | None = None
    """A name, a section, or a list, as for the key `reward` of a source."""
    options: Sequence[str] = ()
    """`key=value`"""
    fields: Sequence[str] = ()
    """`name=field`"""
    run: Path | None = None
    source: str | None = None
    workers: int | None = None
    timeout_s: float | None = None
    output: Path | None = None


@dataclass(slots=True)
class ScoreSummary:
    """Counts and mean of the scores of a file."""

    statuses: Counter[str] = field(default_factory=Counter[str])
    total: float = 0.0
    num_solved: int = 0
    """Scores of 1 and more."""

    def add(self, result: RewardResult) -> None:
        """Count one result."""
        failed = result.status is RewardStatus.FAILED
        self.statuses[f"failed ({result.fault})" if failed else str(result.status)] += 1
        if result.score is not None:
            self.total += result.score.total
            self.num_solved += result.score.total >= 1.0

    def format(self) -> str:
        """One line; mean and share are over the scored responses."""
        scored = self.statuses["scored"]
        mean = (
            f", mean {self.total / scored:.4f}, at 1: {self.num_solved} ({self.num_solved / scored:.1%})"
            if scored
            else ""
        )
        rest = "".join(
            f"; {status.replace('_', ' ')}: {count}"
            for status, count in sorted(self.statuses.items())
            if status != "scored"
        )
        return f"responses: {self.statuses.total()}; scored: {scored}{mean}{rest}"


def score_file(request: ScoreRequest) -> None:
    """Write one line of JSON per response, in the order of the file, and a summary to standard error."""
    reward, rewards = _resolve_reward(request)
    rows = read_replies(request.path, dict(map(_parse_field, request.fields)))
    with _open_output(request.output) as write:
        summary = asyncio.run(_score(rows, reward, rewards, write))
    typer.echo(summary.format(), err=True)


async def _score(
    rows: Sequence[AnsweredTask], reward: Spec, rewards: Rewards, write: Callable[[str], Any]
) -> ScoreSummary:
    summary = ScoreSummary()
    service = build_reward_service(rewards)
    quiet = sys.stdout.isatty() and sys.stderr.isatty()  # the printed lines show the progress
    await service.start()
    try:
        with bar(
            sum(len(row.replies) for row in rows), "scoring", console=Console(stderr=True, quiet=quiet)
        ) as advance:

            def report(line: dict[str, Any], result: RewardResult) -> None:
                summary.add(result)
                write(json.dumps({**line, **_to_json(result)}, ensure_ascii=False) + "\n")
                advance(1)

            await _score_in_order(rows, functools.partial(service.score, reward), report)
    finally:
        await stop_rewards(service, functools.partial(typer.echo, err=True))
    return summary


async def _score_in_order(
    rows: Sequence[AnsweredTask],
    score: Callable[[Task, str], Coroutine[Any, Any, RewardResult]],
    report: Callable[[dict[str, Any], RewardResult], None],
) -> None:
    """Score responses concurrently and report them in the order of the file."""
    window: deque[tuple[dict[str, Any], asyncio.Task[RewardResult]]] = deque()
    try:
        async with asyncio.TaskGroup() as group:
            for row in rows:
                for index, response in enumerate(row.replies):
                    line = {"line": row.line, "id": row.task.id, "response": index}
                    window.append((line, group.create_task(score(row.task, response))))
                    if len(window) >= _MAX_PENDING:
                        line, pending = window.popleft()
                        report(line, await pending)
            for line, pending in window:
                report(line, await pending)
    except BaseExceptionGroup as errors:
        raise root_cause(errors) from None


def _to_json(result: RewardResult) -> dict[str, Any]:
    score = result.score
    return {
        "outcome": str(result.status),
        "score": None if score is None else score.total,
        "parts": {} if score is None else score.parts,
        "comment": "" if score is None else score.comment,
        **({"spans": score.spans} if score is not None and score.spans else {}),
        "fault": None if result.fault is None else str(result.fault),
        "reason": result.reason,
    }


@contextlib.contextmanager
def _open_output(output: Path | None) -> Generator[Callable[[str], Any]]:
    """The function that writes a line."""
    if output is None:
        yield sys.stdout.write
        return
    try:
        stream = output.open("w", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise ConfigError(f"--output {output}: cannot be written ({error.strerror}); give another path") from None
    with stream:
        yield stream.write


def _resolve_reward(request: ScoreRequest) -> tuple[Spec, Rewards]:
    """The reward and the settings of its service."""
    if (request.reward is None) == (request.run is None):
        raise ConfigError("roll score: give either --reward or --run, whose source names one")
    if request.run is None:
        reward, rewards = _parse_reward(request.reward or "", request.options), Rewards(workers=_WORKERS)
    else:
        if request.options:
            raise ConfigError("--option goes with --reward; with --run, change the file")
        reward, rewards = _reward_of_run(request.run, request.source)
    check_sandbox(reward, where="--reward" if request.run is None else f"{request.run}")
    if request.workers is not None:
        rewards = rewards.model_copy(update={"workers": request.workers})
    if request.timeout_s is not None:
        rewards = rewards.model_copy(update={"timeout_s": request.timeout_s})
        if not rewards.workers:
            raise ConfigError("--timeout needs processes that can be killed; add --workers")
    return reward.spec, rewards


def _parse_reward(text: str, options: Sequence[str]) -> Reward:
    """The reward given on the command line."""
    importable(Path.cwd() / "here")
    document = parse(text, COMMAND_LINE, "reward")
    section: Any = document.tree
    document.tree = {"reward": {"kind": section} if isinstance(section, str) else section}
    for option in options:
        override(document, f"reward.{option}")
    raise_all(document.faults)
    try:
        reward = Reward.model_validate_json(json.dumps(document.tree["reward"]))
    except ValidationError as error:
        faults = [(".".join(map(str, entry["loc"])), entry["msg"]) for entry in error.errors(include_url=False)]
        raise ConfigError("\n".join(f"--reward: {f'{key}: ' if key else ''}{what}" for key, what in faults)) from None
    faults = [fault for named in (reward, *reward.rewards) for _, fault in REWARDS.faults(named.kind, named.kwargs)]
    if faults:
        raise ConfigError("\n".join(f"--reward: {fault}" for fault in faults))
    return reward


def _reward_of_run(path: Path, name: str | None) -> tuple[Reward, Rewards]:
    """The reward of a run's source, training or held-out, and the run's reward settings."""
    loaded = load(path)
    preflight(loaded, files=False, models=False)
    sources = {source.name: source for source in (*loaded.run.validation.tasks, *loaded.run.tasks)}
    if name is None and len(sources) > 1:
        raise ConfigError(f"{path}: has several sources; choose one with --source: {', '.join(sources)}")
    chosen = next(iter(sources)) if name is None else name
    if chosen not in sources:
        raise ConfigError(f"{path}: no source named {chosen!r}{did_you_mean(chosen, sources)}")
    reward = sources[chosen].reward
    if reward is None:
        raise ConfigError(f"{path}: the environment rewards {chosen!r}; choose a source with a 'reward'")
    return reward, loaded.run.rewards


def _parse_field(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise ConfigError(f"--field: not an assignment (got {text!r}); write name=field")
    return name, value
