"""The loop over turns: an environment and a responder alternate until one of them ends the attempt."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeAlias

from roll.data.templates import Template
from roll.data.tools import Tool
from roll.envs.base import Env, StepResult
from roll.rollout.environments import step_env, within
from roll.types import Message

Guard: TypeAlias = Callable[..., AbstractContextManager[None]]
"""Makes the context of one call to the environment; its arguments name the call, for errors."""


class CutShort(Exception):
    """Raised by a responder to end the attempt before its environment does; the text is the reason."""


class Responder(Protocol):
    """Responds to an environment: the policy, a scripted agent, or a person."""

    def start(self, messages: Sequence[Message], tools: Sequence[Tool], agents: Sequence[str]) -> None:
        """Receive the first messages, the tools, and the names of the agents if there are several."""

    async def respond(self, turn: int) -> str:
        """The response of this turn; raises `CutShort` to end the attempt."""
        ...

    def observe(self, turn: int, result: StepResult) -> None:
        """Receive the environment's result for the response of this turn."""


async def take_turns(
    env: Env,
    responder: Responder,
    *,
    max_turns: int = sys.maxsize,
    template: Template | None = None,
    timeout_s: float | None = None,
    guard: Guard = lambda *_: nullcontext(),
) -> str:
    """Play one attempt; returns why it was cut short, or an empty string if the environment ended it.

    With a `template`, an environment with tools receives parsed calls; without one it receives plain text.
    `timeout_s` limits each call to the environment.
    """
    with guard(", starting"):
        messages = await within(timeout_s, env.start())
        tools: Sequence[Tool] = getattr(env, "tools", ())
        responder.start(messages, tools, getattr(env, "agents", ()))
    parsed = tools if template is not None else ()
    form = template.tool_form if template is not None and tools else None
    for turn in range(max_turns):
        try:
            response = await responder.respond(turn)
        except CutShort as error:
            return str(error)
        with guard(", turn ", turn):
            result = await within(timeout_s, step_env(env, response, parsed, form))
        responder.observe(turn, result)
        if result.done:
            return ""
    return f"{max_turns} turns are over"
