"""Run directories for tests, written by the real journal and the real metrics file."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models

from roll.journal.events import (
    AdvantagesAssigned,
    GroupAdmitted,
    GroupFailed,
    GroupFiltered,
    GroupReady,
    GroupStale,
    RolledBack,
    RunStarted,
    StepStarted,
    WeightsPublished,
    WeightsUpdated,
)
from roll.journal.records import TokenValues
from roll.journal.store import Journal
from roll.tracking.sinks import JsonLines
from roll.types import Finish, Message, Score, Segment, Status, Task, Trajectory, Turn
from roll.watch.folder import RunFolder
from roll.watch.server import ServerAddress, WatchServer
from roll.watch.view import RunView

DEADLINE_S = 120.0
TOKEN = "the-token-of-the-test"


def save_tokenizer(run: Path) -> None:
    """A tokenizer of single characters: id = code point of printable ASCII minus 32."""
    tokenizer = Tokenizer(models.WordLevel({chr(32 + id): id for id in range(95)}, unk_token="?"))
    tokenizer.decoder = decoders.Fuse()
    (run / "tokenizer").mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(run / "tokenizer" / "tokenizer.json"))


def ids(text: str) -> Any:
    return np.array([max(0, ord(character) - 32) % 95 for character in text], np.int32)


def turn(observation: str, response: str, *, version: int = 0, **fields: Any) -> Turn:
    sampled = ids(response)
    return Turn(
        observation=ids(observation),
        sampled=sampled,
        sampler_logprobs=np.full(len(sampled), -0.5, np.float32),
        versions=np.full(len(sampled), version, np.int32),
        finish=Finish.STOP,
        **{"generated_s": 0.25, **fields},
    )


def attempt(
    *turns: Turn, sibling: int = 0, reward: float = 1.0, domain: str = "math", prompt: str = "1+1=", **fields: Any
) -> Trajectory:
    status = fields.pop("status", Status.FINISHED)
    return Trajectory(
        task=Task(id=fields.pop("task", f"{domain}-{prompt}"), domain=domain, messages=(Message("user", prompt),)),
        sibling=sibling,
        segments=(Segment(turns=turns or (turn(prompt, "2"),)),),
        status=status,
        score=Score(reward) if status.valid else None,
        **fields,
    )


class RunWriter:
    """Writes a run as the controller does."""

    def __init__(self, path: Path, journal: type[Journal] = Journal) -> None:
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.yaml").write_text("name: made\nsteps: 9\n")
        save_tokenizer(path)
        self.path, self.journal = path, journal(path / "journal.db")
        self.metrics = JsonLines(path / "metrics.jsonl")
        self.num_groups, self.num_versions = 0, 0
        self.journal.record(RunStarted(config_digest="d"))
        self.publish(0)

    def publish(self, step: int) -> None:
        seconds = {"send": 0.5, "canary": 0.25}
        event = WeightsPublished(version=self.num_versions, step=step, digest=f"d{self.num_versions}", seconds=seconds)
        self.journal.record(event)
        self.num_versions += 1

    def group(self, *attempts: Trajectory, siblings: tuple[int, ...] = (), ready: bool = True) -> int:
        group, self.num_groups = self.num_groups, self.num_groups + 1
        task = attempts[0].task
        self.journal.record(GroupAdmitted(group=group, task=task.id, domain=task.domain, birth=self.num_versions - 1))
        for each in attempts:
            self.journal.record_trajectory(group, each)
        if ready:
            self.journal.record(GroupReady(group=group, siblings=siblings))
        return group

    def step(self, step: int, *groups: int, refused: bool = False, **metrics: float) -> None:
        self.journal.record(StepStarted(step=step, groups=groups))
        advantages = {group: {0: group + 0.5, 1: group - 0.5} for group in groups}
        self.journal.record(AdvantagesAssigned(step=step, advantages=advantages))
        self.journal.record(WeightsUpdated(step=step, refused=refused))
        self.publish(step)
        self.metrics.write(step, {"reward/mean": 0.5, **metrics})

    def close(self) -> None:
        self.journal.close()
        self.metrics.close()


def eventful(path: Path, journal: type[Journal] = Journal) -> None:
    """A run in which groups end in every possible way, one step is rolled back and one trained again."""
    run = RunWriter(path, journal)
    pair = [attempt(sibling=0, reward=1.0), attempt(turn("1+1=", "seven"), sibling=1, reward=0.0)]
    first = run.group(*pair)
    failed = attempt(status=Status.ENV_FAILED, reason="exit code 7 of 'a'", domain="code", prompt="run")
    run.group(failed, ready=False)
    run.journal.record(GroupFailed(group=1, reason="too often"))
    filtered = run.group(*pair, ready=False)
    run.journal.record(GroupFiltered(group=filtered, reason="all rewards are equal", rewards=(1.0, 1.0)))
    run.step(1, first)
    advantages, logprobs = np.array([-1, -1, 0, 0, np.nan], np.float32), np.full(5, -0.75, np.float32)
    values = TokenValues(step=1, group=first, sibling=1, advantages=advantages, trainer_logprobs=logprobs)
    run.journal.record_token_values([values])
    surplus = run.group(*pair, attempt(sibling=2, reward=0.25), siblings=(0, 1))
    stale = run.group(attempt(prompt="old"), ready=False)
    run.journal.record(GroupStale(group=stale, reason="too old"))
    run.step(2, surplus)
    undone = run.group(attempt(turn("9-9=", "0", version=2), prompt="9-9="), attempt(sibling=1, prompt="9-9="))
    run.step(3, undone)
    run.journal.record(RolledBack(to_step=2, reason="resumed"))
    again = run.group(attempt(turn("3*3=", "9", version=2), prompt="3*3=", domain="code", reward=0.75))
    run.step(3, again)
    run.step(4, run.group(attempt(prompt="nan")), refused=True)
    run.group(attempt(prompt="waiting"))
    run.close()


@contextmanager
def viewing(directory: Path) -> Generator[RunView]:
    """The view of a run with a complete index."""
    view = RunView(directory.name, directory)
    view.start()
    try:
        wait_until(lambda: view.state()["index"]["phase"] == "done" or view.error is not None)
        view.refresh()
        yield view
    finally:
        view.close()


def wait_until(reached: Callable[[], Any]) -> Any:
    """The first true result."""
    limit = time.monotonic() + DEADLINE_S
    while not (result := reached()):
        assert time.monotonic() < limit, "not reached in time"
        time.sleep(0.02)
    return result


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


@dataclass(frozen=True)
class Client:
    """Requests with the token, or with other headers."""

    base: str

    def get(self, path: str, *, method: str = "GET", **headers: str) -> Answer:
        sent = {"Authorization": f"Bearer {TOKEN}"} | {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self.base + path, headers=sent, method=method)
        opener = urllib.request.build_opener(_NoRedirects)
        try:
            with opener.open(request, timeout=DEADLINE_S) as response:
                return Answer(response.status, dict(response.headers), response.read())
        except urllib.error.HTTPError as error:
            return Answer(error.code, dict(error.headers), error.read())

    def json(self, path: str) -> Any:
        answer = self.get(path)
        assert answer.status == 200, answer
        return answer.json

    def settle(self, run: str) -> dict[str, Any]:
        """The state once the index is complete."""

        self.get(f"/api/runs/{run}/facets")  # it needs the index, which is built then

        def complete() -> Any:
            state = self.json(f"/api/runs/{run}/state")
            return state if state["index"]["phase"] == "done" or state["index"]["error"] else None

        return wait_until(complete)


@contextmanager
def serving(folder: Path) -> Generator[Client]:
    """The server for a folder, on a thread."""
    server = WatchServer(RunFolder(folder), ServerAddress(token=TOKEN))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(DEADLINE_S)
        yield Client(server.link.partition("/?")[0])
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(DEADLINE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def column(rows: Sequence[dict[str, Any]], name: str) -> list[Any]:
    return [row[name] for row in rows]
