"""Where attempts run: the sections `envs` and `proxy`, and the key `agent` of a task source."""

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


class Agent(Section):
    """A program that attempts tasks through the run's OpenAI-compatible server."""

    command: tuple[str, ...] = Field(min_length=1, strict=False)  # arrives as a list from a validator
    """Started for every attempt, with the task as JSON on its standard input and OPENAI_BASE_URL, OPENAI_API_KEY and
    OPENAI_MODEL in its environment. `python` is the interpreter of the run. Paths are relative to `directory`."""
    directory: str | None = None
    """Working directory; None: that of the run."""
    preload: tuple[str, ...] = Field(default=(), strict=False)
    """Modules that a Python process imports once and then forks for every attempt: `python script.py` starts in
    milliseconds, without the time of its imports."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Seconds after which the program is killed and the attempt fails."""
    result: Literal["response", "stdout", "reward"] = "response"
    """Text to score: the model's last response or the program's standard output. `reward`: the program gets the task's
    answer and prints the reward, as `{"reward": 0.5}` in its last line."""

    @model_validator(mode="after")
    def _preload_needs_script(self) -> Agent:
        script = len(self.command) > 1 and self.command[0] == "python" and self.command[1].endswith(".py")
        if self.preload and not script:
            raise ValueError("preload: only `python` and a script can be forked; change the command, or leave it out")
        return self


_ESSENTIAL = frozenset({"model", "messages", "input", "stream"})


class ProxyConfig(Section):
    """The server for agent programs. It listens only if a source has an `agent`."""

    host: str = Field(default="127.0.0.1", min_length=1)
    """By default only this machine; `0.0.0.0` admits other machines that have the token."""
    port: int = Field(default=0, ge=0, le=65535)
    """0: any free port."""
    token_env: str | None = Field(default=None, min_length=1)
    """Environment variable with the API key, for agents on other machines. None: a random key that only the run's own
    agents get."""
    models: tuple[str, ...] = ()
    """Further model names that requests may use, in addition to the run's name."""
    sampling_params: Literal["refuse", "ignore"] = "refuse"
    """Refuse or ignore a temperature or top_p that differs from the run's, under which the trainer scores tokens."""
    ignore: tuple[str, ...] = Field(default=(), strict=False)
    """Parameters that requests may have and the run ignores, such as `logit_bias`. Others that are not supported are
    refused."""
    max_body_mb: float = Field(default=8.0, gt=0)
    """Largest request body."""
    requests_per_s: float = Field(default=50.0, gt=0)
    """Rate limit per attempt; bursts of twice as many are allowed after a pause."""
    max_concurrent_requests: int = Field(default=4096, gt=0)
    """Most requests in flight, over all attempts."""
    max_connections: int = Field(default=4096, gt=0)
    """Most open connections, and never more than half of the process's open files. At the limit, a new connection
    replaces the longest idle one, or waits if all have a request in progress."""
    idle_timeout_s: float = Field(default=60.0, gt=0)
    """Seconds after which a connection without a complete request header is closed, also between two requests."""
    body_timeout_s: float = Field(default=60.0, gt=0)
    """Seconds for the body of a request; a longer one is refused and its connection closed."""
    max_concurrent_agents: int = Field(default=32, gt=0)
    """Most agent programs that run at once; others wait."""

    @model_validator(mode="after")
    def _essential_parameters_stay(self) -> ProxyConfig:
        if essential := sorted(_ESSENTIAL.intersection(self.ignore)):
            raise ValueError(f"ignore: a request without {essential[0]!r} has no meaning; leave it out of the list")
        return self
