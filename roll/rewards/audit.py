"""Audits a reward before training: right responses must score 1, and known cheats must score nothing.

| kind of reward | references | cheats |
|---|---|---|
| compares with an answer: `math`, `code`, `choice` ... | must score 1 | must score 0, or far less than 1 if graded |
| checks the form of a response: `ifeval`, `regex`, `json_schema` | must score 1 | responses without content score 0 |
| shapes a response: `format`, `length`, `repetition` | not a verifier | not a verifier |
| any other, such as your own | must score 1, if one does and none scores more | judged in this case alone |
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from roll.errors import root_cause
from roll.registry import REWARDS
from roll.rewards import cheats
from roll.rewards.references import RightResponse, answers, references
from roll.rewards.result import RewardFault, RewardResult
from roll.types import Task

ANSWERS = ("exact", "math", "choice", "f1", "code", "reasoning_gym", "judge")
"""Rewards that compare a response with the answer or the tests of its task."""
FORMS = ("ifeval", "regex", "json_schema")
"""Rewards that any response of the right form earns; only responses without content are cheats."""
SHAPES = {
    "format": "checks the tags alone",
    "length": "measures the length alone",
    "repetition": "measures repetition alone",
}
"""Rewards that say nothing about being right, and what they do."""
COSTLY = ("judge", "remote", "model")
"""Rewards that call a model or a service."""

PROMPT, OTHER, TWO, OPTIONS, THOUGHT = "prompt", "another answer", "two answers", "every option", "answer in thinking"
_BY_CHANCE = (PROMPT, OTHER)
"""Cheats that may be right for a few tasks: a prompt may contain its answer."""
_SHARED = (PROMPT, OTHER, TWO, OPTIONS, THOUGHT, "returned argument")
"""Cheats made from the answer or the prompt, which may earn a part of a graded score."""
_CHANCE = 0.1
"""Largest share of tasks for which a cheat may be right by chance."""
_RIGHT = 1 - 1e-6
_MOST_PARTIAL = 0.5
"""Largest score of a cheat that shares nothing with the answer."""
_MAX_CONCURRENT = 32
_MAX_OTHERS = 256
_MAX_NAMES = 4
"""Cheats that a verdict names."""
_FOR_PROGRAMS = (*cheats.BLANKS, "refusal", "grader's words")
_NOTATION = re.compile(r"[\s$,{}()\\]+|text")

T = TypeVar("T")
ScoreFn = Callable[[Task, str], Awaitable[RewardResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSubject:
    """One reward of one task source, and the tasks to try it on."""

    domain: str
    where: str
    """The file or dataset of the tasks."""
    reward: str
    """Its name in the table."""
    kind: str
    tasks: Sequence[Task] = ()
    score: ScoreFn | None = None
    """None: the reward is not tried."""
    skipped: str = ""
    """Why it is not tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingRow:
    """A task whose own reference does not score 1, or that cannot be scored."""

    where: str
    id: str
    origin: str
    """The field with the reference; empty if no response can be scored."""
    score: float | None
    reason: str = ""

    def __str__(self) -> str:
        what = f"{self.origin} scores {self.score:g}" if self.score is not None else self.reason
        return f"{self.where}: task {self.id!r}: {what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardAudit:
    """The outcome for one reward of one source."""

    domain: str
    where: str
    reward: str
    skipped: str = ""
    """Why there are no numbers; empty if there are."""
    tasks: int = 0
    """Tasks tried."""
    references: int = 0
    """Tasks that give a right response."""
    passed: int = 0
    """Tasks whose right responses all score 1."""
    failing: tuple[FailingRow, ...] = ()
    cheats: dict[str, float] = field(default_factory=dict[str, float])
    """Highest score of each cheat."""
    cheated: dict[str, int] = field(default_factory=dict[str, int])
    """Tasks on which a cheat scored too much, by cheat; only those that are findings."""
    by_chance: dict[str, int] = field(default_factory=dict[str, int])
    """The same for cheats that are right for so few tasks that it may be chance."""
    cheated_rows: tuple[str, ...] = ()
    """Ids of tasks on which such a cheat scored too much."""
    unscored: int = 0
    """Cheats without a score."""
    complete: bool = True
    """False if the time limit ended it."""

    @property
    def findings(self) -> list[str]:
        """What must be fixed before training; empty if nothing."""
        lines = list[str]()
        if self.failing:
            lines.append(f"{len(self.failing)} of {self.tasks} tasks fail with their own reference")
        if self.cheated:
            counts = [f"{name} ({count} of {self.tasks})" for name, count in self.cheated.items()]
            more = [f"{len(counts) - _MAX_NAMES} more"] if len(counts) > _MAX_NAMES else []
            lines.append(f"cheats that score: {', '.join([*counts[:_MAX_NAMES], *more])}")
        return lines

    @property
    def verdict(self) -> str:
        """One phrase for the table."""
        if self.skipped or self.findings:
            return self.skipped or "; ".join(self.findings)
        notes = ["ok", *(f"{name} right by chance on {count}" for name, count in self.by_chance.items())]
        highest = max((score for name, score in self.cheats.items() if name not in self.by_chance), default=0.0)
        notes += [f"partial credit up to {highest:.2g}"] if highest > 0 else []
        notes += [] if self.references else ["no task gives a reference"]
        notes += [f"{self.unscored} cheats without a score"] if self.unscored else []
        return "; ".join(notes)


