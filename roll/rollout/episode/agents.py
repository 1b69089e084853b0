"""Who speaks in one attempt: a script for each agent, and whose turn it is. Most attempts have one agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from roll.data.tools import Tool
from roll.envs.base import Reply
from roll.rollout.episode.conversation import Script
from roll.serving.pending import Sampled
from roll.types import POLICY, Message, Segment, Status, Task, Trajectory


class Cast:
    """All conversations of one attempt. An agent's begins with the first thing that is said to it."""

    __slots__ = ("_make", "_metrics", "_owed", "_scripts", "cut", "place", "reply", "script", "tools")

    def __init__(self, make: Callable[[str], Script], *, place: str) -> None:
        """`make` gives an empty script for an agent; `place` is for errors."""
        self.place = place
        self.cut = ""
        """Why the attempt ended before its end, if it did."""
        self.reply = ""
        """The text of the last one, whosever it was."""
        self.tools: tuple[Tool, ...] = ()
        self.script: Script
        """Of whoever speaks now; there is one from the opening on."""
        self._make = make
        self._scripts: dict[str, Script] = {}
        self._owed: dict[str, float] = {}
        """What agents have earned before anything was said to them."""
        self._metrics: dict[str, float] = {}

    @property
    def num_sampled(self) -> int:
        """Tokens of whole turns."""
        return sum(script.num_sampled for script in self._scripts.values())

    def open(self, messages: Sequence[Message], tools: Sequence[Tool] = (), agents: Sequence[str] = ()) -> None:
        """Begin with what the environment says first, to the first of its agents."""
        self.tools = tuple(tools)
        self._enter(agents[0] if agents else POLICY, messages)

    def add(self, text: str, sampled: Sampled, reply: Reply, spent_s: tuple[float, float]) -> None:
        """One turn is over, of whoever spoke; others may have earned something by it."""
        self.script.add(text, sampled, reply, spent_s)
        for agent, reward in reply.rewards.items() if reply.rewards else ():
            if agent in self._scripts:
                self._scripts[agent].earn(reward)
            else:
                self._owed[agent] = self._owed.get(agent, 0.0) + reward
        self.reply, self._metrics = text, reply.metrics

    def hear(self, reply: Reply) -> None:
        """Go on with whom the environment speaks to."""
        agent = reply.to or self.script.agent
        if agent in self._scripts:
            self.script = self._scripts[agent]
            self.script.hear(reply.messages)
        else:
            self._enter(agent, reply.messages)
        self.script.state = reply.state

    def trajectory(self, task: Task, sibling: int, status: Status, *, reason: str) -> Trajectory:
        """The record of it all, agent by agent."""
        segments: list[Segment] = []
        for script in self._scripts.values():
            segments += script.segments()
        return Trajectory(
            task=task,
            sibling=sibling,
            segments=tuple(segments),
            status=status,
            reason=reason,
            metrics=self._metrics,
        )

    def _enter(self, agent: str, messages: Sequence[Message]) -> None:
        """Someone speaks for the first time."""
        script = self._make(agent)
        script.open(messages, self.tools)
        if self._owed:
            script.earn(self._owed.pop(agent, 0.0))
        self.script = self._scripts[agent] = script
