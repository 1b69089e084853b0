"""Seconds until a generator that joins a running job has its share of the work, and what is lost when one leaves.

A real run over Ray with a small model. One generator serves; a second one joins on request, works, and leaves while it
has requests. The share is that of the time in which generators had requests, from the spans of the journal.
"""

from __future__ import annotations

import json
import signal
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from benchmarks.recovery import read_events
from benchmarks.result import Result
from roll.journal.events import GeneratorJoined, GeneratorLeft, TokensGenerated
from roll.journal.records import ActivitySpan, JournalEntry
from roll.report.journals import open_journal
from roll.report.verify import describe_violations, verify
from roll.tracking.directory import METRICS
from roll.tracking.sinks import read_lines
from roll.tracking.wanted import WantedGenerators
from roll.types import Task

ROUNDS = 3
"""Joins and leaves."""
LIMIT_S = 30.0
"""Goal for every join, from the request to the share."""
WINDOW_S = 10.0
"""Time after the first tokens of a generator in which its share counts."""
SHARE = 0.4
"""Least share of one of two generators; an equal one is 0.5."""
BETWEEN_S = 20.0
"""Time before every request, in which the job runs unchanged."""
NAME = "elastic"
ALPHABET = string.digits + string.ascii_letters + "+=-*"
"""Many letters, so that an untrained model seldom ends a response."""
_WAIT_S = 300.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticRound:
    """One join, and the leave after it."""

    seconds: float
    """From the request to the first request of the generator that joined."""
    process_s: float
    """Part of it: from the start of the process until it may serve."""
    share: float
    """Of the generating time of all generators in the window that begins then."""
    tokens_per_s: tuple[float, float]
    """Sampled tokens per second before the request, and between join and leave."""
    num_requests: int
    """Requests that the generator had when it left."""
    num_tokens: int
    """Tokens of these requests, with which they went on."""


def even(task: Task, response: str) -> float:
    """Share of even digits among the first characters."""
    return sum(letter in "02468" for letter in response[:8]) / 8


def run() -> Result:
    """The longest time from a request to the first tokens; no share below `SHARE`, nothing lost."""
    with tempfile.TemporaryDirectory() as folder:
        rounds = measure(Path(folder), ROUNDS)
    for each in rounds:
        before, after = each.tokens_per_s
        typer.echo(
            f"first tokens {each.seconds:.1f} s after the request, share {each.share:.2f}; {before:.0f} tokens/s "
            f"before, {after:.0f} with both; left with {each.num_requests} requests of {each.num_tokens} tokens"
        )
    return Result(
        name="elastic",
        unit="s",
        higher_is_better=False,
        ours=max(each.seconds for each in rounds),
        bound=LIMIT_S,
        details={
            "seconds": [round(each.seconds, 2) for each in rounds],
            "process_s": [round(each.process_s, 2) for each in rounds],
            "share": [round(each.share, 3) for each in rounds],
            "tokens_per_s": [[round(value) for value in each.tokens_per_s] for each in rounds],
            "moved_requests": [each.num_requests for each in rounds],
            "moved_tokens": [each.num_tokens for each in rounds],
            "lost_trajectories": 0,
        },
    )


def measure(folder: Path, num_rounds: int) -> list[ElasticRound]:
    """All rounds of one run, which is then verified."""
    run = _ElasticRun(folder)
    try:
        run.wait_for(lambda: len(run.steps()) > 10)
        times = [run.join_and_leave() for _ in range(num_rounds)]
        run.process.send_signal(signal.SIGINT)
        run.process.wait(_WAIT_S)
    finally:
        run.end()
    verification = verify(run.directory)
    assert not verification.violations, list(describe_violations(verification))
    return run.rounds(times)


