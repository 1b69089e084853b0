"""Agents in processes of their own, and the server they ask, as a file writes them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from roll.config.section import Section


class Agent(Section):
    """A program that attempts tasks by asking an OpenAI-compatible address, which is the run's."""

    command: tuple[str, ...] = Field(min_length=1, strict=False)  # a list, once the section around it was seen
    """Started for every attempt, with the task as JSON on its standard input and OPENAI_BASE_URL, OPENAI_API_KEY and
    OPENAI_MODEL in its environment. `python` is the interpreter of the run. Paths are relative to `directory`."""
    directory: str | None = None
    """Where it starts; None: where the run was started."""
    preload: tuple[str, ...] = Field(default=(), strict=False)
    """Modules that a Python imports once, to fork for every attempt: a command `python script.py` then starts in
    milliseconds instead of however long its imports take."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Seconds after which it is killed, and the attempt has failed."""
    result: Literal["reply", "stdout", "reward"] = "reply"
    """What is judged: the model's last reply, or what the agent wrote to its standard output. `reward`: the agent tells
    the reward itself, as `{"reward": 0.5}` in its last line, and is told the task's answer."""

    @model_validator(mode="after")
    def _preloads_a_script(self) -> Agent:
        script = len(self.command) > 1 and self.command[0] == "python" and self.command[1].endswith(".py")
        if self.preload and not script:
            raise ValueError("preload: only `python` and a script can be forked; change the command, or leave it out")
        return self


class Proxy(Section):
    """The server that agents ask. It listens only where a source has an `agent`."""

    host: str = Field(default="127.0.0.1", min_length=1)
    """This machine alone by default; `0.0.0.0` lets others in that know the token."""
    port: int = Field(default=0, ge=0, le=65535)
    """0: whichever is free."""
    token_env: str | None = Field(default=None, min_length=1)
    """The environment variable with the token that lets requests in, for agents that live elsewhere. None: one that is
    made for the run, and told to its agents alone."""
    models: tuple[str, ...] = ()
    """Names that the model goes by besides that of the run: those that agents ask for."""
    sampling: Literal["refuse", "ignore"] = "refuse"
    """What becomes of a temperature or top_p that is not the run's: the trainer reads tokens under the run's own."""
    max_body_mb: float = Field(default=8.0, gt=0)
    """The largest request."""
    requests_per_s: float = Field(default=50.0, gt=0)
    """Most requests of one attempt; after a pause twice as many at once."""
    max_under_way: int = Field(default=4096, gt=0)
    """Most requests of all attempts at once."""
    max_agents: int = Field(default=32, gt=0)
    """Most agents that run at once; the others wait for their turn."""
