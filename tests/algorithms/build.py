"""Builders of small batches and tokens from plain lists; fields that a test leaves out get neutral defaults."""

from collections.abc import Sequence
from typing import Any

import torch

from roll.types import Batch, Tokens

KINDS = {
    "ids": torch.int64,
    "trained": torch.bool,
    "versions": torch.int32,
    "trajectory": torch.int64,
    "group": torch.int64,
    "truncated": torch.bool,
    "turn": torch.int64,
    "turn_trajectory": torch.int64,
    "turn_states": torch.int64,
    "row": torch.int64,
}
"""Dtypes of fields that are not fp32."""


def tokens(logprobs: Sequence[float], **overrides: Any) -> Tokens:
    """Tokens of one row, one turn and one trajectory, all trained, whose other numbers are 0.

    Any field may be given as a list. `logprobs` and `values` are leaves with a gradient.
    """
    size = len(logprobs)
    rows = _tensors({"logprobs": logprobs, **overrides})
    zeros = {name: _zeros(name, size) for name in ("old_logprobs", "sampler_logprobs", "advantages", "row")}
    row = rows.get("row", zeros["row"])
    owners = {"trained": torch.ones(size, dtype=torch.bool), "turn": row, "trajectory": row}
    for name in {"logprobs", "values"} & set(rows):
        rows[name].requires_grad_()
    return Tokens(**{**zeros, **owners, **rows})


def batch(trained: Sequence[int], lengths: Sequence[int] | None = None, **overrides: Any) -> Batch:
    """A batch of one row, or of rows of the given lengths.

    Each row is a trajectory of its own and one turn, unless `trajectory` [rows] and `turn` [tokens] say otherwise; all
    trajectories are of one group. A trajectory's reward, and the penalties taken off it, are its last turn's. Any
    field may be given as a list, `parts` as a dict of lists.
    """
    lengths = (len(trained),) if lengths is None else tuple(lengths)
    parts = _tensors(overrides.pop("parts", {}))
    fields = _tensors({"trained": trained, **overrides})
    fields.setdefault("trajectory", torch.arange(len(lengths)))
    row = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths, dtype=torch.int64))
    owner = fields["trajectory"][row]
    plain = {
        "ids": torch.arange(len(trained)),
        "sampler_logprobs": _zeros("sampler_logprobs", len(trained)),
        "versions": torch.where(fields["trained"], 0, -1).to(torch.int32),
    }
    fields = {**plain, **_of_trajectories(fields), **fields}
    fields = {**_of_turns(fields, row, owner), **fields}
    return Batch(lengths=lengths, parts=parts, **fields)


def _of_trajectories(fields: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    known = [len(fields[name]) for name in ("rewards", "group", "truncated") if name in fields]
    size = known[0] if known else int(fields["trajectory"].max()) + 1
    return {name: _zeros(name, size) for name in ("rewards", "group", "truncated")}


def _of_turns(fields: dict[str, torch.Tensor], row: torch.Tensor, owner: torch.Tensor) -> dict[str, torch.Tensor]:
    turn = fields.get("turn", row)
    num_turns = int(turn.max()) + 1 if len(turn) else 0
    turn_trajectory = fields.get("turn_trajectory", torch.zeros(num_turns, dtype=torch.int64).index_put((turn,), owner))
    earned = fields["rewards"].clone()
    if "penalties" in fields:
        earned.index_add_(0, owner, fields["penalties"])
    last = {int(trajectory): index for index, trajectory in enumerate(turn_trajectory)}
    turn_rewards = torch.zeros(len(turn_trajectory))
    for trajectory, index in last.items():
        turn_rewards[index] = earned[trajectory]
    return {"turn": turn, "turn_trajectory": turn_trajectory, "turn_rewards": turn_rewards}


def _tensors(overrides: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {
        name: torch.as_tensor(value, dtype=KINDS.get(name, torch.float32))
        for name, value in overrides.items()
        if value is not None
    }


def _zeros(name: str, size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=KINDS.get(name, torch.float32))
