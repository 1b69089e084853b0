"""The section `envs`: the processes that environments run in."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from roll.config.section import Section


class Envs(Section):
    """The processes that environments run in, and the number of concurrent starts."""

    workers: int = Field(default=0, ge=0)
    """Processes, each with many environments. 0: the controller's own thread, where breakpoints work and an
    environment that blocks also blocks the run."""
    executor: Literal["processes", "ray"] = "processes"
    """Start workers on the controller's machine, or let Ray place them (needs `executor: ray` for the run)."""
    max_concurrent_starts: int | None = Field(default=None, gt=0)
    """Most environments that may be starting at once. Time in the queue does not count towards
    `rollout.env_timeout_s`. None: no limit."""
    grace_s: float = Field(default=10.0, gt=0)
    """Seconds for a worker to stop an environment after its timeout, and for an environment to close. A worker that
    takes longer is killed with all of its environments, and replaced."""
    start_timeout_s: float = Field(default=300.0, gt=0)
    """Seconds for a worker to start and to import its environments."""
    memory_mb: int | None = Field(default=None, gt=0)
    """A worker above this size gets no new environments and is replaced after its last one ends; above twice this
    size it is killed. Needs workers and Linux. None: no limit."""

    @model_validator(mode="after")
    def _limits_need_processes(self) -> Envs:
        if self.memory_mb is not None and not self.workers:
            raise ValueError("memory_mb: the controller's own memory has no limit; set workers, or leave it out")
        if self.executor == "ray" and not self.workers:
            raise ValueError(
                "executor (ray): there is nothing to place without processes; set workers, or leave it out"
            )
        if self.executor == "ray" and self.memory_mb is not None:
            raise ValueError("memory_mb: the memory of Ray's processes is not measured; leave it out")
        return self
