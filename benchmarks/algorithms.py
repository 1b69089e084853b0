"""Seconds of every loss, forward and backward, and of every advantage, on a step of 1,024 trajectories of 2,048 tokens.

Each is timed with its default arguments and with those that reach its other branches. None may loop over tokens; the
time of one pass of `exp` over as many numbers stands beside them, as the least that anything could take.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import typer

from benchmarks.result import Result
from roll.conformance import ours
from roll.conformance.ours import described
from roll.registry import ADVANTAGES, LOSSES
from roll.types import Batch, Call, Tokens

THREADS = 2
REPEATS = 3
BOUND_S = 0.25
WIDE_S = 0.5
"""For what runs along trajectories or looks for equal states."""
WIDE = ("gae", "gigpo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large a step is."""

    trajectories: int = 1024
    length: int = 2048
    """Tokens of each."""
    siblings: int = 8
    turns: int = 8
    """Of each trajectory, a sixteenth of it observation."""


def run(size: Size | None = None) -> Result:
    """The slowest of all losses and all advantages but GAE and GiGPO, whose own bound stands in the details."""
    torch.set_num_threads(THREADS)
    batch = step(size or Size())
    seen = tokens(batch)
    exp_s = _seconds("one pass of exp", lambda: seen.logprobs.detach().exp())
    losses = {described(call): _seconds(f"loss {described(call)}", _update(call, seen)) for call in ours.LOSSES}
    advantages, wide = (
        {
            described(call): _seconds(f"advantage {described(call)}", _call(call, batch))
            for call in ours.ADVANTAGES
            if (call.name in WIDE) == chosen
        }
        for chosen in (False, True)
    )
    return Result(
        name="algorithms",
        unit="s",
        higher_is_better=False,
        ours=max(*losses.values(), *advantages.values()),
        bound=BOUND_S,
        details={
            "exp_s": _rounded(exp_s),
            "losses_s": {name: _rounded(found) for name, found in losses.items()},
            "advantages_s": {name: _rounded(found) for name, found in advantages.items()},
            "wide_s": {name: _rounded(found) for name, found in wide.items()},
            "wide_bound_s": WIDE_S,
        },
    )


def step(size: Size) -> Batch:
    """A batch with everything that any advantage reads."""
    noise = torch.Generator().manual_seed(0)
    num_tokens, num_turns = size.trajectories * size.length, size.trajectories * size.turns
    per_turn = size.length // size.turns
    place = torch.arange(num_tokens)
    trained = place % per_turn >= max(1, per_turn // 16)
    turn_rewards = torch.rand(num_turns, generator=noise)
    logprobs = -torch.rand(4, num_tokens, generator=noise)
    owner = torch.arange(num_turns) // size.turns
    return Batch(
        ids=torch.zeros(num_tokens, dtype=torch.int64),
        trained=trained,
        sampler_logprobs=logprobs[0],
        versions=trained.int() - 1,
        lengths=(size.length,) * size.trajectories,
        trajectory=torch.arange(size.trajectories),
        group=torch.arange(size.trajectories) // size.siblings,
        rewards=torch.zeros(size.trajectories).index_add(0, owner, turn_rewards),
        truncated=torch.rand(size.trajectories, generator=noise) < 0.1,
        turn=place // per_turn,
        turn_trajectory=owner,
        turn_rewards=turn_rewards,
        turn_states=torch.randint(0, 64, (num_turns,), generator=noise),
        old_logprobs=logprobs[1],
        ref_logprobs=logprobs[2],
        teacher_logprobs=logprobs[3],
        values=torch.randn(num_tokens, generator=noise),
        advantages=torch.randn(num_tokens, generator=noise),
        returns=torch.randn(num_tokens, generator=noise),
        weights=trained.float() / trained.sum(),
    )


def tokens(batch: Batch) -> Tokens:
    """The whole batch as one micro-batch; logprobs and values take gradients."""
    assert batch.old_logprobs is not None and batch.advantages is not None and batch.values is not None
    row = torch.repeat_interleave(torch.arange(len(batch.lengths)), torch.tensor(batch.lengths))
    noise = torch.Generator().manual_seed(1)
    return Tokens(
        logprobs=(batch.old_logprobs + 0.1 * torch.randn(len(row), generator=noise)).requires_grad_(),
        old_logprobs=batch.old_logprobs,
        sampler_logprobs=batch.sampler_logprobs,
        advantages=batch.advantages,
        trained=batch.trained,
        row=row,
        trajectory=batch.trajectory[row],
        turn=batch.turn,
        ref_logprobs=batch.ref_logprobs,
        teacher_logprobs=batch.teacher_logprobs,
        values=(batch.values + 0.1 * torch.randn(len(row), generator=noise)).requires_grad_(),
        old_values=batch.values,
        returns=batch.returns,
        entropies=torch.zeros(len(row)),
    )


def _update(call: Call, seen: Tokens) -> Callable[[], Any]:
    function, inputs = LOSSES[call.name], [seen.logprobs, seen.values]

    def once() -> None:
        row: torch.Tensor = function(seen, **call.arguments)[0]
        torch.autograd.grad(row.sum(), [given for given in inputs if given is not None], allow_unused=True)

    return once


def _call(call: Call, batch: Batch) -> Callable[[], Any]:
    return lambda: ADVANTAGES[call.name](batch, **call.arguments)


def _seconds(label: str, work: Callable[[], Any]) -> float:
    """The best of three, after one that does not count."""
    work()
    found: list[float] = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    typer.echo(f"{label}: {min(found):.4f} s")
    return min(found)


def _rounded(seconds: float) -> float:
    return round(seconds, 4)
