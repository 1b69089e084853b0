"""The conversations of one attempt, one per agent. Most attempts have a single agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from roll.data.tools import Tool
from roll.envs.base import StepResult
from roll.rollout.episode.conversation import Conversation
from roll.serving.dispatch import Sampled
from roll.types import POLICY, Message, Status, Task, Trajectory


class AgentConversations:
    """Conversations by agent. An agent's conversation starts with the first message addressed to it."""

    __slots__ = ("_conversations", "_create", "_metrics", "_pending_rewards", "_tools", "current", "last_response")

    def __init__(self, create: Callable[..., Conversation]) -> None:
        """`create(agent=...)` makes an empty conversation."""
        self.current: Conversation
        """Conversation of the agent whose turn it is; set by `start`."""
        self.last_response = ""
        """Text of the most recent response, by any agent."""
        self._create = create
        self._conversations: dict[str, Conversation] = {}
        self._pending_rewards: dict[str, float] = {}
        """Rewards of agents that were not addressed yet."""
        self._tools: Sequence[Tool] = ()
        self._metrics: dict[str, float] = {}

    @property
    def num_sampled(self) -> int:
        """Tokens of complete turns."""
        return sum(conversation.num_sampled for conversation in self._conversations.values())

    def start(self, messages: Sequence[Message], tools: Sequence[Tool] = (), agents: Sequence[str] = ()) -> None:
        """Begin with the environment's first messages, addressed to the first of its agents."""
        self._tools = tools
        self._add_agent(agents[0] if agents else POLICY, messages)

    def add_turn(self, text: str, sampled: Sampled, result: StepResult, spent_s: tuple[float, float]) -> None:
        """Record a turn of the current agent, and the rewards that other agents received for it."""
        self.current.add_turn(text, sampled, result, spent_s)
        for agent, reward in result.rewards.items() if result.rewards else ():
            if agent in self._conversations:
                self._conversations[agent].add_reward(reward)
            else:
                self._pending_rewards[agent] = self._pending_rewards.get(agent, 0.0) + reward
        self.last_response, self._metrics = text, result.metrics

    def observe(self, result: StepResult) -> None:
        """Continue with the agent that the environment addresses."""
        agent = result.to or self.current.agent
        if agent in self._conversations:
            self.current = self._conversations[agent]
            self.current.observe(result.messages)
        else:
            self._add_agent(agent, result.messages)
        self.current.state = result.state

    def trajectory(self, task: Task, sibling: int, status: Status, *, reason: str) -> Trajectory:
        """The record of the attempt, agent by agent."""
        segments = [segment for each in self._conversations.values() for segment in each.segments()]
        return Trajectory(
            task=task,
            sibling=sibling,
            segments=tuple(segments),
            status=status,
            reason=reason,
            metrics=self._metrics,
        )

    def _add_agent(self, agent: str, messages: Sequence[Message]) -> None:
        conversation = self._create(agent=agent)
        conversation.start(messages, self._tools)
        if self._pending_rewards:
            conversation.add_reward(self._pending_rewards.pop(agent, 0.0))
        self.current = self._conversations[agent] = conversation
