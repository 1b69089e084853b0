"""Audits the rewards of a run: for `roll audit rewards` on many tasks, at the start of `roll train` on a few.

Imports no torch.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import typer
from rich.console import Console

from roll.config.schema import Run
from roll.data.dataset import read_tasks, rows_at_start
from roll.data.tasks import Seeds
from roll.rewards.audit import AuditSubject, RewardAudit, audit_reward, sample
from roll.rewards.base import RewardService, stop_rewards
from roll.tracking.log import announce
from roll.tracking.progress import bar
from roll.types import Task
from roll.wiring.audits import audit_subjects
from roll.wiring.services import build_reward_service

if TYPE_CHECKING:
    from roll.rollout.source import TaskSource  # imports torch

_MOST_ROWS = 20
"""Failing rows printed per reward; --json has all."""
_SEEDS = 1000
"""Tasks of a source without rows, where all are asked for."""
_MOST_NAMED = 5
"""Rows that a warning at the start of a run names."""
_START_S = 4.0
"""Seconds of the audit at the start of a run; no score starts later."""


def audit_run(run: Run, *, num: int | None, costly: bool = False) -> list[RewardAudit]:
    """Audit the rewards of all sources, training and held-out, on `num` tasks each; None: on all."""
    service = build_reward_service(run.rewards)
    subjects: list[AuditSubject] = []
    for prefix, sources in (("", run.tasks), ("validation ", run.validation.tasks)):
        for source in sources:
            tasks = () if source.reward is None else _choose(read_tasks(source), num)
            each = audit_subjects(source, tasks, service, costly=costly)
            subjects += [replace(subject, domain=f"{prefix}{subject.domain}") for subject in each]
    return asyncio.run(_audit_all(subjects, service))


def _choose(tasks: Sequence[Task], num: int | None) -> list[Task]:
    """The tasks to try; of tasks that an environment makes from seeds, never all."""
    return sample(tasks, _SEEDS if num is None and isinstance(tasks, Seeds) else num)


async def _audit_all(subjects: Sequence[AuditSubject], service: RewardService) -> list[RewardAudit]:
    await service.start()
    try:
        with bar(_num_trials(subjects), "auditing rewards", console=Console(stderr=True)) as advance:
            return [await audit_reward(subject, advance=advance) for subject in subjects]
    finally:
        await stop_rewards(service, partial(typer.echo, err=True))


def _num_trials(subjects: Sequence[AuditSubject]) -> int:
    return sum(2 * len(subject.tasks) for subject in subjects if subject.score is not None)


async def audit_at_start(run: Run, sources: Sequence[TaskSource], service: RewardService) -> list[RewardAudit]:
    """Audit the built-in rewards of the training tasks on `rewards.audit` tasks per source, within seconds.

    A reward of the user's may have state or costs, so that only `roll audit rewards` calls it with cheats. Prints a
    summary, and a warning that names the tasks for every finding. Draws no random number.
    """
    began, outcomes = time.monotonic(), list[RewardAudit]()
    chosen = [sample(rows_at_start(source.tasks), run.rewards.audit) for source in sources]
    groups = [audit_subjects(*each, service, own=False) for each in zip(run.tasks, chosen, strict=True)]
    subjects = [subject for group in groups for subject in group if subject.score is not None and subject.tasks]
    if not subjects:
        return []
    with bar(_num_trials(subjects), "auditing rewards") as advance:
        for index, subject in enumerate(subjects):
            left_s = began + _START_S - time.monotonic()
            deadline = time.monotonic() + max(left_s, 0.0) / (len(subjects) - index)
            outcomes.append(await audit_reward(subject, deadline=deadline, advance=advance))
    num = sum(outcome.tasks for outcome in outcomes)
    num_findings = sum(len(outcome.findings) for outcome in outcomes)
    summary = f"{num_findings} finding{'s' if num_findings > 1 else ''}" if num_findings else "no findings"
    limited = "" if all(outcome.complete for outcome in outcomes) else " (time limit)"
    announce(f"rewards audited on {num} tasks in {time.monotonic() - began:.1f} s{limited}: {summary}")
    for line in (line for outcome in outcomes for line in _warnings(outcome)):
        announce(f"warning: {line}; see `roll audit rewards`", logging.WARNING)
    return outcomes


def _warnings(outcome: RewardAudit) -> list[str]:
    """One line per finding, with the first tasks."""
    where = f"{outcome.domain}: reward {outcome.reward!r}"
    lines: list[str] = []
    if outcome.failing:
        rows = _some([str(row) for row in outcome.failing], "; ")
        lines.append(f"{where}: {len(outcome.failing)} of {outcome.tasks} tasks fail with their own reference: {rows}")
    if outcome.cheated:
        rows = _some([repr(row) for row in outcome.cheated_rows], ", ")
        lines.append(f"{where}: {outcome.findings[-1]}, on tasks {rows} of {outcome.where}")
    return lines


def _some(names: Sequence[str], separator: str, most: int = _MOST_NAMED) -> str:
    more = [f"{len(names) - most} more"] if len(names) > most else []
    return separator.join([*names[:most], *more])


def format_audits(outcomes: Sequence[RewardAudit]) -> str:
    """The tables for a terminal, and the failing rows."""
    rows = [
        (
            outcome.domain,
            outcome.reward,
            str(outcome.tasks) if outcome.cheats else "-",
            f"{outcome.passed} of {outcome.references}" if outcome.cheats else "-",
            _highest(outcome),
            outcome.verdict,
        )
        for outcome in outcomes
    ]
    lines = _table([("domain", "reward", "tasks", "references at 1", "best cheat", "verdict"), *rows])
    scores = [(f"  {each.domain}/{each.reward}", _scores(each)) for each in outcomes if each.cheats]
    lines += ["", "highest score of each cheat:", *_table(scores)] if scores else []
    for outcome in outcomes:
        names_of_rows = [str(row) for row in outcome.failing]
        if names_of_rows:
            shown = _some(names_of_rows, "\n  ", _MOST_ROWS)
            lines += ["", f"{outcome.domain}/{outcome.reward}: tasks that fail with their own reference:", f"  {shown}"]
        if outcome.cheated:
            ids = _some([repr(row) for row in outcome.cheated_rows], ", ", _MOST_ROWS)
            lines += ["", f"{outcome.domain}/{outcome.reward}: tasks of {outcome.where} that accept a cheat: {ids}"]
    return "\n".join(lines)


def _highest(outcome: RewardAudit) -> str:
    if not outcome.cheats:
        return "-"
    name = max(outcome.cheats, key=lambda each: outcome.cheats[each])
    return f"{outcome.cheats[name]:.2g} ({name})" if outcome.cheats[name] else "0"


def _scores(outcome: RewardAudit) -> str:
    """The cheats with a score, and the number of those without one."""
    scores = {name: score for name, score in outcome.cheats.items() if score}
    num_zeros = len(outcome.cheats) - len(scores)
    return "; ".join([f"0 for {num_zeros} cheats", *(f"{score:.2g} for {name}" for name, score in scores.items())])


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def to_json(outcomes: Sequence[RewardAudit]) -> str:
    """All outcomes as one JSON list."""
    rows = [{**asdict(each), "verdict": each.verdict, "findings": each.findings} for each in outcomes]
    return msgspec.json.encode(rows).decode()
