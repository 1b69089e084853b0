"""Trajectories to bytes and back: ids in the fewest bytes that fit, versions as runs, the rest as msgpack.

Narrow ids take less space than deflated wide ids and a tenth of the time; logprobs hardly compress. So only text is
deflated, and only above a minimum length.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
import numpy as np

from roll.errors import ConfigError
from roll.types import Finish, Score, Segment, Status, Task, Trajectory, Turn

if TYPE_CHECKING:
    from roll.types import Floats, Ints

    Runs = list[tuple[int, int]]

_INT, _UNSIGNED, _SHORT, _FLOAT = np.dtype("<i4"), np.dtype("<u4"), np.dtype("<u2"), np.dtype("<f4")
_EXPERT = np.dtype("<i2")
_LONG = 512
"""Bytes of text above which deflating is worth its time."""
_LEVEL = 1


class PackedTrajectory(NamedTuple):
    """A trajectory as bytes."""

    body: bytes
    versions: dict[int, int]
    """Number of tokens by the version that sampled them."""


class TaskTexts:
    """Cache of tasks as bytes, each encoded once for all attempts at it."""

    def __init__(self) -> None:
        self._encoded: dict[int, tuple[Task, tuple[bool, bytes]]] = {}
        """By `id(task)`; holding the task keeps its id from being reused."""

    def encode(self, task: Task) -> tuple[bool, bytes]:
        """Whether the bytes are deflated, and the bytes."""
        entry = self._encoded.get(id(task))
        if entry is None:
            text = _ENCODER.encode(task)
            encoded = (True, zlib.compress(text, _LEVEL)) if len(text) > _LONG else (False, text)
            entry = self._encoded[id(task)] = task, encoded
        return entry[1]


def pack(trajectory: Trajectory, texts: TaskTexts | None = None) -> PackedTrajectory:
    """The whole trajectory, in the form that `unpack` reads; `texts` avoids encoding a task twice."""
    versions: dict[int, int] = {}
    segments = [
        (segment.agent, [_pack_turn(turn, versions) for turn in segment.turns]) for segment in trajectory.segments
    ]
    try:
        body = _ENCODER.encode(
            (
                (texts or TaskTexts()).encode(trajectory.task),
                trajectory.sibling,
                segments,
                trajectory.status,
                trajectory.score,
                trajectory.reason.encode("utf-8", "backslashreplace").decode(),  # may quote any text
                trajectory.metrics,
            )
        )
    except (TypeError, OverflowError, UnicodeEncodeError) as error:
        raise ConfigError(
            f"task {trajectory.task.id!r}: its answer, metadata or metrics cannot be recorded ({error}); "
            "use text that UTF-8 can encode, numbers that fit 64 bits, lists and dictionaries"
        ) from None
    return PackedTrajectory(body, versions)


def unpack(body: bytes) -> Trajectory:
    """The packed trajectory; its arrays are read-only."""
    (deflated, text), sibling, segments, status, score, reason, metrics = msgspec.msgpack.decode(body)
    return Trajectory(
        task=msgspec.msgpack.decode(zlib.decompress(text) if deflated else text, type=Task),
        sibling=sibling,
        segments=tuple(
            Segment(agent=agent, turns=tuple(_unpack_turn(turn) for turn in turns)) for agent, turns in segments
        ),
        status=Status(status),
        score=msgspec.convert(score, Score | None),
        reason=reason,
        metrics=metrics,
    )


def pack_values(values: Floats) -> bytes:
    """A number per token as bytes; equal numbers, such as the advantages of an attempt in GRPO, are stored once."""
    if len(values) > 1 and (values == values[0]).all():
        values = values[:1]
    return _cast(values, _FLOAT).tobytes()


def unpack_values(body: bytes, num_tokens: int) -> Floats:
    """The packed numbers; read-only."""
    values = np.frombuffer(body, _FLOAT)
    return np.broadcast_to(values, num_tokens) if len(values) == 1 else values


def version_runs(versions: Ints) -> Runs:
    """Consecutive tokens of one version as (version, number of tokens); almost always one or two runs."""
    if not len(versions):
        return []
    if (first := versions.item(0)) == versions.item(-1):  # they only grow
        return [(first, len(versions))]
    ends = [*(np.flatnonzero(versions[1:] != versions[:-1]) + 1).tolist(), len(versions)]
    return [(int(versions[end - 1]), end - start) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _pack_turn(turn: Turn, versions: dict[int, int]) -> tuple[Any, ...]:
    """The turn as plain values; adds its tokens to the counts in `versions`."""
    runs = version_runs(turn.versions)
    for version, num_tokens in runs:
        versions[version] = versions.get(version, 0) + num_tokens
    return (
        len(turn.observation),
        _narrow(turn.observation, turn.sampled),
        _cast(turn.sampler_logprobs, _FLOAT).tobytes(),
        runs,
        turn.finish,
        turn.reward,
        turn.generated_s,
        turn.queued_s,
        turn.waited_s,
        turn.state,
        turn.span_rewards,
        *(() if turn.experts is None else [(turn.experts.shape, _cast(turn.experts, _EXPERT).tobytes())]),
    )


def _unpack_turn(plain: list[Any]) -> Turn:
    num_observed, narrow, logprobs, runs, finish, reward, generated_s, queued_s, waited_s, state, spans, *rest = plain
    ids = _widen(*narrow)
    return Turn(
        observation=ids[:num_observed],
        sampled=ids[num_observed:],
        sampler_logprobs=np.frombuffer(logprobs, _FLOAT),
        versions=np.repeat(np.array([run[0] for run in runs], _INT), [run[1] for run in runs]),
        finish=Finish(finish),
        reward=reward,
        generated_s=generated_s,
        queued_s=queued_s,
        waited_s=waited_s,
        state=state,
        span_rewards=tuple((index, value) for index, value in spans),
        experts=np.frombuffer(rest[0][1], _EXPERT).reshape(rest[0][0]) if rest else None,
    )


def _narrow(observed: Ints, sampled: Ints) -> tuple[int, bytes]:
    """Bytes per id, and all ids in that width."""
    body = _cast(observed, _INT).tobytes() + _cast(sampled, _INT).tobytes()  # joining bytes is faster than arrays
    wide = np.frombuffer(body, _UNSIGNED)
    largest = wide.item(wide.argmax()) if body else 0  # argmax takes a quarter of the time of max
    if largest < 1 << 16:
        return 2, wide.astype(_SHORT).tobytes()
    if largest < 1 << 24:
        return 3, wide.view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    return 4, body


def _cast(row: Any, dtype: np.dtype[Any]) -> Any:
    """The row in this dtype; nearly all rows have it already, and the check is cheaper than `astype`."""
    return row if row.dtype is dtype else row.astype(dtype)


def _widen(width: int, body: bytes) -> Ints:
    if width == 3:
        wide = np.zeros((len(body) // 3, 4), np.uint8)
        wide[:, :3] = np.frombuffer(body, np.uint8).reshape(-1, 3)
        return wide.view(_INT).reshape(-1)
    return np.frombuffer(body, _SHORT if width == 2 else _INT).astype(_INT, copy=False)


def _plain(value: Any) -> Any:
    """numpy scalars as Python numbers; anything else is refused."""
    if isinstance(value, np.generic):
        return cast(Any, value).item()
    raise TypeError(f"got a {type(value).__name__}")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain)
