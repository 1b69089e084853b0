"""The books of an attempt with tools: what is counted, what a reply that cannot be read is told, when it is over."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from roll.data.tools import Spoken
from roll.envs.actions import Tally
from roll.envs.arguments import check_number
from roll.envs.base import Reply
from roll.tools.base import Answer
from roll.tools.usage import Usage
from roll.types import Message

SILENT = "Nothing was called. Call a tool."


class Books:
    """Turns of one attempt. A reply that is no action costs one of them and `format_penalty`; the last ends it."""

    def __init__(self, name: str, max_turns: int, format_penalty: float) -> None:
        check_number(f"{name}: max_turns", max_turns, 1, whole=True)
        check_number(f"{name}: format_penalty", format_penalty, 0)
        self._name, self._max_turns, self._format_penalty = name, max_turns, format_penalty
        self._tally, self._usage = Tally(), Usage()
        self.done = False

    def open(self) -> None:
        """Refuse to go on with what is over."""
        assert not self.done, f"{self._name}: stepped after done; an environment is single-use"

    def refused(self, said: Spoken, world: str, silent: str = SILENT) -> Reply:
        """The answer to a reply whose call cannot be read, or that calls nothing, which is told `silent`."""
        if said.fault is None:
            return self._turn([Message("user", silent)], world, valid=False)
        self._usage.count(0, [said.fault])
        return self._turn([Message("tool", f"error: {said.why}")], world, valid=False)

    def answered(self, answers: Sequence[Answer], world: str, reward: float | None = None) -> Reply:
        """What came of a reply's calls: effective if all of them went through. A `reward` ends it; 1 is a success."""
        faults = [answer.fault for answer in answers if answer.fault is not None]
        self._usage.count(len(answers), faults)
        messages = [Message("tool", answer.text) for answer in answers]
        return self._turn(messages, world, effective=not faults, reward=reward)

    def heard(self, words: str, world: str, reward: float | None = None) -> Reply:
        """What someone says to a reply that was meant for them."""
        return self._turn([Message("user", words)], world, effective=True, reward=reward)

    def _turn(
        self,
        messages: Sequence[Message],
        world: str,
        *,
        valid: bool = True,
        effective: bool = False,
        reward: float | None = None,
    ) -> Reply:
        self._tally.add(valid=valid, effective=valid and effective)
        self.done = reward is not None or self._tally.num_turns == self._max_turns
        return Reply(
            messages=tuple(messages),
            reward=(reward or 0.0) - (0.0 if valid else self._format_penalty),
            done=self.done,
            state=digest(world, *(message.content for message in messages)),
            metrics={**self._tally.metrics(success=reward == 1), **self._usage.metrics()},
        )


def digest(*texts: str) -> str:
    """A short name for texts, the same in every process."""
    found = hashlib.sha256()
    for text in texts:
        raw = text.encode("utf-8", "surrogatepass")
        found.update(b"%d:" % len(raw) + raw)
    return found.hexdigest()[:32]


def aloud(reply: str) -> str:
    """What a reply says after its thinking; all of it where it does not think, nothing where it never ends to."""
    _, closed, text = reply.rpartition("</think>")
    return text.strip() if closed or "<think>" not in reply else ""