def built_in_name(kind: str) -> str:
    """The short name of a built-in reward, also if it is named by its import path; any other kind unchanged."""
    if ":" not in kind:
        return kind
    return next((name for name, target in REWARDS.targets.items() if target == kind), kind)


def sample(tasks: Sequence[T], num: int | None) -> list[T]:
    """At most `num` tasks, evenly spaced over all; None: all of them. Draws nothing."""
    size = len(tasks)
    count = size if num is None else min(num, size)
    return [tasks[index * size // count] for index in range(count)]


async def audit_reward(
    subject: AuditSubject,
    *,
    deadline: float = math.inf,
    grace_s: float = 3.0,
    advance: Callable[[int], None] = lambda num: None,
    clock: Callable[[], float] = time.monotonic,
) -> RewardAudit:
    """Try the references of all tasks of the subject, then the cheats.

    No score starts after `deadline` of the clock, and those in flight are cancelled `grace_s` later. `advance` is
    called twice per task, at most.
    """
    trial, num = _Trial(subject, lambda: clock() >= deadline), len(subject.tasks)
    if subject.score is None or subject.skipped:
        return trial.conclude()
    left_s = None if deadline == math.inf else max(deadline - clock(), 0.0) + grace_s
    judged = subject.kind in (*ANSWERS, *FORMS)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(left_s):
            await _run_all(trial.check_references, num, advance)
            judged = judged or trial.graded
            if judged:
                await _run_all(trial.try_cheats, num, advance)
    if judged:
        return trial.conclude()
    reason = "no reference scores exactly 1" if trial.num_references else "no task gives a reference"
    return replace(trial.conclude(), failing=(), skipped=f"not judged: {reason}")


async def _run_all(work: Callable[[int], Awaitable[None]], num: int, advance: Callable[[int], None]) -> None:
    """Do the work for the tasks 0 to `num`, a bounded number of them at a time."""
    slots = asyncio.Semaphore(_MAX_CONCURRENT)

    async def run(index: int) -> None:
        async with slots:
            await work(index)
            advance(1)

    try:
        async with asyncio.TaskGroup() as group:
            for index in range(num):
                group.create_task(run(index))
    except BaseExceptionGroup as errors:
        raise root_cause(errors) from None


class _Trial:
    """The responses tried on one reward, and their scores so far."""

    def __init__(self, subject: AuditSubject, expired: Callable[[], bool]) -> None:
        self.subject, self.expired = subject, expired
        self.tried = self.num_references = self.passed = self.unscored = 0
        self.largest = -math.inf
        """Highest score of a reference."""
        self.failing: dict[str, FailingRow] = {}
        self.highest: dict[str, float] = {}
        self.cheated: dict[str, list[str]] = {}
        """Ids of tasks by cheat."""

    async def check_references(self, index: int) -> None:
        """Score the references of a task, up to the first that fails."""
        task = self.subject.tasks[index]
        right = references(self.subject.kind, task)
        for reference in right:
            row = await self._failing_row(task, reference)
            if self.expired():
                return
            if row is not None:
                self.failing[task.id] = row
                break
        self.tried += 1
        self.num_references += bool(right)
        self.passed += bool(right) and task.id not in self.failing

    async def _failing_row(self, task: Task, reference: RightResponse) -> FailingRow | None:
        """The row if no form of the reference scores 1."""
        scores, reasons = list[float](), list[str]()
        for form in reference.forms:
            result = await self._score(task, form)
            if result is None:
                return None
            if result.score is None:
                reasons.append(result.reason)
            else:
                scores.append(result.score.total)
                self.largest = max(self.largest, scores[-1])
                if scores[-1] >= _RIGHT:
                    return None
        best = max(scores) if scores else None
        return self._row(task, origin=reference.origin, score=best, reason=reasons[0] if best is None else "")

    @property
    def graded(self) -> bool:
        """Whether the reward looks like a verifier: references score 1, and none more."""
        return abs(self.largest - 1) < 1 - _RIGHT

    async def try_cheats(self, index: int) -> None:
        """Score all cheats for a task; a task that cannot be scored becomes a failing row."""
        task = self.subject.tasks[index]
        for name, texts in cheats_of(self.subject, index).items():
            highest = 0.0
            for text in texts:
                result = await self._score(task, text)
                if result is None:
                    return
                if result.fault is RewardFault.TASK:
                    self.failing.setdefault(task.id, self._row(task, reason=result.reason))
                    return
                self.unscored += result.score is None
                highest = max(highest, result.score.total if result.score is not None else 0.0)
            self.highest[name] = max(highest, self.highest.get(name, 0.0))
            if highest >= _RIGHT if name in _SHARED else highest > _MOST_PARTIAL:
                self.cheated.setdefault(name, []).append(task.id)

    async def _score(self, task: Task, response: str) -> RewardResult | None:
        """The result, or None if time has expired."""
        assert self.subject.score is not None, "skipped subjects have no trial"
        return None if self.expired() else await self.subject.score(task, response)

    def _row(self, task: Task, *, origin: str = "", score: float | None = None, reason: str = "") -> FailingRow:
        return FailingRow(where=self.subject.where, id=task.id, origin=origin, score=score, reason=reason)

    def conclude(self) -> RewardAudit:
        """The outcome so far."""
        most = max(1.0, _CHANCE * self.tried)
        by_chance = {name: len(self.cheated.get(name, ())) for name in _BY_CHANCE}
        by_chance = {name: count for name, count in by_chance.items() if 0 < count <= most}
        cheated = {name: rows for name, rows in self.cheated.items() if name not in by_chance}
        return RewardAudit(
            domain=self.subject.domain,
            where=self.subject.where,
            reward=self.subject.reward,
            skipped=self.subject.skipped,
            tasks=self.tried,
            references=self.num_references,
            passed=self.passed,
            failing=tuple(self.failing.values()),
            cheats=self.highest,
            cheated={name: len(rows) for name, rows in cheated.items()},
            by_chance=by_chance,
            cheated_rows=tuple(dict.fromkeys(row for rows in cheated.values() for row in rows)),
            unscored=self.unscored,
            complete=not self.expired(),
        )


def cheats_of(subject: AuditSubject, index: int) -> dict[str, tuple[str, ...]]:
    """All cheats for one task of the subject, by name."""
    task, kind = subject.tasks[index], subject.kind
    if kind in FORMS:
        return cheats.BLANKS
    tries = {**cheats.BLANKS, **cheats.TEXTS, PROMPT: cheats.echoes(task)}
    if kind == "code":
        tries = {name: tries[name][:1] for name in (*_FOR_PROGRAMS, PROMPT)}
        for name, texts in cheats.programs(task).items():
            tries[name] = (*tries.get(name, ()), *texts)
    right, other = references(kind, task), _other(subject.tasks, index)
    if other is not None and (wrong := references(kind, other)):
        tries[OTHER] = wrong[0].forms[:1]
        if kind != "code" and answers(task):
            tries[TWO] = cheats.two_answers(answers(task)[0], answers(other)[0])
    if right:
        tries[THOUGHT] = (f"<think>{right[0].forms[0]}</think>",)
    tries[OPTIONS] = cheats.all_options(task)
    return {name: texts for name, texts in tries.items() if texts}


def _other(tasks: Sequence[Task], index: int) -> Task | None:
    """The next task with a different answer."""
    expected = {_plain(text) for text in answers(tasks[index])} or {tasks[index].id}
    for offset in range(1, min(len(tasks), _MAX_OTHERS)):
        task = tasks[(index + offset) % len(tasks)]
        if not expected & ({_plain(text) for text in answers(task)} or {task.id}):
            return task
    return None


def _plain(text: str) -> str:
    """An answer without notation, so that two spellings of one number are equal."""
    bare = _NOTATION.sub("", text).casefold().strip(".")
    try:
        return repr(float(bare))
    except ValueError:
        return bare
