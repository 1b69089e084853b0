"""The nouns. One record per stage; a sample is handed on by becoming the next record.

Task -> Turn -> Segment -> Trajectory -> Group -> Batch. Entry t of every per-token row is about token t; the one shift
(logits at t score token t+1) lives inside an engine's forward pass. Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

import numpy as np

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    Ints = NDArray[np.int32]
    Floats = NDArray[np.float32]
    Bools = NDArray[np.bool_]

T = TypeVar("T")
POLICY = "policy"
"""The agent of environments that name none."""


@dataclass_transform(kw_only_default=True, frozen_default=True, eq_default=False)
def record(cls: type[T]) -> type[T]:
    """A dataclass with slots and keyword-only fields that is frozen for the type checker, and equal to itself alone.

    For what every sample needs a dozen of: freezing at run time as well takes three times as long to make one.
    """
    return dataclass(slots=True, kw_only=True, eq=False)(cls)


@dataclass(frozen=True, slots=True)
class Call:
    """A function or class by name with its keyword arguments; pickles, and resolves in any process."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Message:
    """One entry of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One thing to attempt."""

    id: str
    domain: str
    messages: tuple[Message, ...] = ()
    answer: Any = None
    """What a verifier compares with: a string, or whatever the domain's schema says."""
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    seed: int = 0
    """Where an environment's own randomness comes from."""


@dataclass(frozen=True, slots=True)
class Score:
    """What a reward function found: the number trained on, and its parts, logged by name."""

    value: float
    parts: dict[str, float] = field(default_factory=dict[str, float])


class Finish(StrEnum):
    """Why the sampling of one turn ended."""

    STOP = "stop"
    """A stop token was sampled; it is the turn's last token."""
    LENGTH = "length"
    ABORT = "abort"


class Status(StrEnum):
    """What became of a trajectory."""

    FINISHED = "finished"
    TRUNCATED = "truncated"
    ENV_FAILED = "env_failed"
    REWARD_FAILED = "reward_failed"
    ENGINE_FAILED = "engine_failed"
    ABORTED = "aborted"
    STALE = "stale"
    FILTERED = "filtered"

    def __init__(self, value: str) -> None:
        self.valid = value in ("finished", "truncated")
        """Whether the attempt itself came to an end, so that its reward means something."""


@record
class Turn:
    """One exchange: what the environment said, and what the policy sampled in answer."""

    observation: Ints
    """Ids that entered the context before sampling; never trained on."""
    sampled: Ints
    """Ids exactly as they left the engine."""
    sampler_logprobs: Floats
    """Of `sampled`, under the distribution each was drawn from."""
    versions: Ints
    """Of the weights that sampled each token; grows within a turn that was resumed."""
    finish: Finish
    reward: float = 0.0
    """What the environment gave for this turn."""
    generated_s: float = 0.0
    """Seconds from asking for the reply until it was whole."""
    queued_s: float = 0.0
    """Of these, the seconds in which no generator had the request."""
    waited_s: float = 0.0
    """Seconds until the environment answered."""
    state: str = ""
    """Names the state of the world in which this turn was taken; empty where the environment does not say."""


@record
class Segment:
    """One append-only token sequence: turns end to end, as one flat row of each kind."""

    turns: tuple[Turn, ...]
    agent: str = POLICY
    """Who wrote what was sampled in it; one attempt may have several agents."""

    @property
    def ids(self) -> Ints:
        return self._row(lambda turn: turn.observation, lambda turn: turn.sampled, np.int32)

    @property
    def trained(self) -> Bools:
        """True where the policy wrote the token and the loss may touch it."""
        return self._row(
            lambda turn: np.zeros(len(turn.observation), np.bool_),
            lambda turn: np.ones(len(turn.sampled), np.bool_),
            np.bool_,
        )

    @property
    def sampler_logprobs(self) -> Floats:
        """0.0 where `trained` is False."""
        return self._row(
            lambda turn: np.zeros(len(turn.observation), np.float32), lambda turn: turn.sampler_logprobs, np.float32
        )

    @property
    def versions(self) -> Ints:
        """-1 where `trained` is False."""
        return self._row(lambda turn: np.full(len(turn.observation), -1), lambda turn: turn.versions, np.int32)

    def _row(self, observed: Callable[[Turn], Any], sampled: Callable[[Turn], Any], kind: Any) -> Any:
        parts = [part for turn in self.turns for part in (observed(turn), sampled(turn))]
        return np.concatenate(parts).astype(kind) if parts else np.zeros(0, kind)


