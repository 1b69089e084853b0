"""A trajectory as bytes and back: ids as narrow as they fit, versions as runs, the rest as msgpack.

Narrow ids take less room than deflated wide ones and a tenth of the time; logprobs hardly deflate at all. So only text
is deflated, and only where there is enough of it.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np

from roll.errors import ConfigError
from roll.types import Finish, Score, Segment, Status, Task, Trajectory, Turn

if TYPE_CHECKING:
    from roll.types import Ints

    Runs = list[tuple[int, int]]

_INT, _FLOAT = np.dtype("<i4"), np.dtype("<f4")
_LONG = 512
"""Bytes of text from which deflating is worth its time."""
_LEVEL = 1


@dataclass(frozen=True, slots=True)
class Packed:
    """A trajectory ready to be stored."""

    body: bytes
    versions: dict[int, int]
    """How many tokens each version sampled."""


def pack(trajectory: Trajectory) -> Packed:
    """Everything the trajectory holds, in a form `unpack` reads."""
    runs = [version_runs(turn.versions) for turn in trajectory.turns]
    following = iter(runs)
    segments = [
        (segment.agent, [_pack_turn(turn, next(following)) for turn in segment.turns])
        for segment in trajectory.segments
    ]
    try:
        body = _ENCODER.encode(
            (
                _deflate(_ENCODER.encode(trajectory.task)),
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
    return Packed(body, _count(runs))


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
    raw = versions.tobytes()
    if raw == raw[: versions.itemsize] * len(versions):  # ten times as fast as what follows
        return [(int(versions[0]), len(versions))] if raw else []
    ends = [*(np.flatnonzero(versions[1:] != versions[:-1]) + 1).tolist(), len(versions)]
    return [(int(versions[end - 1]), end - start) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _count(runs: list[Runs]) -> dict[int, int]:
    found: dict[int, int] = {}
    for version, num_tokens in (run for each in runs for run in each):
        found[version] = found.get(version, 0) + num_tokens
    return found


def _pack_turn(turn: Turn, runs: Runs) -> tuple[Any, ...]:
    return (
        _narrow(turn.observation),
        _narrow(turn.sampled),
        np.ascontiguousarray(turn.sampler_logprobs, _FLOAT).data,
        runs,
        turn.finish,
        turn.reward,
        turn.generated_s,
        turn.waited_s,
        turn.state,
    )


def _unpack_turn(plain: list[Any]) -> Turn:
    observation, sampled, logprobs, runs, finish, reward, generated_s, waited_s, state = plain
    return Turn(
        observation=_widen(*observation),
        sampled=_widen(*sampled),
        sampler_logprobs=np.frombuffer(logprobs, _FLOAT),
        versions=np.repeat(np.array([run[0] for run in runs], _INT), [run[1] for run in runs]),
        finish=Finish(finish),
        reward=reward,
        generated_s=generated_s,
        waited_s=waited_s,
        state=state,
    )


def _narrow(ids: Ints) -> tuple[int, Any]:
    """Bytes an id, and the ids in so many."""
    wide = np.ascontiguousarray(ids, _INT)
    highest = int(np.maximum.reduce(wide.view(np.uint32))) if len(wide) else 0  # a negative id is a high one
    if highest < 1 << 16:
        return 2, wide.astype("<u2").data
    if highest < 1 << 24:
        return 3, wide.view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    return 4, wide.data


def _widen(width: int, body: bytes) -> Ints:
    if width == 3:
        wide = np.zeros((len(body) // 3, 4), np.uint8)
        wide[:, :3] = np.frombuffer(body, np.uint8).reshape(-1, 3)
        return wide.view(_INT).reshape(-1)
    return np.frombuffer(body, "<u2" if width == 2 else _INT).astype(_INT, copy=False)


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
