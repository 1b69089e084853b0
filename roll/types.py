"""The shared records, one per stage: Task -> Turn -> Segment -> Trajectory -> Group -> Batch.

Entry t of every per-token row is about token t; the one shift (logits at t score token t+1) is inside an engine's
forward pass. Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, dataclass_transform

import numpy as np

from roll.registry import Spec as Spec

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    Ints = NDArray[np.int32]
    Floats = NDArray[np.float32]
    Bools = NDArray[np.bool_]
    Experts = NDArray[np.int16]

T = TypeVar("T")
POLICY = "policy"
"""The agent of environments without named agents."""


@dataclass_transform(kw_only_default=True, frozen_default=True, eq_default=False)
def record(cls: type[T]) -> type[T]:
    """A dataclass with slots and keyword-only fields, frozen only for the type checker, compared by identity.

    For records of which every sample has a dozen: freezing at run time would triple the time to create one.
    """
    return dataclass(slots=True, kw_only=True, eq=False)(cls)


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation; the role is `system`, `user`, `assistant` or `tool`."""

    role: str
    content: str
    extra: str = ""
    """Further fields for the chat template, such as `tool_calls`, as a JSON object; text, so that messages hash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One thing to attempt."""

    id: str
    """Name of the task in logs and samples."""
    domain: str
    """Name of its source."""
    messages: tuple[Message, ...] = ()
    """The prompt; empty if the environment writes it."""
    answer: Any = None
    """Reference for a verifier: a string, or the type that the domain's reward expects."""
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further fields of its row."""
    seed: int = 0
    """Seed of the environment's randomness."""
    reply: Message | None = None
    """The assistant's reply at the end of a chat, to learn from; None if the row has none."""


class Span(NamedTuple):
    """A reward for a part of a response: the characters from `start` up to, but not including, `end`."""

    start: int
    """First character of the part."""
    end: int
    """Number of characters up to its end."""
    value: float
    """Reward that the part earns at its last token."""


@dataclass(frozen=True, slots=True)
class Score:
    """Result of a reward function: the value to train on, its parts for logging, and rewards within the response."""

    value: float
    """Reward of the whole response."""
    parts: dict[str, float] = field(default_factory=dict[str, float])
    """Numbers to log by name; they are not added to the reward."""
    comment: str = ""
    """Why the score is what it is, for the reader of a sample; stored with the score, never trained on."""
    spans: tuple[Span, ...] = ()
    """Rewards of parts of the response, added to `value`; each is earned at the token that ends the span."""

    @property
    def total(self) -> float:
        """The value plus the values of all spans."""
        return self.value + sum(span.value for span in self.spans)


class Finish(StrEnum):
    """Why the sampling of one turn ended."""

    STOP = "stop"
    """A stop token was sampled; it is the turn's last token."""
    LENGTH = "length"
    ABORT = "abort"


class Status(StrEnum):
    """Outcome of a trajectory: complete, failed by one of its parts, cancelled, too old, or replaced by a filter."""

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
        """Whether the attempt completed, so that its reward is meaningful."""


@record
class Turn:
    """One observation from the environment and the policy's response to it."""

    observation: Ints
    """Ids added to the context before sampling; never trained on."""
    sampled: Ints
    """Sampled ids, exactly as the engine returned them."""
    sampler_logprobs: Floats
    """Logprobs of `sampled` under the distributions they were drawn from."""
    versions: Ints
    """Version of the weights that sampled each token; increases within a resumed turn."""
    finish: Finish
    reward: float = 0.0
    """Reward from the environment for this turn."""
    generated_s: float = 0.0
    """Seconds from the request to the complete response."""
    queued_s: float = 0.0
    """Part of `generated_s` in which no generator had the request."""
    waited_s: float = 0.0
    """Seconds until the environment answered."""
    state: str = ""
    """Name of the environment's state in this turn; empty if the environment does not report states."""
    span_rewards: tuple[tuple[int, float], ...] = ()
    """Rewards of the score's spans: index in `sampled` of the token that ends a span, and value. Indices increase."""
    experts: Experts | None = None
    """[tokens, layers, k]: for every token of `observation` and `sampled` the experts of the pass before it, which
    computed its distribution; -1 where unknown, None if the generator does not record them"""

    @property
    def total_reward(self) -> float:
        """The environment's reward plus the rewards of spans."""
        return self.reward + sum(value for _, value in self.span_rewards) if self.span_rewards else self.reward


