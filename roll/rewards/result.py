"""The result of one reward call: a score, or the reason why there is none and whose fault that is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from roll.errors import RewardFailed
from roll.types import Score


class RewardStatus(StrEnum):
    """How a reward call ended."""

    SCORED = "scored"
    TIMED_OUT = "timed_out"
    FAILED = "failed"


class RewardFault(StrEnum):
    """What must be fixed before there can be a score."""

    TASK = "task"
    """This task cannot be scored; others can."""
    REWARD = "reward"
    """The reward's code raised, did not return, or returned something that is not a usable number."""
    INFRASTRUCTURE = "infrastructure"
    """A process died, or the sandbox or a service failed: a retry may succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardResult:
    """A score exactly when `status` is SCORED: a failure is never a score of zero."""

    status: RewardStatus
    score: Score | None = None
    fault: RewardFault | None = None
    """None with a score."""
    reason: str = ""
    """One line for the user; empty with a score."""

    def __post_init__(self) -> None:
        scored = self.status is RewardStatus.SCORED
        assert scored == (self.score is not None) == (self.fault is None) == (not self.reason), self

    @classmethod
    def from_score(cls, score: Score) -> RewardResult:
        return cls(status=RewardStatus.SCORED, score=score)

    @classmethod
    def failure(cls, fault: RewardFault, reason: str) -> RewardResult:
        return cls(status=RewardStatus.FAILED, fault=fault, reason=_storable(reason))

    @classmethod
    def timeout(cls, reason: str) -> RewardResult:
        return cls(status=RewardStatus.TIMED_OUT, fault=RewardFault.REWARD, reason=_storable(reason))


class Unscored(RewardFailed):
    """Raised by reward code that has no score and can tell whose fault that is."""

    def __init__(self, fault: RewardFault, reason: str) -> None:
        self.fault, self.reason = fault, reason
        super().__init__(fault, reason)  # args carry the fields, so the error pickles

    def __str__(self) -> str:
        return self.reason


def _storable(reason: str) -> str:
    """The text with escapes for halves of surrogate pairs, which may come from a response that a reward quotes."""
    return reason.encode("utf-8", "backslashreplace").decode()
