"""One attempt's conversations, message by message: what goes on from where, and which tokens that is.

A request that only adds to what was said before goes on in the same segment: the new messages alone are encoded, and
replies keep the ids they were sampled with. One that goes on from an earlier reply (a fork), or whose history was
edited, opens a branch, a segment of its own, in which all that stood before is context. So every sampled token is
trained in exactly one segment.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from roll.data.templates import Template
from roll.proxy.requests import Asked, Said, text_of
from roll.rollout.episode.conversation import Cuts
from roll.serving.pending import Sampled
from roll.types import Message, Segment, Turn, record

if TYPE_CHECKING:
    from roll.types import Ints


class Branch:
    """A segment that may still grow."""

    __slots__ = ("answered", "busy", "ids", "tip", "turns")

    def __init__(self) -> None:
        self.ids: list[int] = []
        """All of it, up to the end of its last reply."""
        self.turns: list[Turn] = []
        self.tip: Spot | None = None
        """Its last reply."""
        self.busy = False
        """Whether a reply that goes on from there is being sampled."""
        self.answered = 0
        """When it was last added to, counted in replies of the whole attempt."""


class Spot:
    """A place in a conversation: right after one of its messages."""

    __slots__ = ("asked", "branch", "checksum", "end", "message", "next")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.next: dict[Said, Spot] = {}
        self.asked: dict[tuple[Any, ...], Any] = {}
        """Requests that end here, and what became of them."""
        self.branch: Branch | None = None
        """Where a reply of the policy stands; None for whatever else was said."""
        self.end = 0
        """How many of the branch's ids there are up to here."""
        self.checksum = 0
        """Of these."""


@record
class Place:
    """Where a reply is to be sampled."""

    spot: Spot
    """The last message it answers to."""
    branch: Branch
    """Where it will stand; one that has no turns yet, or is busy with this alone."""
    context: tuple[int, ...]
    """All that it is sampled after."""
    heard: Ints
    """Of these, what its turn in the branch begins with."""
    checksum: int
    """Of the context."""


class Conversations:
    """All that was said in one attempt."""

    def __init__(self, template: Template, cuts: Cuts, *, place: str, per_turn: bool = False) -> None:
        """`place` is for errors. With `per_turn` every reply is a segment of its own, after all that stood before."""
        self._template, self._cuts, self._place, self._per_turn = template, cuts, place, per_turn
        self._roots: dict[str, Spot] = {}
        self._branches: list[Branch] = []
        self.replies: list[Turn] = []
        """In the order in which they were given."""
        self.text = ""
        """Of the last one."""

    @property
    def num_branches(self) -> int:
        return len(self._branches)

    def find(self, asked: Asked) -> list[Spot]:
        """The place after each message of a request, those that were known before it included."""
        spot = self._roots.setdefault(asked.told, Spot(Message("", "")))
        path: list[Spot] = []
        for said in asked.messages:
            found = spot.next.get(said)
            if found is None:
                form = self._template.tool_form if said.calls else None
                found = spot.next[said] = Spot(Message(said.role, text_of(said, form)))
            path.append(found)
            spot = found
        return path

    def place(self, path: Sequence[Spot], asked: Asked) -> Place:
        """Where the reply to a request will stand, and after which ids; the branch is busy until `add` or `leave`."""
        said = next((at for at in range(len(path) - 1, -1, -1) if path[at].branch is not None), None)
        messages = [spot.message for spot in path]
        if said is not None:
            found = self._after(path, said, messages, asked)
            if found is not None:
                return found
        heard = self._template.open(messages, place=self._place, tools=asked.tools)
        return Place(
            spot=path[-1],
            branch=Branch(),
            context=tuple(heard.tolist()),
            heard=heard,
            checksum=_checksum(heard),
        )

    def leave(self, place: Place) -> None:
        """No reply came of it."""
        place.branch.busy = False

    def add(self, place: Place, said: Said, text: str, turn: Turn) -> None:
        """The reply is there, and this is how a client will give it back."""
        branch = place.branch
        if not branch.turns:
            self._branches.append(branch)
            branch.ids = list(place.context)
        else:
            branch.ids += place.heard.tolist()
        branch.ids += turn.sampled.tolist()
        branch.turns.append(turn)
        self.replies.append(turn)
        branch.busy, branch.answered = False, len(self.replies)
        spot = place.spot.next.get(said)
        if spot is None:
            spot = place.spot.next[said] = Spot(Message("assistant", text))
        if spot.branch is None:  # else the same was said before: who goes on from it goes on from the first
            spot.message, spot.branch, spot.end = Message("assistant", text), branch, len(branch.ids)
            spot.checksum = _checksum(turn.sampled, place.checksum)
            branch.tip = spot
        else:
            branch.tip = None
        self.text = text

    def segments(self) -> tuple[Segment, ...]:
        """Every branch with its turns; the one that was added to last is the last."""
        branches = sorted(self._branches, key=lambda branch: branch.answered)
        return tuple(Segment(turns=tuple(branch.turns)) for branch in branches)

    def _after(self, path: Sequence[Spot], said: int, messages: Sequence[Message], asked: Asked) -> Place | None:
        """What goes on from the policy's own reply at `said`; None where the template would rewrite what stands."""
        reply = path[said]
        base = reply.branch
        assert base is not None
        last = base.ids[reply.end - 1]
        heard = self._template.extend(
            messages[: said + 1], messages[said + 1 :], last=last, place=self._place, tools=asked.tools
        )
        if heard is None:
            if not self._template.forgetful:
                self._cuts.rewrite(self._place, len(self.replies))
            return None
        context = (*base.ids[: reply.end], *heard.tolist())
        goes_on = base.tip is reply and not base.busy and not self._per_turn
        branch = base if goes_on else Branch()
        branch.busy = True
        return Place(
            spot=path[-1],
            branch=branch,
            context=context,
            heard=heard if goes_on else np.array(context, np.int32),
            checksum=_checksum(heard, reply.checksum),
        )


def _checksum(ids: Ints, before: int = 0) -> int:
    return zlib.crc32(np.ascontiguousarray(ids, np.int32).data, before)


def turn_of(place: Place, sampled: Sampled, generated_s: float) -> Turn:
    """The record of one reply."""
    return Turn(
        observation=place.heard,
        sampled=sampled.ids,
        sampler_logprobs=sampled.logprobs,
        versions=sampled.versions,
        finish=sampled.finish,
        generated_s=generated_s,
        queued_s=sampled.queued_s,
    )
