"""`roll eval`: measures a model on the validation tasks of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from roll.checksums import check_model
from roll.commands.lifecycle import await_with_routing, routing, run_async, running
from roll.config.load import LoadedRun
from roll.config.schema import Run
from roll.errors import ConfigError
from roll.report.attempts import attempt_row, check_output, write_rows
from roll.rollout.source import check_environments
from roll.rollout.validation import describe_failures, summarise
from roll.tracking.progress import bar
from roll.wiring.data import build_held_out
from roll.wiring.models import build_roles
from roll.wiring.proxy import build_attempt_runners, build_proxy
from roll.wiring.run import build_validator
from roll.wiring.services import build_environments, build_reward_service, check_sandboxes


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The attempts of a model at the validation tasks."""

    metrics: dict[str, float]
    """As in a run: `validation/accuracy` and so on."""
    samples: list[dict[str, Any]]
    """One row per attempt."""


def evaluate(loaded: LoadedRun, *, output: Path | None = None) -> Evaluation:
    """Attempt the validation tasks with the initial model; print the metrics, and write the attempts to `output`."""
    if not loaded.run.validation.tasks:
        raise ConfigError(f"{loaded.path}: nothing to evaluate; add validation.tasks")
    if output is not None:
        check_output(output)
    check_sandboxes(loaded, training=False)
    paths = {
        "model.path": loaded.run.model.path,
        **{f"policies.{each.name}": each.path for each in loaded.run.policies},
    }
    for key, path in paths.items():
        if path is not None:
            check_model(Path(path), key)
    return run_async(_evaluate(loaded.run, output))


async def _evaluate(run: Run, output: Path | None) -> Evaluation:
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
    metrics = summarise(results)
    if failures := describe_failures(results):
        typer.echo(failures, err=True)
    for name, value in metrics.items():
        typer.echo(f"{name.removeprefix('validation/')}: {value:.4f}")
    decode = roles.template.decode
    rows = [attempt_row(name, attempt, decode) for name, attempts in results.items() for attempt in attempts]
    if output is not None:
        write_rows(output, rows)
        typer.echo(f"{len(rows)} attempts: {output}")
    return Evaluation(metrics=metrics, samples=rows)
