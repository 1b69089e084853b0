"""What a scripted player sees and says, as rows to learn from: the same ids that the policy would see and write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roll.data.templates import Template
from roll.data.tools import Tool, declared
from roll.envs.base import Env
from roll.errors import ConfigError
from roll.registry import ENVS, PLAYERS
from roll.rollout.environments import answering
from roll.types import Call, Message, Task

Row = list[Sequence[int]]
"""One sequence: what was seen, what was said to it, what was seen then, and so on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstrator:
    """Plays tasks with a player that any process can resolve."""

    player: Call
    template: Template
    stop: frozenset[int]
    """Ids that end a reply; one that ends with none of them gets the template's own."""
    context: int
    max_turns: int

    async def rows(self, task: Task, env: Call) -> list[Row]:
        """One attempt at the task, as long as it fits the context; a row for each segment of it."""
        world: Env = ENVS[env.name](task, **env.arguments)
        try:
            return await self._play(task, world)
        finally:
            await world.close()

    async def _play(self, task: Task, world: Env) -> list[Row]:
        place = f"task {task.id!r}"
        messages, tools = tuple(await world.start()), _tools(world)
        if len(agents := getattr(world, "agents", ())) > 1:
            raise ConfigError(f"{place}: a player plays one agent (got {', '.join(agents)}); leave sft.player out")
        seen, rows = self.template.open(messages, place=place, tools=tools).tolist(), list[Row]([[]])
        for _ in range(self.max_turns):
            text = self._said(messages, place)
            said = self._ids(text, place)
            if sum(map(len, rows[-1])) + len(seen) + len(said) > self.context:
                break
            rows[-1] += [seen, said]
            reply = await answering(world, text, tools, self.template.tool_form if tools else None)
            if reply.done:
                break
            before = (*messages, Message("assistant", text))
            messages = (*before, *reply.messages)
            heard = self.template.extend(before, reply.messages, last=said[-1], place=place, tools=tools)
            if heard is None:
                rows.append([])
                heard = self.template.open(messages, place=place, tools=tools)
            seen = heard.tolist()
        if not rows[0]:
            raise ConfigError(f"{place}: its opening and a reply do not fit rollout.context ({self.context}); raise it")
        return [row for row in rows if row]

    def _said(self, messages: Sequence[Message], place: str) -> str:
        said = PLAYERS[self.player.name](messages, **self.player.arguments)
        if not isinstance(said, str):
            raise ConfigError(f"{place}: player {self.player.name!r} must give text (got {said!r}); fix its code")
        return said

    def _ids(self, text: str, place: str) -> list[int]:
        ids = self.template.answer(text, place=place).tolist()
        return ids[:-1] if len(ids) > 1 and ids[-2] in self.stop else ids


def _tools(world: Env) -> tuple[Tool, ...]:
    return declared(getattr(world, "tools", ())) if hasattr(world, "call") else ()
