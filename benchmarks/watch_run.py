"""A run directory with a journal of many attempts, written through the journal's writer as a run writes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from roll.journal.events import (
    AdvantagesAssigned,
    GroupAdmitted,
    GroupReady,
    RunStarted,
    StepStarted,
    TokensGenerated,
    WeightsPublished,
    WeightsUpdated,
)
from roll.journal.store import Journal
from roll.tracking.directory import JOURNAL, METRICS
from roll.types import Finish, Message, Score, Segment, Status, Task, Trajectory, Turn

GROUPS_PER_STEP, SIBLINGS = 32, 8
_DOMAINS = ("sums", "code", "chat")
_WORDS = [
    "so",
    "we",
    "add",
    "the",
    "number",
    "and",
    "carry",
    "one",
    "then",
    "check",
    "that",
    "sum",
    "is",
    "right",
    "because",
    "digits",
    "are",
    "equal",
    "to",
    "answer",
]
_VOCABULARY = [f"{word}{number}" for number in range(60) for word in _WORDS]
_LENGTH = (60, 240)
"""Fewest and most sampled tokens of a response."""


def write_run(directory: Path, num_samples: int) -> None:
    """Write the run, with words as tokens."""
    directory.mkdir(parents=True)
    (directory / "config.yaml").write_text(f"name: {directory.name}\nsteps: 100000\nrollout:\n  num_slots: 64\n")
    _write_tokenizer(directory / "tokenizer")
    journal = Journal(directory / JOURNAL)
    num_steps = max(1, num_samples // (GROUPS_PER_STEP * SIBLINGS))
    with (directory / METRICS).open("w") as metrics:
        journal.record(RunStarted(config_digest="none"))
        journal.record(WeightsPublished(version=0, step=0, digest="torch.float32:0:0"))
        for step in range(1, num_steps + 1):
            rewards = list(write_step(journal, step))
            metrics.write(json.dumps(_metrics(step, rewards)) + "\n")
    journal.close()


def write_step(journal: Journal, step: int) -> Iterator[float]:
    """Record one step with all of its attempts; yields their rewards."""
    random = np.random.default_rng(step)
    groups = range((step - 1) * GROUPS_PER_STEP, step * GROUPS_PER_STEP)
    advantages: dict[int, dict[int, float | None]] = {}
    for group in groups:
        task = _task(group, random)
        journal.record(GroupAdmitted(group=group, task=task.id, domain=task.domain, birth=step - 1))
        rewards = tuple(float(reward) for reward in random.integers(0, 5, SIBLINGS) / 4)
        for sibling, reward in enumerate(rewards):
            journal.record_trajectory(group, attempt(task, sibling, reward, step - 1, random))
        journal.record(GroupReady(group=group, rewards=rewards))
        advantages[group] = {sibling: reward - 0.5 for sibling, reward in enumerate(rewards)}
        yield from rewards
    time = 1.7e9 + step
    for worker, activity in (("trainer-0", "update"), ("generator-0", "generate"), ("reward-0", "score")):
        journal.record_span(worker, activity, time, time + 0.7)
        journal.record_span(worker, "idle: groups", time + 0.7, time + 1)
    journal.record(StepStarted(step=step, groups=tuple(groups)))
    journal.record(AdvantagesAssigned(step=step, advantages=advantages))
    journal.record(WeightsUpdated(step=step, refused=False))
    journal.record(WeightsPublished(version=step, step=step, digest="torch.float32:0:0", seconds={"send": 0.1}))
    journal.record(TokensGenerated(step=step, tokens=1000, unrecorded=0, discarded=0, late=0, bad=0, redispatched=0))


def attempt(task: Task, sibling: int, reward: float, version: int, random: np.random.Generator) -> Trajectory:
    """One attempt with a response of random words."""
    length = int(random.integers(*_LENGTH))
    sampled = random.integers(0, len(_VOCABULARY), length).astype(np.int32)
    turn = Turn(
        observation=random.integers(0, len(_VOCABULARY), 12).astype(np.int32),
        sampled=sampled,
        sampler_logprobs=-random.random(length, dtype=np.float32),
        versions=np.full(length, version, np.int32),
        finish=Finish.STOP,
        generated_s=0.5,
    )
    segments = (Segment(turns=(turn,)),)
    status = Status.FINISHED if length % 16 else Status.TRUNCATED
    return Trajectory(task=task, sibling=sibling, segments=segments, status=status, score=Score(reward))


def _task(group: int, random: np.random.Generator) -> Task:
    prompt = " ".join(_VOCABULARY[int(word)] for word in random.integers(0, len(_VOCABULARY), 12))
    domain = _DOMAINS[group % len(_DOMAINS)]
    return Task(id=f"task-{group}", domain=domain, messages=(Message("user", f"{group}: {prompt}"),), answer="42")


def _metrics(step: int, rewards: list[float]) -> dict[str, float]:
    mean = sum(rewards) / len(rewards)
    names = ("loss/entropy", "length/mean", "staleness/mean", "speed/tokens_per_s", "time/wait", "time/update")
    domains = {f"domain/{domain}/reward": mean for domain in _DOMAINS}
    return {"step": step, "time": 1.7e9 + step, "reward/mean": mean, "reward/std": 0.3, **domains} | dict.fromkeys(
        (*names, *(f"loss/more_{number}" for number in range(40)), "time/step"), mean
    )


def _write_tokenizer(directory: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    directory.mkdir()
    ids = {word: id for id, word in enumerate(_VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=_VOCABULARY[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.save(str(directory / "tokenizer.json"))
