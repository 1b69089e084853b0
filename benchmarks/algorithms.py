"""Seconds of every loss, forward and backward, and of every advantage, on a step of 1,024 trajectories of 2,048 tokens.

Each function is timed with its default arguments and with arguments that reach its other branches. None may loop over
tokens in Python. One pass of `exp` over as many numbers is timed as well, as a lower bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import typer

from benchmarks import built_ins
from benchmarks.built_ins import describe
from benchmarks.result import Result
from roll.registry import ADVANTAGES, LOSSES
from roll.types import Batch, Spec, Tokens

THREADS = 2
REPEATS = 3
BOUND_S = 0.25
WIDE_S = 0.5
"""Bound of the functions in `WIDE`, which scan along trajectories or search for equal states."""
WIDE = ("gae", "gigpo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Size of the benchmarked step."""

    trajectories: int = 1024
    length: int = 2048
    """Tokens per trajectory."""
    siblings: int = 8
    turns: int = 8
    """Turns per trajectory; 1/16 of the tokens of each turn is observation."""


def run(size: Size | None = None) -> Result:
    """Seconds of the slowest loss or advantage. GAE and GiGPO have a separate bound, in the details."""
    torch.set_num_threads(THREADS)
    batch = step(size or Size())
    seen = tokens(batch)
    exp_s = _seconds("one pass of exp", lambda: seen.logprobs.detach().exp())
    losses = {describe(call): _seconds(f"loss {describe(call)}", _update(call, seen)) for call in built_ins.LOSSES}
    advantages, wide = (
        {
            describe(call): _seconds(f"advantage {describe(call)}", _call(call, batch))
            for call in built_ins.ADVANTAGES
            if (call.name in WIDE) == is_wide
        }
        for is_wide in (False, True)
    )
    return Result(
        name="algorithms",
        unit="s",
        higher_is_better=False,
        ours=max(*losses.values(), *advantages.values()),
        bound=BOUND_S,
        details={
            "exp_s": _round(exp_s),
            "losses_s": {name: _round(seconds) for name, seconds in losses.items()},
            "advantages_s": {name: _round(seconds) for name, seconds in advantages.items()},
            "wide_s": {name: _round(seconds) for name, seconds in wide.items()},
            "wide_bound_s": WIDE_S,
        },
    )


def step(size: Size) -> Batch:
    """A batch with every field that any advantage reads."""
    noise = torch.Generator().manual_seed(0)
    num_tokens, num_turns = size.trajectories * size.length, size.trajectories * size.turns
    per_turn = size.length // size.turns
    position = torch.arange(num_tokens)
    trained = position % per_turn >= max(1, per_turn // 16)
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
        turn=position // per_turn,
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
    """The whole batch as one micro-batch; logprobs and values require gradients."""
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


def _update(call: Spec, seen: Tokens) -> Callable[[], Any]:
    function, inputs = LOSSES[call.name], [seen.logprobs, seen.values]

    def once() -> None:
        row: torch.Tensor = function(seen, **call.kwargs)[0]
        torch.autograd.grad(row.sum(), [leaf for leaf in inputs if leaf is not None], allow_unused=True)

    return once


def _call(call: Spec, batch: Batch) -> Callable[[], Any]:
    return lambda: ADVANTAGES[call.name](batch, **call.kwargs)


def _seconds(label: str, work: Callable[[], Any]) -> float:
    """The best of three calls after a warm-up call."""
    work()
    times: list[float] = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    typer.echo(f"{label}: {min(times):.4f} s")
    return min(times)


def _round(seconds: float) -> float:
    return round(seconds, 4)