class _ElasticRun:
    """A run of the command line."""

    def __init__(self, folder: Path) -> None:
        self.directory = folder / NAME
        file = folder / "run.json"
        file.write_text(json.dumps(_config(folder)), encoding="utf-8")
        self._log = (folder / "output").open("w", encoding="utf-8")
        command = [sys.executable, "-m", "roll", "train", str(file)]
        self.process = subprocess.Popen(command, stdout=self._log, stderr=self._log, start_new_session=True)

    def end(self) -> None:
        """Kill it if it has not ended."""
        self.process.kill()
        self.process.wait()
        self._log.close()

    def wait_for(self, reached: Callable[[], bool]) -> None:
        """Wait for a condition while the run goes on."""
        deadline = time.monotonic() + _WAIT_S
        while not reached():
            output = Path(self._log.name).read_text(encoding="utf-8")[-2000:]
            assert self.process.poll() is None, output
            assert time.monotonic() < deadline, output
            time.sleep(_POLL_S)

    def steps(self) -> list[dict[str, Any]]:
        """The metrics of the steps so far."""
        path = self.directory / METRICS
        return read_lines(path) if path.is_file() else []

    def join_and_leave(self) -> tuple[float, float]:
        """Times of the requests to join and to leave."""
        time.sleep(BETWEEN_S)
        number, asked = len(read_events(self.directory, GeneratorJoined)), time.time()
        WantedGenerators(number=2).write(self.directory)
        self.wait_for(lambda: len(read_events(self.directory, GeneratorJoined)) > number)
        time.sleep(BETWEEN_S)
        left = time.time()
        WantedGenerators(number=1).write(self.directory)
        self.wait_for(lambda: len(read_events(self.directory, GeneratorLeft)) > number)
        return asked, left

    def rounds(self, times: Sequence[tuple[float, float]]) -> list[ElasticRound]:
        """What happened in each round, from the journal of the ended run."""
        with open_journal(self.directory) as reader:
            spans = [span for span in reader.spans() if span.activity == "generate"]
            tokens = [(entry.time, entry.event.tokens) for entry in reader.events(TokensGenerated)]
            joins, leaves = list(reader.events(GeneratorJoined)), list(reader.events(GeneratorLeft))
        return [
            round_of(each, join, leave, spans, tokens) for each, join, leave in zip(times, joins, leaves, strict=True)
        ]


def round_of(
    times: tuple[float, float],
    join: JournalEntry[GeneratorJoined],
    leave: JournalEntry[GeneratorLeft],
    spans: Sequence[ActivitySpan],
    tokens: Sequence[tuple[float, int]],
) -> ElasticRound:
    """One round, from the times of its requests, its events, all spans of generators, and tokens by time."""
    asked, left = times
    own = f"generator-{join.event.generator}"
    first = min(span.start for span in spans if span.worker == own and span.start >= asked)
    window = first, first + WINDOW_S
    busy_s = {worker: generating_s(spans, worker, window) for worker in sorted({span.worker for span in spans})}
    share = busy_s[own] / sum(busy_s.values())
    assert share >= SHARE, f"generator {join.event.generator} had {share:.2f} of the work after it had joined: {busy_s}"
    return ElasticRound(
        seconds=first - asked,
        process_s=join.event.seconds,
        share=share,
        tokens_per_s=(speed(tokens, asked - BETWEEN_S, asked), speed(tokens, first, left)),
        num_requests=leave.event.num_requests,
        num_tokens=leave.event.num_tokens,
    )


def generating_s(spans: Sequence[ActivitySpan], worker: str, window: tuple[float, float]) -> float:
    """Seconds of a window in which a worker had requests."""
    begin, end = window
    own = (span for span in spans if span.worker == worker)
    return sum(max(0.0, min(span.end, end) - max(span.start, begin)) for span in own)


def speed(tokens: Sequence[tuple[float, int]], begin: float, end: float) -> float:
    """Tokens per second between two times; each number counts from the one before it."""
    inside = [(time_s, number) for time_s, number in tokens if begin <= time_s <= end]
    return sum(number for _, number in inside[1:]) / (inside[-1][0] - inside[0][0])


def _config(folder: Path) -> dict[str, Any]:
    shape = {"alphabet": ALPHABET, "hidden": 64, "layers": 2, "heads": 4, "kv_heads": 2, "mlp": 128, "max_seq_len": 256}
    return {
        "name": NAME,
        "directory": str(folder),
        "executor": "ray",
        "threads": 1,
        "steps": 1_000_000,
        "model": {"shape": shape},
        "algorithm": {"recipe": "grpo", "correction": "truncate"},
        "tasks": [{"name": "sums", "data": {"kind": "arithmetic"}, "reward": "benchmarks.elastic:even"}],
        "rollout": {
            "groups_per_step": 8,
            "group_size": 4,
            "max_staleness": 1,
            "max_seq_len": 256,
            "max_new_tokens": 200,
        },
        "actor_train": {"devices": "cpu", "optimizer": {"lr": 1e-5}},
        "actor_infer": {"devices": "cpu", "workers": 1, "min_workers": 1, "max_workers": 2, "max_num_seqs": 8},
        "validation": {"at_start": False},
        "checkpoint": {"every": 0},
        "tracking": {"tensorboard": False},
    }
