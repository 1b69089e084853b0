"""Conversations of one attempt: messages for the chat template, token ids for the engine, turns for the record.

A segment is one append-only token sequence. It grows while new messages can be appended to its ids. A new segment
starts where the chat template rewrites earlier text, where old turns are dropped to make room, where a client forks or
edits the history, and at every turn if each turn is a separate sample. Every sampled token is trained in exactly one
segment; in any other it is context.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from roll.data.templates import Template
from roll.data.tools import Tool
from roll.envs.base import StepResult
from roll.serving.dispatch import Sampled
from roll.types import POLICY, Message, Segment, Status, Task, Trajectory, Turn, record

if TYPE_CHECKING:
    from roll.types import Ints


@dataclass(slots=True, kw_only=True)
class SegmentBreaks:
    """Counts of segments that ended early, since the last `drain`."""

    notice: Callable[[str], None] | None = None
    """Callback for a notice about the first rewrite by the template: rewrites make every later turn more expensive."""
    rewritten: int = 0
    dropped: int = 0
    _noticed: bool = False

    def rewrite(self, where: str, turn: int) -> None:
        """Count a turn after which the template rewrites earlier text."""
        self.rewritten += 1
        if self.notice is not None and not self._noticed:
            self._noticed = True
            self.notice(
                f"{where}, turn {turn}: the chat template rewrites earlier messages, so a new segment begins; "
                "segments/rewritten counts such turns"
            )

    def drain(self) -> dict[str, float]:
        """Nonzero counts since the last call, as metrics."""
        counts = {"segments/rewritten": float(self.rewritten), "segments/dropped": float(self.dropped)}
        self.rewritten = self.dropped = 0
        return {name: value for name, value in counts.items() if value}


class Branch:
    """A segment that can still grow."""

    __slots__ = ("busy", "context", "grown_at", "turns")

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.context: tuple[int, ...] = ()
        """All ids before the last response."""
        self.busy = False
        """Whether a response that continues the last turn is being sampled."""
        self.grown_at = 0
        """Number of the turn, over the whole tree, that was added last."""

    def ids(self, num_turns: int, new: list[int]) -> tuple[int, ...]:
        """All ids of the first turns, then the `new` ones."""
        if num_turns == len(self.turns):
            return self.context + (*self.turns[-1].sampled.tolist(), *new)  # noqa: RUF005 - copies the context once
        rows = [row for turn in self.turns[:num_turns] for row in (turn.observation, turn.sampled)]
        return (*np.concatenate(rows).tolist(), *new)


@record
class SamplePoint:
    """Where a response is sampled."""

    branch: Branch
    """Branch that the response joins: a new one, or one that is busy with this response alone."""
    context: tuple[int, ...]
    """All ids that the response is sampled after."""
    observation: Ints
    """The part of the context that belongs to the response's turn; the rest belongs to earlier turns of the branch."""
    checksum: int
    """Checksum of the context."""


class ConversationTree:
    """Segments of one conversation whose messages may fork.

    Only new messages are encoded; responses keep the ids they were sampled with.
    """

    __slots__ = ("_branches", "_breaks", "_per_turn", "_template", "agent", "num_sampled", "num_turns", "where")

    def __init__(
        self, template: Template, breaks: SegmentBreaks, *, where: str, per_turn: bool = False, agent: str = POLICY
    ) -> None:
        """`where` prefixes errors. With `per_turn`, every turn is a segment whose prompt is the whole context."""
        self.where, self.agent = where, agent
        self._template, self._breaks, self._per_turn = template, breaks, per_turn
        self._branches: list[Branch] = []
        self.num_turns = self.num_sampled = 0
        """Complete turns, and the tokens sampled in them."""

    @property
    def num_branches(self) -> int:
        return len(self._branches)

    def open(self, messages: Sequence[Message], tools: Sequence[Tool]) -> SamplePoint:
        """Point after the messages in a new segment, with all of them rendered."""
        observation = self._template.open(messages, where=self.where, tools=tools)
        return SamplePoint(
            branch=Branch(),
            context=tuple(observation.tolist()),
            observation=observation,
            checksum=zlib.crc32(observation.data),
        )

    def extend(
        self,
        base: Branch,
        num_turns: int,
        checksum: int,
        before: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool],
    ) -> SamplePoint:
        """Point after `new` messages that follow a response: the last of the first `num_turns` turns of a branch.

        `before` are the messages up to the response, and `checksum` is that of the context it was sampled after.

        Starts a new segment if the template would rewrite earlier text. The branch stays busy until `append` or
        `release`.
        """
        sampled = base.turns[num_turns - 1].sampled
        last = int(sampled[-1]) if len(sampled) else base.ids(num_turns, [])[-1]
        observation = self._template.extend(before, new, last=last, where=self.where, tools=tools)
        if observation is None:
            if not self._template.forgetful:
                self._breaks.rewrite(self.where, self.num_turns)
            return self.open((*before, *new), tools)
        context = base.ids(num_turns, observation.tolist())
        grows = num_turns == len(base.turns) and not base.busy and not self._per_turn
        branch = base if grows else Branch()
        branch.busy = True
        return SamplePoint(
            branch=branch,
            context=context,
            observation=observation if grows else np.array(context, np.int32),
            checksum=zlib.crc32(observation.data, zlib.crc32(sampled.data, checksum)),
        )

    def release(self, point: SamplePoint) -> None:
        """Give up a point: no response was sampled."""
        point.branch.busy = False

    def append(self, point: SamplePoint, turn: Turn) -> None:
        """Record the turn sampled at a point."""
        branch = point.branch
        if not branch.turns:
            self._branches.append(branch)
        branch.turns.append(turn)
        self.num_turns += 1
        self.num_sampled += len(turn.sampled)
        branch.context, branch.busy, branch.grown_at = point.context, False, self.num_turns

    def segments(self) -> tuple[Segment, ...]:
        """All segments; the one that grew last comes last."""
        branches = self._branches
        if len(branches) > 1:
            branches = sorted(branches, key=lambda branch: branch.grown_at)
        return tuple([Segment(turns=tuple(branch.turns), agent=self.agent) for branch in branches])


