"""Speed of a weight sync between two processes over gloo, and the cost of verifying it."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist

from benchmarks.result import Result
from roll.cluster.process import ProcessCluster
from roll.data.collate import supervised
from roll.engines.native.decoder import Decoder
from roll.engines.native.generator import NativeGenerator, NativeGeneratorSettings
from roll.engines.native.trainer import LogprobSettings, NativeLogprobModel
from roll.serving.canary import canary_for
from roll.types import Sampling, Spec
from roll.weights.broadcast import gloo
from roll.weights.channel import Shared
from roll.weights.digest import Digest, StreamingDigest, digest
from roll.weights.meeting import open_meeting

VOCAB, MAX_SEQ_LEN, REPEATS = 32_768, 128, 5


class GlooEndpoint:
    """One end of a weight sync: rank 0 trains, rank 1 serves; each has a separate model."""

    def __init__(self, rank: int, *, folder: str) -> None:
        from transformers import Qwen3Config

        torch.set_num_threads(1)
        self.rank, self.folder = rank, folder
        self.decoder = Decoder(
            Qwen3Config(
                vocab_size=VOCAB,
                hidden_size=768,
                intermediate_size=2304,
                num_hidden_layers=12,
                num_attention_heads=12,
                num_key_value_heads=4,
                head_dim=64,
                max_position_embeddings=MAX_SEQ_LEN,
                tie_word_embeddings=True,
            )
        )
        self.decoder.initialise(rank)
        self.decoder.requires_grad_(False)
        self.channel = gloo(0, meeting=f"{folder}/channel", num_receivers=1, sends=rank == 0)
        self.flat = torch.empty(self._num_bytes() // 4).fill_(rank)
        cpu = torch.device("cpu")
        settings = LogprobSettings(tokens_per_microbatch=4096, sampling=Sampling(), device=cpu)
        serving = NativeGeneratorSettings(
            max_num_seqs=16, max_seq_len=MAX_SEQ_LEN, max_num_batched_tokens=4096, progress_interval=64, device=cpu
        )
        self.logprob_model = NativeLogprobModel(self.decoder, settings)
        self.generator = NativeGenerator(self.decoder, serving, Shared())

    async def start(self) -> int:
        """Connect both ends; returns the bytes that one weight sync moves."""
        dist.init_process_group("gloo", init_method=f"file://{self.folder}/plain", rank=self.rank, world_size=2)
        await self.generator.start()
        await self.generator.pause()
        return self._num_bytes()

    async def broadcast(self) -> float:
        """Seconds of one broadcast of as many contiguous bytes."""
        _barrier()
        began = time.perf_counter()
        dist.broadcast(self.flat, 0)
        return time.perf_counter() - began

    async def transport(self, version: int) -> float:
        """Seconds until the receiver has received every tensor."""
        _barrier()
        began = time.perf_counter()
        if self.rank == 0:
            self.channel.send(self.decoder.named_tensors(), version=version)
        else:
            for _ in self.channel.receive(version=version):
                pass
        return time.perf_counter() - began

    async def sync(self, version: int, *, verified: bool) -> tuple[float, Digest | None]:
        """Seconds of a whole weight sync, and the digest of this end's weights if `verified`."""
        _barrier()
        began = time.perf_counter()
        with StreamingDigest(torch.device("cpu")) as streaming:
            if self.rank == 0:
                streaming.add(self.decoder.parameters() if verified else ())
                self.channel.send(self.decoder.named_tensors(), version=version)
            else:
                arriving = self.channel.receive(version=version)
                current = dict(self.decoder.named_tensors())
                tensors = streaming.watch(arriving, current) if verified else arriving
                self.decoder.load(tensors, where=f"version {version}")
            weights_digest = streaming.digest() if verified else None
        return time.perf_counter() - began, weights_digest

    async def digest(self) -> tuple[float, Digest]:
        """Seconds of the digest of this end's weights; both ends compute at the same time."""
        _barrier()
        began = time.perf_counter()
        weights_digest = digest(self.decoder.parameters())
        return time.perf_counter() - began, weights_digest

    async def canary(self) -> float:
        """Seconds of this end's part of the canary: the generator decodes, the trainer scores."""
        canary = canary_for(vocab=VOCAB, max_seq_len=MAX_SEQ_LEN)
        began = time.perf_counter()
        if self.rank == 1:
            await self.generator.probe(canary.ids, canary.num_new)
        else:
            text = [*canary.ids, *canary.ids[: canary.num_new]]
            await self.logprob_model.logprobs(supervised([(text[:1], text[1:])]), sampling=Sampling())
        return time.perf_counter() - began

    def _num_bytes(self) -> int:
        return sum(parameter.nbytes for parameter in self.decoder.parameters())


