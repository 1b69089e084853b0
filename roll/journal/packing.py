"""A trajectory as bytes and back: ids as narrow as they fit, versions as runs, the rest as msgpack.

Narrow ids take less room than deflated wide ones and a tenth of the time; logprobs hardly deflate at all. So only text
is deflated, and only where there is enough of it.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
import numpy as np

from roll.errors import ConfigError
from roll.types import Finish, Score, Segment, Status, Task, Trajectory, Turn

if TYPE_CHECKING:
    from roll.types import Ints

    Runs = list[tuple[int, int]]

_INT, _UNSIGNED, _SHORT, _FLOAT = np.dtype("<i4"), np.dtype("<u4"), np.dtype("<u2"), np.dtype("<f4")
_LONG = 512
"""Bytes of text from which deflating is worth its time."""
_LEVEL = 1


class Packed(NamedTuple):
    """A trajectory ready to be stored."""

    body: bytes
    versions: dict[int, int]
    """How many tokens each version sampled."""


class Texts:
    """Tasks as bytes, each made once for all attempts at it."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Task, tuple[bool, bytes]]] = {}
        """By identity; the task itself is held, lest another has its identity."""

    def of(self, task: Task) -> tuple[bool, bytes]:
        """Whether it was deflated, and the bytes."""
        found = self._known.get(id(task))
        if found is None:
            found = self._known[id(task)] = task, _deflate(_ENCODER.encode(task))
        return found[1]


def pack(trajectory: Trajectory, texts: Texts | None = None) -> Packed:
    """Everything the trajectory holds, in a form `unpack` reads; with `texts` tasks are not made anew."""
    versions: dict[int, int] = {}
    segments = [
        (segment.agent, [_pack_turn(turn, versions) for turn in segment.turns]) for segment in trajectory.segments
    ]
    try:
        body = _ENCODER.encode(
            (
                (texts or Texts()).of(trajectory.task),
                trajectory.sibling,
                segments,
                trajectory.status,
                trajectory.score,
                trajectory.reason,
                trajectory.metrics,
            )
        )
    except (TypeError, OverflowError) as error:
        raise ConfigError(
            f"task {trajectory.task.id!r}: its answer, metadata or metrics cannot be recorded ({error}); "
            "use text, numbers that fit 64 bits, lists and dictionaries"
        ) from None
    return Packed(body, versions)


def unpack(body: bytes) -> Trajectory:
    """The trajectory that was packed; its arrays are read-only."""
    task, sibling, segments, status, score, reason, metrics = msgspec.msgpack.decode(body)
    return Trajectory(
        task=msgspec.msgpack.decode(_inflate(task), type=Task),
        sibling=sibling,
        segments=tuple(
            Segment(agent=agent, turns=tuple(_unpack_turn(turn) for turn in turns)) for agent, turns in segments
        ),
        status=Status(status),
        score=msgspec.convert(score, Score | None),
        reason=reason,
        metrics=metrics,
    )


def version_runs(versions: Ints) -> Runs:
    """Each version and how many tokens in a row it sampled; almost always one or two."""
    if not len(versions):
        return []
    if (first := versions.item(0)) == versions.item(-1):  # they only grow
        return [(first, len(versions))]
    ends = [*(np.flatnonzero(versions[1:] != versions[:-1]) + 1).tolist(), len(versions)]
    return [(int(versions[end - 1]), end - start) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _pack_turn(turn: Turn, versions: dict[int, int]) -> tuple[Any, ...]:
    """The turn as plain values; its tokens are added to those that each version sampled."""
    runs = version_runs(turn.versions)
    for version, num_tokens in runs:
        versions[version] = versions.get(version, 0) + num_tokens
    return (
        len(turn.observation),
        _narrow(turn.observation, turn.sampled),
        _typed(turn.sampler_logprobs, _FLOAT).tobytes(),
        runs,
        turn.finish,
        turn.reward,
        turn.generated_s,
        turn.queued_s,
        turn.waited_s,
        turn.state,
    )


def _unpack_turn(plain: list[Any]) -> Turn:
    num_heard, narrow, logprobs, runs, finish, reward, generated_s, queued_s, waited_s, state = plain
    ids = _widen(*narrow)
    return Turn(
        observation=ids[:num_heard],
        sampled=ids[num_heard:],
        sampler_logprobs=np.frombuffer(logprobs, _FLOAT),
        versions=np.repeat(np.array([run[0] for run in runs], _INT), [run[1] for run in runs]),
        finish=Finish(finish),
        reward=reward,
        generated_s=generated_s,
        queued_s=queued_s,
        waited_s=waited_s,
        state=state,
    )


def _narrow(heard: Ints, said: Ints) -> tuple[int, bytes]:
    """Bytes an id, and all ids end to end in so many."""
    body = _typed(heard, _INT).tobytes() + _typed(said, _INT).tobytes()  # bytes are quicker to join than arrays
    wide = np.frombuffer(body, _UNSIGNED)
    largest = wide.item(wide.argmax()) if body else 0  # a quarter of the time that `max` takes
    if largest < 1 << 16:
        return 2, wide.astype(_SHORT).tobytes()
    if largest < 1 << 24:
        return 3, wide.view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    return 4, body


def _typed(row: Any, kind: np.dtype[Any]) -> Any:
    """The row as numbers of this kind; nearly all are already, and to ask for it costs more than to see that."""
    return row if row.dtype is kind else row.astype(kind)


def _widen(width: int, body: bytes) -> Ints:
    if width == 3:
        wide = np.zeros((len(body) // 3, 4), np.uint8)
        wide[:, :3] = np.frombuffer(body, np.uint8).reshape(-1, 3)
        return wide.view(_INT).reshape(-1)
    return np.frombuffer(body, _SHORT if width == 2 else _INT).astype(_INT, copy=False)


def _deflate(text: bytes) -> tuple[bool, bytes]:
    """Whether it was, and the text."""
    return (True, zlib.compress(text, _LEVEL)) if len(text) > _LONG else (False, text)


def _inflate(found: list[Any]) -> bytes:
    deflated, text = found
    return zlib.decompress(text) if deflated else text


def _plain(value: Any) -> Any:
    """Numbers of numpy become numbers; anything else is refused."""
    if isinstance(value, np.generic):
        return cast(Any, value).item()
    raise TypeError(f"got a {type(value).__name__}")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain)