class Conversation(ConversationTree):
    """One agent's conversation with an environment: a tree with a single path."""

    __slots__ = ("_pending_reward", "_response", "_responses", "messages", "point", "state", "tools")

    def start(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> None:
        """Begin with the environment's first messages."""
        self.messages, self.tools = tuple(messages), tuple(tools)
        """Messages shown at the current point, and the tools of the environment."""
        self.state = "start"  # siblings attempt one task, so they begin in the same state
        """Environment state in which the next turn is taken."""
        self._response = ""
        """Text of the last response."""
        self._responses: list[int] = []
        """Indices of the responses among the messages."""
        self._pending_reward = 0.0
        """Reward received before the first turn."""
        self.point = self.open(self.messages, self.tools)
        """Where the next response is sampled."""

    def add_turn(self, text: str, sampled: Sampled, result: StepResult, spent_s: tuple[float, float]) -> None:
        """Record one turn; `spent_s` holds the seconds of generation and of the environment."""
        turn = Turn(
            observation=self.point.observation,
            sampled=sampled.ids,
            sampler_logprobs=sampled.logprobs,
            versions=sampled.versions,
            finish=sampled.finish,
            reward=result.reward + self._pending_reward,
            generated_s=spent_s[0],
            queued_s=sampled.queued_s,
            waited_s=spent_s[1],
            state=self.state,
            experts=sampled.turn_experts(len(self.point.observation)),
        )
        self._pending_reward = 0.0
        self._response = text
        self.append(self.point, turn)

    def add_reward(self, reward: float) -> None:
        """Add to the reward of the last turn, or of the first one if there is none yet."""
        if turns := self.point.branch.turns:
            turns[-1] = replace(turns[-1], reward=turns[-1].reward + reward)
        else:
            self._pending_reward += reward

    def observe(self, new: Sequence[Message]) -> None:
        """Append the last response and the environment's new messages."""
        self._responses.append(len(self.messages))
        before = (*self.messages, Message("assistant", self._response))
        self.messages = (*before, *new)
        last = self.point
        self.point = self.extend(last.branch, len(last.branch.turns), last.checksum, before, new, self.tools)

    def drop_oldest(self, max_tokens: int) -> None:
        """Drop the fewest oldest turns that bring the context down to `max_tokens`.

        The opening messages and the last turn always stay, even if they exceed the limit.
        """
        if len(self.point.context) <= max_tokens or self._template.forgetful:
            return
        first = self._responses[0]
        for number, index in enumerate(self._responses[1:], start=1):
            messages = self.messages[:first] + self.messages[index:]
            point = self.open(messages, self.tools)
            if len(point.context) <= max_tokens or index == self._responses[-1]:
                self._breaks.dropped += 1
                self._responses = [each - index + first for each in self._responses[number:]]
                self.messages, self.point = messages, point
                return


def checksum(ids: Sequence[int]) -> int:
    """CRC-32 of ids, which identifies a context."""
    return zlib.crc32(np.array(ids, np.int32).data)


class AgentConversations:
    """Conversations by agent. An agent's conversation starts with the first message addressed to it."""

    __slots__ = (
        "_breaks",
        "_conversations",
        "_metrics",
        "_pending_rewards",
        "_per_turn",
        "_template",
        "_tools",
        "_where",
        "current",
        "last_response",
    )

    def __init__(self, template: Template, breaks: SegmentBreaks, *, where: str, per_turn: bool) -> None:
        """The arguments are those of each agent's `Conversation`."""
        self.current: Conversation
        """Conversation of the agent whose turn it is; set by `start`."""
        self.last_response = ""
        """Text of the most recent response, by any agent."""
        self._template, self._breaks, self._where, self._per_turn = template, breaks, where, per_turn
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
        segments: list[Segment] = []
        for conversation in self._conversations.values():
            segments += conversation.segments()
        return Trajectory(
            task=task,
            sibling=sibling,
            segments=tuple(segments),
            status=status,
            reason=reason,
            metrics=self._metrics,
        )

    def _add_agent(self, agent: str, messages: Sequence[Message]) -> None:
        conversation = Conversation(
            self._template, self._breaks, where=self._where, per_turn=self._per_turn, agent=agent
        )
        conversation.start(messages, self._tools)
        if self._pending_rewards:
            conversation.add_reward(self._pending_rewards.pop(agent, 0.0))
        self.current = self._conversations[agent] = conversation