@record
class Segment:
    """One append-only token sequence: consecutive turns, with one flat row per property."""

    turns: tuple[Turn, ...]
    agent: str = POLICY
    """The agent that sampled it; one attempt may have several agents."""

    @property
    def ids(self) -> Ints:
        """Observations and sampled tokens of all turns."""
        return self._row(lambda turn: turn.observation, lambda turn: turn.sampled, np.int32)

    @property
    def trained(self) -> Bools:
        """True on sampled tokens, which the loss may train on."""
        return self._row(
            lambda turn: np.zeros(len(turn.observation), np.bool_),
            lambda turn: np.ones(len(turn.sampled), np.bool_),
            np.bool_,
        )

    def _row(self, observed: Callable[[Turn], Any], sampled: Callable[[Turn], Any], kind: Any) -> Any:
        parts = [part for turn in self.turns for part in (observed(turn), sampled(turn))]
        return np.concatenate(parts).astype(kind) if parts else np.zeros(0, kind)


@record
class Trajectory:
    """One attempt at a task. Every trained token is in exactly one of its segments."""

    task: Task
    sibling: int
    """Index within its group."""
    segments: tuple[Segment, ...]
    status: Status
    score: Score | None = None
    """Result of the reward function; None if the environment gives the rewards, and for failures."""
    reason: str = ""
    """Why it failed, was truncated or is not trained on; empty otherwise."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """Metrics from the environment, such as success."""

    @property
    def turns(self) -> tuple[Turn, ...]:
        if len(self.segments) == 1:
            return self.segments[0].turns
        return tuple(turn for segment in self.segments for turn in segment.turns)

    @property
    def reward(self) -> float:
        """The score's value plus the rewards of all turns of all agents, spans included."""
        total = 0.0
        for segment in self.segments:
            for turn in segment.turns:
                total += turn.total_reward
        return total if self.score is None else self.score.value + total

    def by_agent(self) -> dict[str, Trajectory]:
        """One trajectory per agent with its segments, in the order of first segments; all have the score."""
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
        """Sampled tokens of all turns."""
        num_tokens = 0
        for segment in self.segments:
            for turn in segment.turns:
                num_tokens += len(turn.sampled)
        return num_tokens

    def with_score(self, score: Score) -> Trajectory:
        """The same attempt with a score."""
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
    """Sibling attempts at one task, all valid; baselines are computed over a group."""

    id: int
    """Number of its admission; groups are trained on in this order."""
    birth: int
    """Version of the weights when its first request was sent."""
    trajectories: tuple[Trajectory, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """The data of one step, in flat ragged rows; `lengths` divides them into sequences, one per segment."""

    ids: torch.Tensor
    """[tokens] int64"""
    trained: torch.Tensor
    """[tokens] bool"""
    sampler_logprobs: torch.Tensor
    """[tokens] fp32, from the generator that sampled the tokens"""
    versions: torch.Tensor
    """[tokens] int32, -1 where not trained"""
    lengths: tuple[int, ...]
    """Length of each row; they sum to `tokens`."""
    trajectory: torch.Tensor
    """[rows] int64: index of the row's trajectory in `rewards`; an attempt has one trajectory per agent"""
    group: torch.Tensor
    """[trajectories] int64: index of each trajectory's group; different agents are in different groups"""
    rewards: torch.Tensor
    """[trajectories] fp32"""
    truncated: torch.Tensor
    """[trajectories] bool: ended by a limit"""
    turn: torch.Tensor
    """[tokens] int64: index of the turn of each token, observation or response, in the whole batch"""
    turn_trajectory: torch.Tensor
    """[turns] int64"""
    turn_rewards: torch.Tensor
    """[turns] fp32; the score of a trajectory is part of its last turn. With `span_rewards` they sum to its reward"""
    domains: tuple[str, ...] = ()
    """[trajectories]: domain of each; empty if unknown"""
    agents: tuple[str, ...] = ()
    """[trajectories]: agent of each; empty if unknown"""
    turn_states: torch.Tensor | None = None
    """[turns] int64: equal numbers are equal states; None if an environment does not report states"""
    parts: Mapping[str, torch.Tensor] = field(default_factory=lambda: {})
    """[trajectories] fp32 by name: parts of the scores, NaN where a trajectory lacks the part"""
    span_rewards: torch.Tensor | None = None
    """[tokens] fp32: reward of the spans that end at each token, NaN where none does; None if no score has spans.
    Already part of `rewards`, not of `turn_rewards`"""
    experts: torch.Tensor | None = None
    """[tokens, layers, k] int16: experts that the generator chose in the pass before each token, -1 where unknown"""
    penalties: torch.Tensor | None = None
    """[tokens] fp32: subtracted from the reward per token; already subtracted in `rewards`, not in `turn_rewards`"""
    old_logprobs: torch.Tensor | None = None
    """[tokens] fp32, from the trainer before this step's first update; None if the step has only one update"""
    entropies: torch.Tensor | None = None
    """[tokens] fp32, in nats, from the pass that computes `old_logprobs`; None unless the algorithm needs them"""
    ref_logprobs: torch.Tensor | None = None
    """[tokens] fp32, from the reference; None without one"""
    teacher_logprobs: torch.Tensor | None = None
    """[tokens] fp32, from the teacher; None without one"""
    values: torch.Tensor | None = None
    """[tokens] fp32: entry t is the value of the state in which token t was sampled"""
    advantages: torch.Tensor | None = None
    """[tokens] fp32, 0 where not trained; None before they are computed"""
    returns: torch.Tensor | None = None
    """[tokens] fp32: targets of `values`"""
    weights: torch.Tensor | None = None
    """[tokens] fp32: factor on each token's loss; contains mask and denominator of one optimizer step"""

    @property
    def num_tokens(self) -> int:
        """Tokens of all rows."""
        return sum(self.lengths)

    def positions(self, rows: Sequence[int]) -> Any:
        """[tokens] int64: positions of the tokens of these rows in the flat rows."""
        ends: list[int] = np.cumsum(self.lengths).tolist()
        return np.concatenate([np.arange(ends[row] - self.lengths[row], ends[row]) for row in rows])

    def select(self, rows: Sequence[int]) -> Batch:
        """A batch of the given rows, in that order. Data per trajectory, turn and group is unchanged, so that indices
        stay valid."""
        ends: list[int] = np.cumsum(self.lengths).tolist()
        spans = [slice(ends[row] - self.lengths[row], ends[row]) for row in rows]
        values = ((name, getattr(self, name)) for name in _TOKEN_ROWS)
        cut = {name: _join(value, spans) for name, value in values if value is not None}
        return replace(
            self, **cut, lengths=tuple(self.lengths[row] for row in rows), trajectory=self.trajectory[list(rows)]
        )


def _join(row: torch.Tensor, spans: Sequence[slice]) -> torch.Tensor:
    """Spans of a row as one row; copying spans is ten times as fast as indexing tokens."""
    joined = row.new_empty(sum(span.stop - span.start for span in spans), *row.shape[1:])
    plain = row.detach().numpy()
    np.concatenate([plain[span] for span in spans], out=joined.numpy())
    return joined


_TOKEN_ROWS = (
    *("ids", "trained", "sampler_logprobs", "versions", "turn", "span_rewards", "penalties", "old_logprobs"),
    *("entropies", "ref_logprobs", "teacher_logprobs", "values", "advantages", "returns", "weights", "experts"),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tokens:
    """Input of a loss: flat rows of whole sequences. `logprobs` are those of the current weights."""

    logprobs: torch.Tensor
    """[tokens] fp32, with gradient"""
    old_logprobs: torch.Tensor
    """[tokens] fp32, before the step's first update"""
    sampler_logprobs: torch.Tensor
    advantages: torch.Tensor
    trained: torch.Tensor
    """[tokens] bool: sampled tokens that the loss covers; all values are 0 at the others"""
    row: torch.Tensor
    """[tokens] int64: index of each token's sequence, from 0 within this record"""
    trajectory: torch.Tensor
    """[tokens] int64"""
    turn: torch.Tensor
    """[tokens] int64"""
    ref_logprobs: torch.Tensor | None = None
    teacher_logprobs: torch.Tensor | None = None
    values: torch.Tensor | None = None
    """Values of the critic being trained; entry t is about the state in which token t was sampled."""
    old_values: torch.Tensor | None = None
    """[tokens] fp32: values before the step's first update; None without a critic"""
    returns: torch.Tensor | None = None
    entropies: torch.Tensor | None = None
    """[tokens] fp32, in nats; with a gradient if `algorithm.entropy_coefficient` is above 0"""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Parameters of the distribution that tokens are sampled from; trainer and generator use the same."""

    temperature: float = 1.0
    """0 is greedy: the most likely token, with its logprob at temperature 1."""
    top_k: int = 0
    """Only the k most likely tokens; 0: all."""
    top_p: float = 1.0
    """Only the smallest set of tokens with total probability of at least p."""
