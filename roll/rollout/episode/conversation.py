"""What was said in one attempt: as messages for the template, as ids for the engine, as turns for the record.

A segment is what an engine sees as one sequence. It goes on as long as the new can be appended to what stands. Another
begins where the template would rewrite that, where old turns are dropped to make room, or, if each turn is to be a
sample of its own, with every turn. A sampled token is trained in one segment only; elsewhere it is context.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from roll.data.templates import Template
from roll.data.tools import Tool
from roll.envs.base import Reply
from roll.serving.pending import Sampled
from roll.types import POLICY, Message, Segment, Turn

if TYPE_CHECKING:
    from roll.types import Ints

_NOTHING: Ints = np.zeros(0, np.int32)


@dataclass(slots=True, kw_only=True)
class Cuts:
    """How often a conversation could not go on as it stood, since `drain`."""

    notice: Callable[[str], None] | None = None
    """Hears of the first that the template is to blame for: it makes every later turn dearer."""
    rewritten: int = 0
    dropped: int = 0
    _told: bool = False

    def rewrite(self, place: str, turn: int) -> None:
        """The template would have changed what stood, at this turn."""
        self.rewritten += 1
        if self.notice is not None and not self._told:
            self._told = True
            self.notice(
                f"{place}, turn {turn}: the chat template rewrites what was said before, so a new segment begins; "
                "segments/rewritten counts such turns"
            )

    def drain(self) -> dict[str, float]:
        """What there was since the last call, as metrics."""
        found = {"segments/rewritten": float(self.rewritten), "segments/dropped": float(self.dropped)}
        self.rewritten = self.dropped = 0
        return {name: value for name, value in found.items() if value}


class Script:
    """One conversation, as far as it has come."""

    def __init__(
        self, template: Template, cuts: Cuts, *, place: str, per_turn: bool = False, agent: str = POLICY
    ) -> None:
        """`place` is for errors. With `per_turn` every turn is a segment, whose prompt is all that stood before it."""
        self.place, self.agent = place, agent
        self.ids: list[int] = []
        """Of the segment, up to the last thing heard."""
        self.context = 0
        """Their checksum."""
        self.reply = ""
        """The text of the last one."""
        self.tools: tuple[Tool, ...] = ()
        self._template, self._cuts, self._per_turn = template, cuts, per_turn
        self._messages: tuple[Message, ...] = ()
        self._replied: list[int] = []
        """Where each of the replies that are still shown stands among the messages."""
        self._heard = _NOTHING
        self._turns: list[Turn] = []
        self._segments: list[Segment] = []
        self._num_turns = 0
        self.state = "start"  # siblings attempt one task, so they begin in the same state
        """Of the world, in which the next turn is taken."""
        self._owed = 0.0
        """What was earned before the first turn."""

    @property
    def num_sampled(self) -> int:
        """Tokens of whole turns."""
        segments = [*self._segments, Segment(turns=tuple(self._turns))]
        return sum(len(turn.sampled) for segment in segments for turn in segment.turns)

    def open(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> None:
        """Begin with what the environment says first, and the tools it has."""
        self.tools = tuple(tools)
        self._show(tuple(messages))

    def add(self, text: str, sampled: Sampled, reply: Reply, spent_s: tuple[float, float]) -> None:
        """One turn is over."""
        self._turns.append(
            Turn(
                observation=self._heard,
                sampled=sampled.ids,
                sampler_logprobs=sampled.logprobs,
                versions=sampled.versions,
                finish=sampled.finish,
                reward=reply.reward + self._owed,
                generated_s=spent_s[0],
                queued_s=sampled.queued_s,
                waited_s=spent_s[1],
                state=self.state,
            )
        )
        self._num_turns += 1
        self._owed = 0.0
        self.reply = text

    def earn(self, reward: float) -> None:
        """Something more for the last turn; where there is none yet, for the first."""
        if self._turns:
            last = self._turns[-1]
            self._turns[-1] = replace(last, reward=last.reward + reward)
        else:
            self._owed += reward

    def hear(self, new: Sequence[Message]) -> None:
        """Append what the environment said, or open a new segment where the template rewrites what stood."""
        self._replied.append(len(self._messages))
        said = (*self._messages, Message("assistant", self.reply))
        sampled = self._turns[-1].sampled
        last = int(sampled[-1]) if len(sampled) else self.ids[-1]
        heard = self._template.extend(said, new, last=last, place=self.place, tools=self.tools)
        if heard is None:
            if not self._template.forgetful:
                self._cuts.rewrite(self.place, self._num_turns)
            self._show((*said, *new))
            return
        self._messages = (*said, *new)
        self.ids += [*sampled.tolist(), *heard.tolist()]
        self.context = zlib.crc32(heard.data, zlib.crc32(sampled.data, self.context))
        self._heard = heard
        if self._per_turn:
            self._close_segment()
            self._heard = np.array(self.ids, np.int32)

    def drop_oldest(self, most: int) -> None:
        """Where more than `most` ids stand: leave out the fewest turns, oldest first, until that is so.

        What the environment opened with stays, and so does the last turn, even where that is still too much.
        """
        if len(self.ids) <= most or self._template.forgetful:
            return
        for num in range(1, len(self._replied)):
            dropped = self._replied[num] - self._replied[0]
            kept = (*self._messages[: self._replied[0]], *self._messages[self._replied[num] :])
            heard = self._template.open(kept, place=self.place, tools=self.tools)
            if len(heard) <= most or num == len(self._replied) - 1:
                self._cuts.dropped += 1
                self._replied = [place - dropped for place in self._replied[num:]]
                self._begin(kept, heard)
                return

    def segments(self) -> tuple[Segment, ...]:
        """All of them, the last being over."""
        if self._turns:
            self._close_segment()
        return tuple(self._segments)

    def _show(self, messages: tuple[Message, ...]) -> None:
        self._begin(messages, self._template.open(messages, place=self.place, tools=self.tools))

    def _begin(self, messages: tuple[Message, ...], heard: Ints) -> None:
        """A new segment, which shows these messages."""
        if self._turns:
            self._close_segment()
        self._messages, self._heard = messages, heard
        self.ids = heard.tolist()
        self.context = zlib.crc32(heard.data)

    def _close_segment(self) -> None:
        self._segments.append(Segment(turns=tuple(self._turns), agent=self.agent))
        self._turns = []
