"""Where environments live, as a file writes it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from roll.config.section import Section


class Envs(Section):
    """Where environments live, and how many may come up at once."""

    workers: int = Field(default=0, ge=0)
    """Processes that environments live in, many in each; 0: the controller's own thread, where a breakpoint works, and
    what hangs, hangs."""
    executor: Literal["processes", "ray"] = "processes"
    """Where those are: on the controller's machine, or wherever Ray has room, with a run whose `executor` is `ray`."""
    start_limit: int | None = Field(default=None, gt=0)
    """Most environments that may be starting at once; the others wait for their turn, which costs them no time of
    `rollout.env_timeout_s`. None: no limit."""
    grace_s: float = Field(default=10.0, gt=0)
    """Seconds that a worker has to give way once an environment in it is past its time, and an environment to close;
    a worker that does not is killed with all environments in it, and replaced."""
    start_timeout_s: float = Field(default=300.0, gt=0)
    """Seconds for a worker to come up, with the imports of its environments."""
    memory_mb: int | None = Field(default=None, gt=0)
    """A worker that holds more gets no new environments and is replaced once the last in it has ended; one that holds
    twice as much is killed. Needs workers and Linux. None: no limit."""

    @model_validator(mode="after")
    def _limits_need_processes(self) -> Envs:
        if self.memory_mb is not None and not self.workers:
            raise ValueError("memory_mb: the controller's own memory has no limit; set workers, or leave it out")
        if self.executor == "ray" and not self.workers:
            raise ValueError(
                "executor (ray): there is nothing to place without processes; set workers, or leave it out"
            )
        if self.executor == "ray" and self.memory_mb is not None:
            raise ValueError("memory_mb: what a process of Ray's holds is not looked at; leave it out")
        return self
