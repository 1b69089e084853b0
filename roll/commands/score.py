"""`roll score`: what a reward thinks of a file of replies, without a model or a run. Imports no torch."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import sys
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer
from pydantic import ValidationError
from rich.console import Console

from roll.config.document import COMMAND_LINE, Document, override, parse
from roll.config.faults import raise_all
from roll.config.load import load
from roll.config.reward import Reward
from roll.config.schema import Rewards
from roll.data.replies import Answered, read_replies
from roll.errors import ConfigError, did_you_mean, leaf
from roll.preflight import importable, preflight
from roll.registry import REWARDS
from roll.rewards.outcome import Ending, Outcome
from roll.tracking.progress import bar
from roll.types import Call, Task
from roll.wiring.rewards import build_scorer, check_sandbox

_WORKERS = 2
_UNDER_WAY = 256
"""Replies that may wait for a score at once; keeps memory bounded on long files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked for on the command line; None where nothing was said."""

    path: Path
    reward: str | None = None
    """As the key `reward` of a source has it: a name, a section, or a list."""
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
class Tally:
    """What a file of replies came to."""

    endings: Counter[str] = field(default_factory=Counter[str])
    total: float = 0.0
    num_right: int = 0
    """Scores of 1 and more."""

    def add(self, outcome: Outcome) -> None:
        """Count one more."""
        failed = outcome.ending is Ending.FAILED
        self.endings[f"failed ({outcome.fault})" if failed else str(outcome.ending)] += 1
        if outcome.score is not None:
            self.total += outcome.score.value
            self.num_right += outcome.score.value >= 1.0

    def summary(self) -> str:
        """One line; the mean and the share are over the replies that have a score."""
        scored = self.endings["scored"]
        mean = (
            f", mean {self.total / scored:.4f}, at 1: {self.num_right} ({self.num_right / scored:.1%})"
            if scored
            else ""
        )
        rest = "".join(
            f"; {ending.replace('_', ' ')}: {count}"
            for ending, count in sorted(self.endings.items())
            if ending != "scored"
        )
        return f"replies: {self.endings.total()}; scored: {scored}{mean}{rest}"


def score(request: Request) -> None:
    """Print a line of JSON for each reply, in the order of the file, and a summary to standard error."""
    reward, rewards = _asked_for(request)
    rows = read_replies(request.path, dict(_assigned(each, "--field") for each in request.fields))
    with _written(request.output) as write:
        tally = asyncio.run(_score(rows, reward, rewards, write))
    typer.echo(tally.summary(), err=True)


async def _score(rows: Sequence[Answered], reward: Call, rewards: Rewards, write: Callable[[str], Any]) -> Tally:
    tally = Tally()
    scorer = build_scorer(rewards)
    quiet = sys.stdout.isatty() and sys.stderr.isatty()  # there the lines themselves show how far it is
    await scorer.start()
    try:
        with bar(
            sum(len(row.replies) for row in rows), "scoring", console=Console(stderr=True, quiet=quiet)
        ) as advance:

            def tell(line: dict[str, Any], outcome: Outcome) -> None:
                tally.add(outcome)
                write(json.dumps({**line, **_told(outcome)}, ensure_ascii=False) + "\n")
                advance(1)

            await _in_order(rows, functools.partial(scorer.score, reward), tell)
    finally:
        await scorer.stop()
    return tally


async def _in_order(
    rows: Sequence[Answered],
    judge: Callable[[Task, str], Coroutine[Any, Any, Outcome]],
    tell: Callable[[dict[str, Any], Outcome], None],
) -> None:
    """Judge many replies at once, and tell of them in the order of the file."""
    window: deque[tuple[dict[str, Any], asyncio.Task[Outcome]]] = deque()
    try:
        async with asyncio.TaskGroup() as under_way:
            for row, index in _numbered(rows):
                line = {"line": row.line, "id": row.task.id, "reply": index}
                window.append((line, under_way.create_task(judge(row.task, row.replies[index]))))
                if len(window) >= _UNDER_WAY:
                    line, judged = window.popleft()
                    tell(line, await judged)
            for line, judged in window:
                tell(line, await judged)
    except BaseExceptionGroup as group:
        raise leaf(group) from None


def _numbered(rows: Sequence[Answered]) -> Iterator[tuple[Answered, int]]:
    return ((row, index) for row in rows for index in range(len(row.replies)))


def _told(outcome: Outcome) -> dict[str, Any]:
    score = outcome.score
    return {
        "outcome": str(outcome.ending),
        "score": None if score is None else score.value,
        "parts": {} if score is None else score.parts,
        "fault": None if outcome.fault is None else str(outcome.fault),
        "reason": outcome.reason,
    }


@contextlib.contextmanager
def _written(output: Path | None) -> Generator[Callable[[str], Any]]:
    """Where the lines go."""
    if output is None:
        yield sys.stdout.write
        return
    try:
        stream = output.open("w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--output {output}: cannot be written ({error.strerror}); give another path") from None
    with stream:
        yield stream.write


def _asked_for(request: Request) -> tuple[Call, Rewards]:
    """The reward, and where it is to be asked."""
    if (request.reward is None) == (request.run is None):
        raise ConfigError("roll score: give either --reward or --run, whose source names one")
    if request.run is None:
        found, rewards = _named(request.reward or "", request.options), Rewards(workers=_WORKERS)
    else:
        if request.options:
            raise ConfigError("--option goes with --reward; with --run, change the file")
        found, rewards = _of_run(request.run, request.source)
    check_sandbox(found, place="--reward" if request.run is None else f"{request.run}")
    if request.workers is not None:
        rewards = rewards.model_copy(update={"workers": request.workers})
    if request.timeout_s is not None:
        rewards = rewards.model_copy(update={"timeout_s": request.timeout_s})
        if not rewards.workers:
            raise ConfigError("--timeout needs processes that can be killed; add --workers")
    return Call(found.kind, found.arguments), rewards


def _named(text: str, options: Sequence[str]) -> Reward:
    """The reward that the command line spells."""
    importable(Path.cwd() / "here")
    written: Any = parse(text, COMMAND_LINE).tree
    document = Document(COMMAND_LINE)
    document.tree = {"reward": {"kind": written} if isinstance(written, str) else written}
    for option in options:
        override(document, f"reward.{option}")
    raise_all(document.faults)
    try:
        reward = Reward.model_validate_json(json.dumps(document.tree["reward"]))
    except ValidationError as error:
        faults = [(".".join(map(str, found["loc"])), found["msg"]) for found in error.errors(include_url=False)]
        raise ConfigError("\n".join(f"--reward: {f'{key}: ' if key else ''}{what}" for key, what in faults)) from None
    faults = [fault for named in (reward, *reward.rewards) for _, fault in REWARDS.faults(named.kind, named.arguments)]
    if faults:
        raise ConfigError("\n".join(f"--reward: {fault}" for fault in faults))
    return reward


def _of_run(path: Path, name: str | None) -> tuple[Reward, Rewards]:
    """The reward of a source of a run, training or held-out, and where the run asks it."""
    loaded = load(path)
    preflight(loaded, files=False)
    known = {source.name: source for source in (*loaded.run.validation.tasks, *loaded.run.tasks)}
    if name is None and len(known) > 1:
        raise ConfigError(f"{path}: has several sources; choose one with --source: {', '.join(known)}")
    chosen = next(iter(known)) if name is None else name
    if chosen not in known:
        raise ConfigError(f"{path}: no source named {chosen!r}{did_you_mean(chosen, known)}")
    reward = known[chosen].reward
    if reward is None:
        raise ConfigError(f"{path}: the environment rewards {chosen!r}; choose a source with a 'reward'")
    return reward, loaded.run.rewards


def _assigned(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise ConfigError(f"{option}: not an assignment (got {text!r}); write name=field")
    return name, value
