"""A trajectory as compressed bytes and back: the arrays as they lie in memory, the rest as msgpack."""

from __future__ import annotations

import zlib
from typing import Any, cast

import msgspec
import numpy as np

from roll.errors import ConfigError
from roll.types import Finish, Score, Segment, Status, Task, Trajectory, Turn

_INT, _FLOAT = np.dtype("<i4"), np.dtype("<f4")
_LEVEL = 1  # logprobs hardly compress; more effort would cost the loop time for nothing


def pack(trajectory: Trajectory) -> bytes:
    """Everything the trajectory holds, in a form `unpack` reads."""
    plain = {
        "task": trajectory.task,
        "sibling": trajectory.sibling,
        "segments": [(segment.agent, [_pack_turn(turn) for turn in segment.turns]) for segment in trajectory.segments],
        "status": trajectory.status,
        "score": trajectory.score,
        "reason": trajectory.reason,
        "metrics": trajectory.metrics,
    }
    try:
        return zlib.compress(msgspec.msgpack.encode(plain, enc_hook=_plain), _LEVEL)
    except (TypeError, OverflowError) as error:
        raise ConfigError(
            f"task {trajectory.task.id!r}: its answer, metadata or metrics cannot be recorded ({error}); "
            "use text, numbers that fit 64 bits, lists and dictionaries"
        ) from None


def unpack(body: bytes) -> Trajectory:
    """The trajectory that was packed; its arrays are read-only."""
    plain = msgspec.msgpack.decode(zlib.decompress(body))
    return Trajectory(
        task=msgspec.convert(plain["task"], Task),
        sibling=plain["sibling"],
        segments=tuple(
            Segment(agent=agent, turns=tuple(_unpack_turn(turn) for turn in turns))
            for agent, turns in plain["segments"]
        ),
        status=Status(plain["status"]),
        score=msgspec.convert(plain["score"], Score | None),
        reason=plain["reason"],
        metrics=plain["metrics"],
    )


def _pack_turn(turn: Turn) -> dict[str, Any]:
    return {
        "observation": turn.observation.astype(_INT).tobytes(),
        "sampled": turn.sampled.astype(_INT).tobytes(),
        "sampler_logprobs": turn.sampler_logprobs.astype(_FLOAT).tobytes(),
        "versions": turn.versions.astype(_INT).tobytes(),
        "finish": turn.finish,
        "reward": turn.reward,
        "generated_s": turn.generated_s,
        "waited_s": turn.waited_s,
        "state": turn.state,
    }


def _unpack_turn(plain: dict[str, Any]) -> Turn:
    return Turn(
        observation=np.frombuffer(plain["observation"], _INT),
        sampled=np.frombuffer(plain["sampled"], _INT),
        sampler_logprobs=np.frombuffer(plain["sampler_logprobs"], _FLOAT),
        versions=np.frombuffer(plain["versions"], _INT),
        finish=Finish(plain["finish"]),
        reward=plain["reward"],
        generated_s=plain["generated_s"],
        waited_s=plain["waited_s"],
        state=plain["state"],
    )


def _plain(value: Any) -> Any:
    """Numbers of numpy become numbers; anything else is refused."""
    if isinstance(value, np.generic):
        return cast(Any, value).item()
    raise TypeError(f"got a {type(value).__name__}")
