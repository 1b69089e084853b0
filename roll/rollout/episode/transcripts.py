"""Transcripts of attempts, by the model or by an agent that is a function of the messages so far."""

from __future__ import annotations

import inspect
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

from roll.data.templates import Template
from roll.data.tools import ParsedResponse, Tool
from roll.envs.base import Env, StepResult, ToolEnv
from roll.errors import ConfigError, EnvFailed
from roll.registry import SCRIPTED_AGENTS
from roll.rollout.environments import EnvWrapper
from roll.rollout.episode.runner import Attempt, EpisodeRunner
from roll.rollout.episode.turns import take_turns
from roll.rollout.source import TaskSource
from roll.types import Message, Spec, Status, Task, Trajectory

Agent: TypeAlias = Callable[[Sequence[Message]], str | Awaitable[str]]
"""Returns the next response to the messages so far."""
MakeAgent: TypeAlias = Callable[[Task, Env], Agent]
"""Makes the agent of one attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """One attempt, as text."""

    task: Task
    attempt: int
    """Earlier attempts at this task."""
    messages: tuple[Message, ...]
    status: Status
    reason: str = ""
    reward: float | None = None
    """None if the attempt failed."""
    num_turns: int = 0
    metrics: dict[str, float]

    @property
    def success(self) -> float:
        """The environment's own metric if it has one, otherwise whether the reward reached 1."""
        return self.metrics.get("success", float((self.reward or 0.0) >= 1.0))


