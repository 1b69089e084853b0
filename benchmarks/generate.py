"""The native generator against `transformers` generate, on requests whose lengths have a long tail.

Both decode the same requests greedily with the same weights, and must produce the same tokens. A token is useful if its
request asked for it; tokens that a padded batch generates past the end of a shorter response are not.
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
from roll.engines.native.generator import NativeGenerator, NativeGeneratorSettings
from roll.types import Sampling
from roll.weights.channel import Shared

NUM_REQUESTS = 256
SLOTS = 32
THREADS = 2
ROUNDS = 3
VOCAB = 4096
MAX_SEQ_LEN = 64 + 256
"""Longest prompt plus longest response."""

Responses = list[list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request of the workload."""

    prompt: tuple[int, ...]
    num_new: int
    """Exact length of the response; no token ends it earlier."""


def run() -> Result:
    """Useful tokens per second of each side: the best of three rounds, in alternation."""
    torch.set_num_threads(THREADS)
    jobs = workload()
    model, decoder = _models()
    sides: dict[str, Callable[[Sequence[Job]], Responses]] = {
        "ours": lambda jobs: asyncio.run(_ours(decoder, jobs)),
        "transformers": lambda jobs: _peer(model, jobs),
    }
    for generate in sides.values():
        generate(jobs[:SLOTS])  # warm-up
    num_useful = sum(job.num_new for job in jobs)
    speeds: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(1, ROUNDS + 1):
        responses: dict[str, Responses] = {}
        for side, generate in sides.items():
            began = time.perf_counter()
            responses[side] = generate(jobs)
            speeds[side].append(num_useful / (time.perf_counter() - began))
            typer.echo(f"round {number} of {ROUNDS}: {side} {speeds[side][-1]:,.0f} useful tokens/s")
        assert responses["ours"] == responses["transformers"], (
            "both sides decode greedily, so their tokens must be the same"
        )
    return Result(
        name="generate",
        unit="useful tokens/s",
        higher_is_better=True,
        ours=max(speeds["ours"]),
        peer=max(speeds["transformers"]),
        details={side: [round(speed) for speed in values] for side, values in speeds.items()}
        | {"useful_tokens": num_useful, "batched_tokens": _num_batched(jobs)},
    )


def workload(seed: int = 0) -> list[Job]:
    """256 requests: prompts of 8 to 64 tokens, responses log-normal with median 24 and sigma 1, 256 at most."""
    rng = random.Random(seed)
    return [
        Job(
            prompt=tuple(rng.randrange(VOCAB) for _ in range(rng.randint(8, 64))),
            num_new=max(1, min(256, round(rng.lognormvariate(math.log(24), 1)))),
        )
        for _ in range(NUM_REQUESTS)
    ]


def _models() -> tuple[Any, Decoder]:
    """The same 5.8M random weights in both implementations."""
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
        max_position_embeddings=MAX_SEQ_LEN,
        dtype="float32",
    )
    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType] - untyped in torch
    model: Any = cast(Any, AutoModelForCausalLM).from_config(config).eval()
    decoder = Decoder(config)
    decoder.load(model.state_dict().items(), where="the peer's weights")
    return model, decoder


async def _ours(decoder: Decoder, jobs: Sequence[Job]) -> Responses:
    """Submit all requests at once; the generator admits them as slots become free."""
    settings = NativeGeneratorSettings(
        max_num_seqs=SLOTS,
        max_seq_len=MAX_SEQ_LEN,
        max_num_batched_tokens=8192,
        progress_interval=MAX_SEQ_LEN,
        device=torch.device("cpu"),
    )
    generator = NativeGenerator(decoder, settings, Shared())
    await generator.start()
    await generator.submit([_request(index, job) for index, job in enumerate(jobs)])
    responses: Responses = [[] for _ in jobs]
    left = len(jobs)
    while left:
        for output in await generator.events(max_wait_s=1.0):
            responses[int(output.id)] += output.ids.tolist()
            left -= output.finish is not None
    await generator.stop()
    return responses


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
def _peer(model: Any, jobs: Sequence[Job]) -> Responses:
    """Decode batches of 32 in order of arrival, left-padded; each runs until its longest response ends."""
    responses: Responses = []
    for batch in _batches(jobs):
        width = max(len(job.prompt) for job in batch)
        ids = torch.tensor([[0] * (width - len(job.prompt)) + list(job.prompt) for job in batch])
        mask = torch.tensor([[0] * (width - len(job.prompt)) + [1] * len(job.prompt) for job in batch])
        output = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=max(job.num_new for job in batch),
            do_sample=False,
            use_cache=True,
            pad_token_id=0,
            eos_token_id=None,
        )
        rows: list[list[int]] = output[:, width:].tolist()
        responses += [row[: job.num_new] for row, job in zip(rows, batch, strict=True)]
    return responses


def _batches(jobs: Sequence[Job]) -> list[Sequence[Job]]:
    return [jobs[first : first + SLOTS] for first in range(0, len(jobs), SLOTS)]


def _num_batched(jobs: Sequence[Job]) -> int:
    """Tokens that the padded batches generate, useful or not."""
    return sum(len(batch) * max(job.num_new for job in batch) for batch in _batches(jobs))
