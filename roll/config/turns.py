"""Most responses per attempt of a run, and the environments that it cuts short. Imports no code of the user's."""

from __future__ import annotations

import ast

from roll.config.schema import Run
from roll.config.sources import TaskSourceConfig
from roll.errors import ConfigError
from roll.registry import ENVS

_LIMIT_WITHOUT_ENVIRONMENTS = 32
"""Most responses per attempt if no environment of the run has a larger limit."""


def turn_limit(run: Run) -> int:
    """`rollout.max_turns`, else the largest `max_turns` of the run's environments, at least 32."""
    if run.rollout.max_turns is not None:
        return run.rollout.max_turns
    return max([_LIMIT_WITHOUT_ENVIRONMENTS, *(_env_limit(source) or 0 for _, source in _sources(run))])


def turn_warnings(run: Run) -> list[str]:
    """One line per environment whose own limit is higher than `rollout.max_turns`."""
    limit = turn_limit(run)
    return [
        f"warning: rollout.max_turns ends attempts of source {source.name!r} after {limit} of the environment's "
        f"{own_limit} turns; remove rollout.max_turns, or lower {key}.env.max_turns"
        for key, source in _sources(run)
        if (own_limit := _env_limit(source)) is not None and own_limit > limit
    ]


def _sources(run: Run) -> list[tuple[str, TaskSourceConfig]]:
    sections = {"tasks": run.tasks, "validation.tasks": run.validation.tasks, "sft.tasks": run.sft.tasks}
    return [(f"{key}.{index}", source) for key, sources in sections.items() for index, source in enumerate(sources)]


def _env_limit(source: TaskSourceConfig) -> int | None:
    """The `max_turns` of a source's environment, from the file or its default; None if it has none."""
    if source.agent is not None:
        return None
    limit = source.env.kwargs.get("max_turns")
    if limit is None:
        limit = _default(source.env.kind)
    return limit if isinstance(limit, int) else None


def _default(kind: str) -> object:
    try:
        return ast.literal_eval(ENVS.signature(kind).defaults.get("max_turns", "None"))
    except (ConfigError, ValueError, SyntaxError):  # named wrongly, which `roll check` reports, or computed
        return None