@record
class Trajectory:
    """One attempt at a task. Every trained token stands in exactly one of its segments."""

    task: Task
    sibling: int
    segments: tuple[Segment, ...]
    status: Status
    score: Score | None = None
    """From the reward function; None for tasks whose environment gives the rewards, and for failures."""
    reason: str = ""
    """Why it is not trained on, or was cut; empty when there is nothing to say."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """What the environment counted, such as success."""

    @property
    def turns(self) -> tuple[Turn, ...]:
        if len(self.segments) == 1:
            return self.segments[0].turns
        return tuple(turn for segment in self.segments for turn in segment.turns)

    @property
    def reward(self) -> float:
        """Outcome plus everything the environment gave on the way, to all agents."""
        given = 0.0
        for segment in self.segments:
            for turn in segment.turns:
                given += turn.reward
        return given if self.score is None else self.score.value + given

    def by_agent(self) -> dict[str, Trajectory]:
        """The attempt as each of its agents had it, in the order of its segments; the score is everybody's."""
        if len(self.segments) == 1:
            return {self.segments[0].agent: self}
        agents = dict.fromkeys([segment.agent for segment in self.segments])
        if len(agents) < 2:
            return dict.fromkeys(agents or (POLICY,), self)
        return {
            agent: replace(self, segments=tuple(segment for segment in self.segments if segment.agent == agent))
            for agent in agents
        }

    @property
    def num_sampled(self) -> int:
        num_tokens = 0
        for segment in self.segments:
            for turn in segment.turns:
                num_tokens += len(turn.sampled)
        return num_tokens

    def scored(self, score: Score) -> Trajectory:
        """The same attempt with what the reward function found."""
        return Trajectory(
            task=self.task,
            sibling=self.sibling,
            segments=self.segments,
            status=self.status,
            score=score,
            reason=self.reason,
            metrics=self.metrics,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """Sibling attempts at one task, all of them valid; baselines are taken across a group."""

    id: int
    """The ticket it was admitted with; groups are trained on in this order."""
    birth: int
    """The version that was published when its first request was dispatched."""
    trajectories: tuple[Trajectory, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """What one step trains on: flat ragged rows, `lengths` cuts them into sequences, one sequence a segment."""

    ids: torch.Tensor
    """[tokens] int64"""
    trained: torch.Tensor
    """[tokens] bool"""
    sampler_logprobs: torch.Tensor
    """[tokens] fp32"""
    versions: torch.Tensor
    """[tokens] int32, -1 where not trained"""
    lengths: tuple[int, ...]
    """Of each row; they sum to `tokens`."""
    trajectory: torch.Tensor
    """[rows] int64: index of the row's trajectory in `rewards`; an attempt with several agents is one for each"""
    group: torch.Tensor
    """[trajectories] int64: which group each trajectory belongs to; those of another agent are another group"""
    rewards: torch.Tensor
    """[trajectories] fp32"""
    truncated: torch.Tensor
    """[trajectories] bool: ended by a limit, not by themselves"""
    turn: torch.Tensor
    """[tokens] int64: the turn each token belongs to, as observation or reply, counted over the batch"""
    turn_trajectory: torch.Tensor
    """[turns] int64"""
    turn_rewards: torch.Tensor
    """[turns] fp32; a trajectory's outcome is part of its last turn, so that they sum to its reward"""
    domains: tuple[str, ...] = ()
    """[trajectories]: the domain of each; empty where none is told"""
    agents: tuple[str, ...] = ()
    """[trajectories]: whose each is; empty where that is not told"""
    turn_states: torch.Tensor | None = None
    """[turns] int64: equal numbers are equal states of the world; None where an environment does not say"""
    parts: Mapping[str, torch.Tensor] = field(default_factory=lambda: {})
    """[trajectories] fp32 by name: what scores were made of, NaN where a trajectory has no such part"""
    penalties: torch.Tensor | None = None
    """[tokens] fp32: taken off the reward token by token; `rewards` are net of them, `turn_rewards` are not"""
    old_logprobs: torch.Tensor | None = None
    """[tokens] fp32, from the trainer before this step's first update; None when one update makes them needless"""
    ref_logprobs: torch.Tensor | None = None
    teacher_logprobs: torch.Tensor | None = None
    values: torch.Tensor | None = None
    """[tokens] fp32: entry t is the value of the state in which token t was chosen"""
    advantages: torch.Tensor | None = None
    returns: torch.Tensor | None = None
    """[tokens] fp32: what `values` should have been"""
    weights: torch.Tensor | None = None
    """[tokens] fp32: what each token's loss is multiplied with; carries mask and denominator of one optimizer step"""

    @property
    def num_tokens(self) -> int:
        return sum(self.lengths)

    def places(self, rows: Sequence[int]) -> Any:
        """[tokens] int64: where the tokens of these rows stand in the flat ones."""
        ends: list[int] = np.cumsum(self.lengths).tolist()
        return np.concatenate([np.arange(ends[row] - self.lengths[row], ends[row]) for row in rows])

    def select(self, rows: Sequence[int]) -> Batch:
        """The given rows, in the given order. What is not a row stays whole, so ids keep their meaning."""
        ends: list[int] = np.cumsum(self.lengths).tolist()
        spans = [slice(ends[row] - self.lengths[row], ends[row]) for row in rows]
        cut = {
            name: _joined(value, spans)
            for name in _TOKEN_ROWS
            if (value := getattr(self, name)) is not None
        }  # fmt: skip
        return replace(
            self, **cut, lengths=tuple(self.lengths[row] for row in rows), trajectory=self.trajectory[list(rows)]
        )


def _joined(row: torch.Tensor, spans: Sequence[slice]) -> torch.Tensor:
    """Pieces of a row end to end; whole pieces are copied ten times as fast as tokens are looked up."""
    found = row.new_empty(sum(span.stop - span.start for span in spans))
    plain = row.detach().numpy()
    np.concatenate([plain[span] for span in spans], out=found.numpy())
    return found


_TOKEN_ROWS = (
    "ids",
    "trained",
    "sampler_logprobs",
    "versions",
    "turn",
    "penalties",
    "old_logprobs",
    "ref_logprobs",
    "teacher_logprobs",
    "values",
    "advantages",
    "returns",
    "weights",
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tokens:
    """What a loss sees: flat rows of whole sequences. `logprobs` are the trained weights'; the others say whose."""

    logprobs: torch.Tensor
    old_logprobs: torch.Tensor
    sampler_logprobs: torch.Tensor
    advantages: torch.Tensor
    trained: torch.Tensor
    row: torch.Tensor
    """[tokens] int64: which sequence each token belongs to, counted from 0 within this record"""
    trajectory: torch.Tensor
    """[tokens] int64"""
    turn: torch.Tensor
    """[tokens] int64"""
    ref_logprobs: torch.Tensor | None = None
    teacher_logprobs: torch.Tensor | None = None
    values: torch.Tensor | None = None
    """A critic's, of the weights being trained; entry t is about the state in which token t was chosen."""
    old_values: torch.Tensor | None = None
    returns: torch.Tensor | None = None
    entropies: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """The distribution tokens are drawn from. Trainer and generator read it alike."""

    temperature: float = 1.0
    """0 is greedy: the likeliest token, with the logprob it has at temperature 1."""
    top_k: int = 0
    """Only the k likeliest tokens; 0 means all."""
    top_p: float = 1.0
    """Only the fewest tokens whose probabilities reach p."""


@dataclass(frozen=True, slots=True)
class ServedVersion:
    """The weights that the generators hold."""

    version: int
    step: int
    """Steps that these weights were trained for. Versions only grow; steps go back when a run is resumed."""


@dataclass(frozen=True, slots=True)
class Digest:
    """A fingerprint of weights that fusing, sharding and zero padding leave unchanged."""

    sums: dict[str, tuple[int, int]]
    """By dtype: the sum modulo 2^32 of the bit patterns, and of their squares."""