class RecordingEnv(EnvWrapper):
    """An `Env` that records its messages and results."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.messages: list[Message] = []
        """All messages; with named agents, roles are the names."""
        self.results: list[StepResult] = []
        self.agent = ""
        """Name of the agent whose turn it is; empty without named agents."""
        self._seen: dict[str, list[Message]] = {}

    @property
    def seen(self) -> Sequence[Message]:
        """Messages to and from the agent whose turn it is."""
        return self._seen.get(self.agent, ())

    async def start(self) -> tuple[Message, ...]:
        messages = await self._env.start()
        self._add_messages(self.agents[0] if self.agents else "", messages)
        return messages

    async def step(self, response: str) -> StepResult:
        self._add_response(response)
        return self._add_result(await self._env.step(response))

    async def call(self, response: ParsedResponse) -> StepResult:
        self._add_response(response.text)
        return self._add_result(await cast(ToolEnv, self._env).call(response))

    def _add_response(self, text: str) -> None:
        self.messages.append(Message(self.agent or "assistant", text))
        self._seen.setdefault(self.agent, []).append(Message("assistant", text))

    def _add_messages(self, agent: str, messages: Sequence[Message]) -> None:
        self.agent = agent
        self.messages += [Message(f"to {agent}", each.content) for each in messages] if agent else messages
        self._seen.setdefault(agent, []).extend(messages)

    def _add_result(self, result: StepResult) -> StepResult:
        self._add_messages(result.to or self.agent, result.messages)
        self.results.append(result)
        return result


async def record_policy(source: TaskSource, runner: EpisodeRunner, attempt: Attempt) -> Transcript:
    """An attempt by the model, played exactly as in training."""
    envs: list[RecordingEnv] = []

    async def make_env(call: Spec, task: Task) -> Env:
        envs.append(RecordingEnv(await source.make_env(call, task)))
        return envs[0]

    trajectory = await replace(source, make_env=make_env).attempt(runner, attempt)
    return Transcript(
        task=attempt.task,
        attempt=attempt.number,
        messages=tuple(envs[0].messages if envs else _decode(trajectory, runner.template)),
        status=trajectory.status,
        reason=trajectory.reason,
        reward=trajectory.reward if trajectory.status.valid else None,
        num_turns=len(trajectory.turns),
        metrics=trajectory.metrics,
    )


def _decode(trajectory: Trajectory, template: Template) -> Iterator[Message]:
    """The messages of an attempt without an environment, from its ids."""
    for turn in trajectory.turns:
        yield Message("observation", template.decode(turn.observation))
        yield Message("assistant", template.decode(turn.sampled))


async def record_agent(source: TaskSource, make: MakeAgent, attempt: Attempt, *, max_turns: int) -> Transcript:
    """An attempt by an agent that needs no model."""
    task = attempt.task
    transcript = Transcript(task=task, attempt=attempt.number, messages=(), status=Status.ENV_FAILED, metrics={})
    try:
        env = RecordingEnv(await source.make_env(source.env, task))
    except EnvFailed as error:
        return replace(transcript, reason=str(error))
    try:
        cut = await take_turns(env, _FunctionResponder(make(task, env), env), max_turns=max_turns)
    except EnvFailed as error:
        return replace(_with_record(transcript, env), reason=str(error))
    finally:
        await env.close()
    status = Status.TRUNCATED if cut else Status.FINISHED
    return await _with_score(source, replace(_with_record(transcript, env), status=status, reason=cut), env)


class _FunctionResponder:
    """`Responder` that calls an agent with the messages its environment has recorded."""

    def __init__(self, agent: Agent, env: RecordingEnv) -> None:
        self._agent, self._env = agent, env

    def start(self, messages: Sequence[Message], tools: Sequence[Tool], agents: Sequence[str]) -> None: ...

    async def respond(self, turn: int) -> str:
        try:
            response = self._agent(tuple(self._env.seen))
            text: Any = await response if inspect.isawaitable(response) else response
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"--agent: {type(error).__name__}: {error}; fix its code") from error
        if not isinstance(text, str):
            raise ConfigError(f"--agent: returned no text (got {text!r}); return the response")
        return text

    def observe(self, turn: int, result: StepResult) -> None: ...


def _with_record(transcript: Transcript, env: RecordingEnv) -> Transcript:
    metrics = env.results[-1].metrics if env.results else {}
    return replace(transcript, messages=tuple(env.messages), num_turns=len(env.results), metrics=metrics)


async def _with_score(source: TaskSource, transcript: Transcript, env: RecordingEnv) -> Transcript:
    reward = sum(result.reward + sum(result.rewards.values()) for result in env.results)
    if source.reward is None:
        return replace(transcript, reward=reward)
    last = next(message.content for message in reversed(env.messages) if message.role in ("assistant", *env.agents))
    outcome = await source.rewards.score(source.reward, transcript.task, last)
    if outcome.score is None:
        return replace(transcript, status=Status.REWARD_FAILED, reason=outcome.reason)
    return replace(transcript, reward=reward + outcome.score.total)


def random_agent(env: Spec, seed: int) -> MakeAgent:
    """Makes agents that draw from the environment's `actions`; without these, its scripted agent with noise 1."""

    def make(task: Task, world: Env) -> Agent:
        draws = random.Random(f"{seed} {task.domain} {task.id} {task.seed}")

        def act(messages: Sequence[Message]) -> str:
            if actions := getattr(world, "actions", ()):
                return draws.choice(list(actions))
            if env.name in SCRIPTED_AGENTS.targets:
                return cast(str, SCRIPTED_AGENTS[env.name](messages, noise=1.0))
            raise ConfigError(
                f"--agent random: environment {env.name!r} does not list its actions; give it an attribute "
                "`actions`, or write an agent and name it: package.module:agent"
            )

        return act

    return make


def named_agent(name: str) -> MakeAgent:
    """Makes agents from a function of the messages, or from a class that is constructed with the task."""
    target: Any = SCRIPTED_AGENTS[name]

    def make(task: Task, world: Env) -> Agent:
        agent: Any = cast(Any, target)(task) if inspect.isclass(target) else target
        if not callable(agent):
            raise ConfigError(f"--agent {name}: not callable (got {agent!r}); name a function, or a callable class")
        return cast(Agent, agent)

    return make
