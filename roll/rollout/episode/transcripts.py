"""What was said in an attempt, in words: by the model, or by an agent that is a function of what was said."""

from __future__ import annotations

import inspect
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

from roll.data.templates import Template
from roll.data.tools import Spoken, Tool
from roll.envs.base import Env, Reply, ToolEnv
from roll.errors import ConfigError, EnvFailed
from roll.registry import PLAYERS
from roll.rollout.episode.runner import Attempt, EpisodeRunner
from roll.rollout.source import Source
from roll.types import Call, Message, Status, Task, Trajectory

Agent: TypeAlias = Callable[[Sequence[Message]], str | Awaitable[str]]
"""The next reply to all that was said so far."""
MakeAgent: TypeAlias = Callable[[Task, Env], Agent]
"""The agent of one attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """One attempt, for people to read."""

    task: Task
    attempt: int
    """How often this task was attempted before."""
    messages: tuple[Message, ...]
    status: Status
    reason: str = ""
    reward: float | None = None
    """None where the attempt has failed."""
    num_turns: int = 0
    metrics: dict[str, float]

    @property
    def success(self) -> float:
        """As the environment says, else whether the reward reached 1."""
        return self.metrics.get("success", float((self.reward or 0.0) >= 1.0))


class Recorded:
    """An `Env` that remembers what was said in it."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self.messages: list[Message] = []
        """All of it; where agents have names, the roles are theirs."""
        self.replies: list[Reply] = []
        self.agent = ""
        """Who speaks now, where agents have names."""
        self._heard: dict[str, list[Message]] = {}

    @property
    def heard(self) -> Sequence[Message]:
        """What whoever speaks now has heard and said."""
        return self._heard.get(self.agent, ())

    @property
    def actions(self) -> Sequence[str]:
        """What can be done now, where the environment says."""
        return getattr(self._env, "actions", ())

    @property
    def agents(self) -> Sequence[str]:
        """Who plays, where the environment says."""
        return getattr(self._env, "agents", ())

    async def start(self) -> tuple[Message, ...]:
        opening = await self._env.start()
        self._hear(self.agents[0] if self.agents else "", opening)
        return opening

    async def step(self, reply: str) -> Reply:
        self._say(reply)
        return self._remembered(await self._env.step(reply))

    @property
    def tools(self) -> Sequence[Tool]:
        """What can be called, where the environment says."""
        return getattr(self._env, "tools", ())

    async def call(self, said: Spoken) -> Reply:
        self._say(said.text)
        return self._remembered(await cast(ToolEnv, self._env).call(said))

    async def close(self) -> None:
        await self._env.close()

    def _say(self, text: str) -> None:
        self.messages.append(Message(self.agent or "assistant", text))
        self._heard.setdefault(self.agent, []).append(Message("assistant", text))

    def _hear(self, agent: str, messages: Sequence[Message]) -> None:
        self.agent = agent
        self.messages += [Message(f"to {agent}", each.content) for each in messages] if agent else messages
        self._heard.setdefault(agent, []).extend(messages)

    def _remembered(self, found: Reply) -> Reply:
        self._hear(found.to or self.agent, found.messages)
        self.replies.append(found)
        return found


async def sampled(source: Source, runner: EpisodeRunner, attempt: Attempt) -> Transcript:
    """An attempt of the model, by the same way as in training."""
    made: list[Recorded] = []

    async def make(call: Call, task: Task) -> Env:
        made.append(Recorded(await source.make(call, task)))
        return made[0]

    found = await replace(source, make=make).attempt(runner, attempt)
    return Transcript(
        task=attempt.task,
        attempt=attempt.number,
        messages=tuple(made[0].messages) if made else tuple(_spelled(found, runner.template)),
        status=found.status,
        reason=found.reason,
        reward=found.reward if found.status.valid else None,
        num_turns=len(found.turns),
        metrics=found.metrics,
    )


def _spelled(found: Trajectory, template: Template) -> Iterator[Message]:
    """What was said where no environment heard it, by its ids."""
    for turn in found.turns:
        yield Message("heard", template.decode(turn.observation))
        yield Message("assistant", template.decode(turn.sampled))


async def scripted(source: Source, make: MakeAgent, attempt: Attempt, *, max_turns: int) -> Transcript:
    """An attempt of an agent that needs no model."""
    task = attempt.task
    found = Transcript(task=task, attempt=attempt.number, messages=(), status=Status.ENV_FAILED, metrics={})
    try:
        env = Recorded(await source.make(source.env, task))
    except EnvFailed as error:
        return replace(found, reason=str(error))
    try:
        await _play(env, make(task, env), max_turns)
    except EnvFailed as error:
        return replace(_heard(found, env), reason=str(error))
    finally:
        await env.close()
    done = env.replies[-1].done
    reason = "" if done else f"{max_turns} turns are over"
    found = replace(_heard(found, env), status=Status.FINISHED if done else Status.TRUNCATED, reason=reason)
    return await _judged(source, found, env)


async def _play(env: Recorded, agent: Agent, max_turns: int) -> None:
    await env.start()
    for _ in range(max_turns):
        if (await env.step(await _said(agent, env.heard))).done:
            return


async def _said(agent: Agent, messages: Sequence[Message]) -> str:
    try:
        said = agent(tuple(messages))
        text: Any = await said if inspect.isawaitable(said) else said
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"--agent: {type(error).__name__}: {error}; mend it") from error
    if not isinstance(text, str):
        raise ConfigError(f"--agent: gave no text (got {text!r}); return the reply")
    return text


def _heard(found: Transcript, env: Recorded) -> Transcript:
    metrics = env.replies[-1].metrics if env.replies else {}
    return replace(found, messages=tuple(env.messages), num_turns=len(env.replies), metrics=metrics)


async def _judged(source: Source, found: Transcript, env: Recorded) -> Transcript:
    reward = sum(reply.reward + sum(reply.rewards.values()) for reply in env.replies)
    if source.reward is None:
        return replace(found, reward=reward)
    last = next(message.content for message in reversed(env.messages) if message.role in ("assistant", *env.agents))
    outcome = await source.judge(source.reward, found.task, last)
    if outcome.score is None:
        return replace(found, status=Status.REWARD_FAILED, reason=outcome.reason)
    return replace(found, reward=reward + outcome.score.value)


def at_random(env: Call, seed: int) -> MakeAgent:
    """Who does whatever can be done: what the environment offers in `actions`, else what its player does by chance."""

    def make(task: Task, world: Env) -> Agent:
        draws = random.Random(f"{seed} {task.domain} {task.id} {task.seed}")

        def act(messages: Sequence[Message]) -> str:
            if actions := getattr(world, "actions", ()):
                return draws.choice(list(actions))
            if env.name in PLAYERS.targets:
                return cast(str, PLAYERS[env.name](messages, noise=1.0))
            raise ConfigError(
                f"--agent random: environment {env.name!r} does not say what can be done in it; give it an attribute "
                "`actions`, or write an agent and name it: package.module:agent"
            )

        return act

    return make


def by_name(name: str) -> MakeAgent:
    """A function of what was said, or a class that is made with the task and then called with it."""
    found: Any = PLAYERS[name]

    def make(task: Task, world: Env) -> Agent:
        agent: Any = cast(Any, found)(task) if inspect.isclass(found) else found
        if not callable(agent):
            raise ConfigError(f"--agent {name}: cannot be called (got {agent!r}); name a function, or a class with one")
        return cast(Agent, agent)

    return make
