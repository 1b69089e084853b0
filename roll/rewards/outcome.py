"""What became of asking a reward: a score, or why there is none and whose fault that is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from roll.errors import RewardFailed
from roll.types import Score


class Ending(StrEnum):
    """How the asking came to its end."""

    SCORED = "scored"
    TIMED_OUT = "timed_out"
    FAILED = "failed"


class Fault(StrEnum):
    """Who has to mend something before there can be a score."""

    TASK = "task"
    """It cannot be judged as it stands; the other tasks can."""
    REWARD = "reward"
    """Its code raised, never ended, or returned what is not a number to train on."""
    INFRASTRUCTURE = "infrastructure"
    """A process died, the sandbox or a service failed: the same question may well have an answer next time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A score if and only if `ending` says so: what failed is never a score of zero."""

    ending: Ending
    score: Score | None = None
    fault: Fault | None = None
    """None where there is a score."""
    reason: str = ""
    """One line for whoever is to mend it; empty where there is a score."""

    def __post_init__(self) -> None:
        scored = self.ending is Ending.SCORED
        assert scored == (self.score is not None) == (self.fault is None) == (not self.reason), self

    @classmethod
    def of(cls, score: Score) -> Outcome:
        """A score."""
        return cls(ending=Ending.SCORED, score=score)

    @classmethod
    def failed(cls, fault: Fault, reason: str) -> Outcome:
        """No score."""
        return cls(ending=Ending.FAILED, fault=fault, reason=reason)

    @classmethod
    def timed_out(cls, reason: str) -> Outcome:
        """No score within the limit of time."""
        return cls(ending=Ending.TIMED_OUT, fault=Fault.REWARD, reason=reason)


class Unscored(RewardFailed):
    """Raised by a reward that already knows whose fault it is that it has no score."""

    def __init__(self, fault: Fault, reason: str) -> None:
        self.fault, self.reason = fault, reason
        super().__init__(fault, reason)  # args carry the fields, so the error pickles

    def __str__(self) -> str:
        return self.reason
