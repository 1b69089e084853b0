"""Attempts of a scripted agent as rows to learn from: the same ids that the policy would see and write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roll.data.templates import Template
from roll.data.tools import Tool
from roll.envs.base import StepResult
from roll.errors import ConfigError
from roll.registry import SCRIPTED_AGENTS
from roll.rollout.environments import make_inline_env
from roll.rollout.episode.conversation import Conversation, SegmentBreaks
from roll.rollout.episode.turns import CutShort, take_turns
from roll.serving.dispatch import Sampled
from roll.types import Message, Spec, Task

Row = list[Sequence[int]]
"""One sequence: observation and response of every turn, alternating."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstrator:
    """Plays tasks with a scripted agent that any process can resolve."""

    agent: Spec
    template: Template
    stop: frozenset[int]
    """Ids that end a response; a response without one is closed by the template's end-of-turn token."""
    max_seq_len: int
    max_turns: int

    async def rows(self, task: Task, env: Spec) -> list[Row]:
        """One attempt at the task, as far as it fits `max_seq_len`; one row per segment."""
        where = f"task {task.id!r}"
        responder = _ScriptedResponder(self, Conversation(self.template, SegmentBreaks(), where=where))
        world = await make_inline_env(env, task)
        try:
            await take_turns(world, responder, max_turns=self.max_turns, template=self.template)
        finally:
            await world.close()
        segments = responder.conversation.segments()
        if not segments:
            raise ConfigError(
                f"{where}: its first messages and a response do not fit rollout.max_seq_len ({self.max_seq_len}); "
                "raise it"
            )
        return [
            [part.tolist() for turn in each.turns for part in (turn.observation, turn.sampled)] for each in segments
        ]


class _ScriptedResponder:
    """`Responder` that keeps the conversation of a scripted agent."""

    def __init__(self, demonstrator: Demonstrator, conversation: Conversation) -> None:
        self._demonstrator, self.conversation = demonstrator, conversation
        self._response = ("", Sampled())

    def start(self, messages: Sequence[Message], tools: Sequence[Tool], agents: Sequence[str]) -> None:
        if len(agents) > 1:
            raise ConfigError(
                f"{self.conversation.where}: a scripted agent plays one agent (got {', '.join(agents)}); "
                "leave sft.scripted_agent out"
            )
        self.conversation.start(messages, tools)

    async def respond(self, turn: int) -> str:
        demonstrator, conversation = self._demonstrator, self.conversation
        agent, where = demonstrator.agent, conversation.where
        text = SCRIPTED_AGENTS[agent.name](conversation.messages, **agent.kwargs)
        if not isinstance(text, str):
            raise ConfigError(f"{where}: agent {agent.name!r} must return text (got {text!r}); fix its code")
        ids = demonstrator.template.answer(text, where=where)
        if len(ids) > 1 and int(ids[-2]) in demonstrator.stop:
            ids = ids[:-1]  # the response has ended itself
        if len(conversation.point.context) + len(ids) > demonstrator.max_seq_len:
            raise CutShort("the context is full")
        self._response = text, Sampled(ids=ids)
        return text

    def observe(self, turn: int, result: StepResult) -> None:
        self.conversation.add_turn(*self._response, result, (0.0, 0.0))
        if not result.done:
            self.conversation.observe(result.messages)