def _barrier() -> None:
    """Wait until both ends have arrived."""
    cast(Any, dist).barrier()


def run() -> Result:
    """GB per second against a plain broadcast: two processes of one thread, medians of five in alternation."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_measure(Path(folder)))


async def _measure(folder: Path) -> Result:
    open_meeting(folder / "channel")
    spec = Spec(f"{__name__}:GlooEndpoint", {"folder": str(folder)})
    endpoints = ProcessCluster[GlooEndpoint](spec, 2, name="publish")
    try:
        size = (await endpoints.each(GlooEndpoint.start))[0]
        plain, ours = list[float](), list[float]()
        for repeat in range(REPEATS + 1):  # the first of each is a warm-up and not counted
            plain.append(max(await endpoints.each(GlooEndpoint.broadcast)))
            ours.append(max(await endpoints.each(GlooEndpoint.transport, repeat)))
        bare, verified = list[float](), list[float]()
        for repeat in range(REPEATS):
            first = REPEATS + 1 + 2 * repeat
            bare.append(max(took for took, _ in await endpoints.each(GlooEndpoint.sync, first, verified=False)))
            ends = await endpoints.each(GlooEndpoint.sync, first + 1, verified=True)
            assert ends[0][1] == ends[1][1], "the weights did not arrive"
            verified.append(max(took for took, _ in ends))
        digests = [await endpoints.each(GlooEndpoint.digest) for _ in range(REPEATS)]
        canaries = [sum(await endpoints.each(GlooEndpoint.canary)) for _ in range(REPEATS)]
    finally:
        await endpoints.stop()
    digest_s = statistics.median(max(seconds for seconds, _ in each) for each in digests)
    verification = Verification(
        bare_s=statistics.median(bare),
        proven_s=statistics.median(verified),
        digest_s=digest_s,
        canary_s=statistics.median(canaries),
    )
    return _result(size, plain[1:], ours[1:], verification)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Median seconds of weight syncs with and without verification."""

    bare_s: float
    """A weight sync without digests: sent, received and copied into place."""
    proven_s: float
    """A weight sync with the digests of both ends."""
    digest_s: float
    """The digests alone, both ends at the same time."""
    canary_s: float
    """The canary, both ends in sequence."""


def _result(size: int, plain: Sequence[float], ours: Sequence[float], verification: Verification) -> Result:
    plain_s, ours_s = statistics.median(plain), statistics.median(ours)
    details: dict[str, Any] = {
        "megabytes": round(size / 1e6),
        "plain_s": [round(seconds, 3) for seconds in plain],
        "ours_s": [round(seconds, 3) for seconds in ours],
        "bare_s": round(verification.bare_s, 3),
        "proven_s": round(verification.proven_s, 3),
        "digest_s": round(verification.digest_s, 3),
        "canary_s": round(verification.canary_s, 3),
        "digest_on_top": round(verification.proven_s / verification.bare_s - 1, 3),
        "proof_on_top": round((verification.proven_s + verification.canary_s) / verification.bare_s - 1, 3),
        "digest_of_transport": round(verification.digest_s / ours_s, 3),
        "canary_of_transport": round(verification.canary_s / ours_s, 3),
    }
    return Result(
        name="publish",
        unit="GB/s",
        higher_is_better=True,
        ours=size / ours_s / 1e9,
        peer=size / plain_s / 1e9,
        details=details,
    )
