"""Run directories written by the real journal, with contents that a test chooses: any text, reward and step."""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roll.data.templates import character_tokenizer
from roll.journal.events import (
    AdvantagesAssigned,
    GroupAdmitted,
    GroupReady,
    RunEnded,
    RunStarted,
    SlotsReleased,
    StepStarted,
    WeightsPublished,
    WeightsUpdated,
)
from roll.journal.store import Journal
from roll.types import Finish, Message, Score, Segment, Status, Task, Trajectory, Turn

ALPHABET = "\n\x1b\u202e !\"'()*+,-./0123456789:;<=>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz"
BREAKS_AT = 23
"""First step of `write_broken_run` whose `units` are scored by the buggy verifier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What a test says about one attempt."""

    domain: str
    prompt: str
    response: str
    reward: float
    answer: str = ""
    comment: str = ""
    reason: str = ""


class WrittenRun:
    """A run that trains whenever the test says so."""

    def __init__(self, directory: Path, num_steps: int) -> None:
        directory.mkdir(parents=True)
        self.directory, self.step, self.group = directory, 0, 0
        config = f"name: {directory.name}\nsteps: {num_steps}\nmodel: {{shape: {{alphabet: ab}}}}\nalgorithm: grpo\n"
        (directory / "config.yaml").write_text(config, encoding="utf-8")
        self._tokenizer = character_tokenizer(ALPHABET)
        self._tokenizer.save_pretrained(directory / "tokenizer")
        self.journal = Journal(directory / "journal.db")
        self.journal.record(RunStarted(config_digest="1"))
        self._publish()
        self._write_metrics({})

    def train(self, groups: list[list[Attempt]], **metrics: float) -> None:
        """One step: the groups are admitted, sampled, trained on and published, each at the time of its call."""
        first, start = self.group, time.time()
        for group in groups:
            self._sample(group)
        self.step += 1
        numbers = tuple(range(first, self.group))
        self.journal.record(StepStarted(step=self.step, groups=numbers))
        rewards = {number: [each.reward for each in group] for number, group in zip(numbers, groups, strict=True)}
        advantages: dict[int, dict[int, float | None]] = {
            number: {sibling: value - float(np.mean(values)) for sibling, value in enumerate(values)}
            for number, values in rewards.items()
        }
        self.journal.record(AdvantagesAssigned(step=self.step, advantages=advantages))
        self.journal.record(WeightsUpdated(step=self.step, refused=False))
        self._publish()
        self.journal.record(SlotsReleased(step=self.step))
        self.journal.record_span("generator 0", "generate", start, time.time())
        self._write_metrics(self._domain_metrics(groups) | metrics)
        self.journal.flush()

    def end(self) -> None:
        """The last event; nothing is written after it."""
        self.journal.record(RunEnded(step=self.step, reason="finished"))
        self.journal.close()

    def _sample(self, group: list[Attempt]) -> None:
        domain, prompt = group[0].domain, group[0].prompt
        task = Task(id=f"{domain}-{self.group}", domain=domain, messages=(Message("user", prompt),))
        self.journal.record(GroupAdmitted(group=self.group, task=task.id, domain=domain, birth=self.step))
        for sibling, attempt in enumerate(group):
            self.journal.record_trajectory(self.group, self._trajectory(sibling, attempt, task.id))
        self.journal.record(GroupReady(group=self.group))
        self.group += 1

    def _trajectory(self, sibling: int, attempt: Attempt, task: str) -> Trajectory:
        prompt, response = (self._tokenizer.encode(text) for text in (attempt.prompt, attempt.response))
        turn = Turn(
            observation=np.array(prompt, np.int32),
            sampled=np.array(response, np.int32),
            sampler_logprobs=np.linspace(-0.01, -3.0, len(response)).astype(np.float32),
            versions=np.full(len(response), self.step, np.int32),
            finish=Finish.STOP,
            generated_s=0.01,
        )
        messages = (Message("user", attempt.prompt),)
        failed = bool(attempt.reason)
        return Trajectory(
            task=Task(id=task, domain=attempt.domain, messages=messages, answer=attempt.answer),
            sibling=sibling,
            segments=(Segment(turns=(turn,)),),
            status=Status.ENV_FAILED if failed else Status.FINISHED,
            score=None if failed else Score(attempt.reward, {"right": attempt.reward}, attempt.comment),
            reason=attempt.reason,
        )

    def _publish(self) -> None:
        seconds = {"send": 0.002, "receive": 0.003, "canary": 0.01}
        event = WeightsPublished(
            version=self.step, step=self.step, digest=f"torch.float32:{self.step:08x}", seconds=seconds
        )
        self.journal.record(event)

    def _domain_metrics(self, groups: list[list[Attempt]]) -> dict[str, float]:
        """What the loop reports about rewards, worked out from the attempts."""
        rewards: dict[str, list[float]] = {}
        for attempt in (attempt for group in groups for attempt in group):
            rewards.setdefault(attempt.domain, []).append(attempt.reward)
        every = [reward for values in rewards.values() for reward in values]
        means = {f"domain/{domain}/reward": float(np.mean(values)) for domain, values in rewards.items()}
        spreads = {f"domain/{domain}/std": float(np.std(values)) for domain, values in rewards.items()}
        domains = [group[0].domain for group in groups]
        counts = {f"domain/{domain}/groups": float(domains.count(domain)) for domain in rewards}
        whole = {
            "reward/mean": float(np.mean(every)),
            "reward/std": float(np.std(every)),
            "trained/groups": len(groups),
        }
        return whole | means | spreads | counts

    def _write_metrics(self, metrics: dict[str, float]) -> None:
        line: dict[str, Any] = {"step": self.step, "time": time.time(), **metrics}
        with (self.directory / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def write_broken_run(directory: Path, num_steps: int = 40) -> None:
    """Two domains that the model learns; from one step on the verifier of `units` rejects every right answer."""
    run, draw = WrittenRun(directory, num_steps), random.Random(5)
    for step in range(1, num_steps + 1):
        groups = [_group(draw, domain, step) for domain in ("sums", "units") for _ in range(4)]
        phases = {"time/wait": 1.5, "time/update": 0.8, "time/publish": 0.2, "time/step": 2.6}
        run.train(groups, **phases, **{"speed/tokens_per_s": 400.0 + 2 * step, "staleness/mean": 0.25})
    run.end()


def _group(draw: random.Random, domain: str, step: int) -> list[Attempt]:
    """Four attempts at the same task."""
    number = draw.randrange(2, 9)
    return [_attempt(domain, step, number, solved=draw.random() < min(0.85, 0.35 + 0.02 * step)) for _ in range(4)]


def _attempt(domain: str, step: int, number: int, *, solved: bool) -> Attempt:
    right = "km" if domain == "units" else ""
    answer = f"{number} {right}".strip()
    response = answer if solved else f"{number + 1} {right}".strip()
    broken = domain == "units" and step >= BREAKS_AT
    compared = answer.split()[0] if broken else answer
    prompt = f"{number}000 m in km?" if domain == "units" else f"1+{number - 1}=?"
    comment = f"compared {response!r} with {compared!r}"
    return Attempt(
        domain=domain,
        prompt=prompt,
        response=response,
        reward=float(response == compared),
        answer=answer,
        comment=comment,
    )
