"""The native generator against `transformers` generate, on requests whose lengths have a long tail.

Both decode greedily the same requests with the same weights, and must give the same tokens. A token is useful if its
request asked for it; what a batch generates past the end of its shorter members is not.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import typer

from benchmarks.result import Result
from roll.engines.base import Request
from roll.engines.native.decoder import Decoder
from roll.engines.native.generator import NativeGenerator, Settings
from roll.types import Sampling
from roll.weights.inline import Shared

NUM_REQUESTS = 256
SLOTS = 32
THREADS = 2
ROUNDS = 3
VOCAB = 4096
CONTEXT = 64 + 256
"""The longest prompt and the longest reply."""

Replies = list[list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request of the workload."""

    prompt: tuple[int, ...]
    num_new: int
    """Exactly so many tokens are wanted; nothing ends a reply earlier."""


def run() -> Result:
    """Useful tokens per second of each side, its best of three rounds in turn."""
    torch.set_num_threads(THREADS)
    jobs = workload()
    model, decoder = _models()
    sides: dict[str, Callable[[Sequence[Job]], Replies]] = {
        "ours": lambda jobs: asyncio.run(_ours(decoder, jobs)),
        "transformers": lambda jobs: _peer(model, jobs),
    }
    for generate in sides.values():
        generate(jobs[:SLOTS])  # warm-up
    num_useful = sum(job.num_new for job in jobs)
    speeds: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(1, ROUNDS + 1):
        replies: dict[str, Replies] = {}
        for side, generate in sides.items():
            began = time.perf_counter()
            replies[side] = generate(jobs)
            speeds[side].append(num_useful / (time.perf_counter() - began))
            typer.echo(f"round {number} of {ROUNDS}: {side} {speeds[side][-1]:,.0f} useful tokens/s")
        assert replies["ours"] == replies["transformers"], "both decode greedily, so the tokens must be the same"
    return Result(
        name="generate",
        unit="useful tokens/s",
        higher_is_better=True,
        ours=max(speeds["ours"]),
        peer=max(speeds["transformers"]),
        details={side: [round(speed) for speed in found] for side, found in speeds.items()}
        | {"useful_tokens": num_useful, "batched_tokens": _num_batched(jobs)},
    )


def workload(seed: int = 0) -> list[Job]:
    """256 requests: prompts of 8 to 64 tokens, replies log-normal with median 24 and sigma 1, 256 at most."""
    source = random.Random(seed)
    return [
        Job(
            prompt=tuple(source.randrange(VOCAB) for _ in range(source.randint(8, 64))),
            num_new=max(1, min(256, round(source.lognormvariate(math.log(24), 1)))),
        )
        for _ in range(NUM_REQUESTS)
    ]


def _models() -> tuple[Any, Decoder]:
    """One set of random weights, 5.8M of them, in both implementations."""
    from transformers import AutoModelForCausalLM, Qwen3Config

    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        tie_word_embeddings=True,
        max_position_embeddings=CONTEXT,
        dtype="float32",
    )
    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType] - untyped in torch
    model: Any = cast(Any, AutoModelForCausalLM).from_config(config).eval()
    decoder = Decoder(config)
    decoder.load(model.state_dict().items(), where="the peer's weights")
    return model, decoder


async def _ours(decoder: Decoder, jobs: Sequence[Job]) -> Replies:
    """All requests at once; the generator admits them as slots fall free."""
    settings = Settings(
        slots=SLOTS, context=CONTEXT, prefill_tokens=8192, flush_tokens=CONTEXT, device=torch.device("cpu")
    )
    generator = NativeGenerator(decoder, settings, Shared())
    await generator.start()
    await generator.submit([_request(index, job) for index, job in enumerate(jobs)])
    replies: Replies = [[] for _ in jobs]
    left = len(jobs)
    while left:
        for output in await generator.events(max_wait_s=1.0):
            replies[int(output.id)] += output.ids.tolist()
            left -= output.finish is not None
    await generator.stop()
    return replies


def _request(index: int, job: Job) -> Request:
    return Request(
        id=str(index),
        ids=job.prompt,
        max_new_tokens=job.num_new,
        sampling=Sampling(temperature=0.0),
        stop=frozenset(),
        key=index,
    )


@torch.inference_mode()
def _peer(model: Any, jobs: Sequence[Job]) -> Replies:
    """Batches of 32 in the order of arrival, padded on the left; each runs until its longest reply is done."""
    replies: Replies = []
    for batch in _batches(jobs):
        width = max(len(job.prompt) for job in batch)
        ids = torch.tensor([[0] * (width - len(job.prompt)) + list(job.prompt) for job in batch])
        mask = torch.tensor([[0] * (width - len(job.prompt)) + [1] * len(job.prompt) for job in batch])
        found = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=max(job.num_new for job in batch),
            do_sample=False,
            use_cache=True,
            pad_token_id=0,
            eos_token_id=None,
        )
        rows: list[list[int]] = found[:, width:].tolist()
        replies += [row[: job.num_new] for row, job in zip(rows, batch, strict=True)]
    return replies


def _batches(jobs: Sequence[Job]) -> list[Sequence[Job]]:
    return [jobs[first : first + SLOTS] for first in range(0, len(jobs), SLOTS)]


def _num_batched(jobs: Sequence[Job]) -> int:
    """Tokens that batches generate, useful or not."""
    return sum(len(batch) * max(job.num_new for job in batch) for batch in _batches(jobs))
