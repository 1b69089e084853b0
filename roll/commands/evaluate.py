"""`roll eval`: measures a model on the validation tasks of a run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import typer

from roll.commands.lifecycle import await_with_routing, routing, running, write_rows
from roll.config.load import LoadedRun
from roll.config.schema import Run
from roll.data.templates import Template
from roll.errors import ConfigError
from roll.rollout.source import check_environments
from roll.rollout.validation import summarise
from roll.tracking.progress import bar
from roll.types import Trajectory
from roll.wiring.data import build_held_out
from roll.wiring.models import build_roles
from roll.wiring.proxy import build_attempt_runners, build_proxy
from roll.wiring.run import build_validator
from roll.wiring.services import build_environments, build_reward_service, check_sandboxes


def evaluate(loaded: LoadedRun, *, output: Path | None) -> None:
    """Attempt the validation tasks with the initial model; print the metrics, and write the attempts to `output`."""
    if not loaded.run.validation.tasks:
        raise ConfigError(f"{loaded.path}: nothing to evaluate; add validation.tasks")
    check_sandboxes(loaded, training=False)
    asyncio.run(_evaluate(loaded.run, output))


async def _evaluate(run: Run, output: Path | None) -> None:
    roles = build_roles(run, run.actor_train.optimizer, run.steps, supervised=True)
    rewards, envs, proxy = build_reward_service(run.rewards), build_environments(run, roles.executor), build_proxy(run)
    held_out, screened = build_held_out(run, roles.template, rewards, envs.make, build_attempt_runners(run, proxy))
    for account in screened:
        typer.echo(str(account))
    validator = build_validator(run, roles, held_out)
    async with running(roles, rewards, envs, proxy):
        await check_environments(envs, held_out, tools=roles.template.tool_form is not None)
        async with routing(roles) as router_task:
            with bar(validator.num_tasks, "evaluation") as advance:
                results = await await_with_routing(validator.run(advance), router_task)
    for name, value in summarise(results).items():
        typer.echo(f"{name.removeprefix('validation/')}: {value:.4f}")
    if output is not None:
        rows = [_row(name, attempt, roles.template) for name, attempts in results.items() for attempt in attempts]
        write_rows(output, rows)
        typer.echo(f"{len(rows)} attempts: {output}")


def _row(source: str, trajectory: Trajectory, template: Template) -> dict[str, Any]:
    """One attempt as a line of the output file."""
    return {
        "source": source,
        "id": trajectory.task.id,
        "status": str(trajectory.status),
        "reason": trajectory.reason,
        "reward": trajectory.reward if trajectory.status.valid else None,
        "metrics": trajectory.metrics,
        "responses": [template.decode(turn.sampled) for turn in trajectory.turns],
    }
