"""How fast weights get from one process to another over gloo, and what it costs to prove that they did."""

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
from roll.cluster.processes import ProcessCluster
from roll.data.collate import supervised
from roll.engines.native.decoder import Decoder
from roll.engines.native.generator import NativeGenerator
from roll.engines.native.generator import Settings as InferSettings
from roll.engines.native.trainer import NativeScorer, ScoreSettings
from roll.serving.canary import canary_of
from roll.types import Call, Digest, Sampling
from roll.weights.digest import Folding, digest
from roll.weights.gloo import gloo
from roll.weights.inline import Shared

VOCAB, CONTEXT, REPEATS = 32_768, 128, 5


class Member:
    """One end of a publication: rank 0 trains, rank 1 serves; each has a model of its own."""

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
                max_position_embeddings=CONTEXT,
                tie_word_embeddings=True,
            )
        )
        self.decoder.initialise(rank)
        self.decoder.requires_grad_(False)
        self.channel = gloo(0, url=f"file://{folder}/channel", num_receivers=1, sends=rank == 0)
        self.flat = torch.empty(self._num_bytes() // 4).fill_(rank)
        cpu = torch.device("cpu")
        reading = ScoreSettings(tokens_per_microbatch=4096, sampling=Sampling(), device=cpu)
        serving = InferSettings(slots=16, context=CONTEXT, prefill_tokens=4096, flush_tokens=64, device=cpu)
        self.scorer = NativeScorer(self.decoder, reading)
        self.generator = NativeGenerator(self.decoder, serving, Shared())

    async def start(self) -> int:
        """Bytes that one publication moves."""
        dist.init_process_group("gloo", init_method=f"file://{self.folder}/plain", rank=self.rank, world_size=2)
        await self.generator.start()
        await self.generator.pause()
        return self._num_bytes()

    async def plain(self) -> float:
        """Seconds of one broadcast of as many bytes, which lie end to end already."""
        _together()
        began = time.perf_counter()
        dist.broadcast(self.flat, 0)
        return time.perf_counter() - began

    async def transport(self, version: int) -> float:
        """Seconds until every tensor has been in the receiver's hands."""
        _together()
        began = time.perf_counter()
        if self.rank == 0:
            self.channel.send(self.decoder.named_tensors(), version=version)
        else:
            for _ in self.channel.receive(version=version):
                pass
        return time.perf_counter() - began

    async def deliver(self, version: int, *, proven: bool) -> tuple[float, Digest | None]:
        """Seconds of a whole publication, with the fingerprint of what this end holds if it is to be proven."""
        _together()
        began = time.perf_counter()
        with Folding() as folding:
            if self.rank == 0:
                folding.add(self.decoder.parameters() if proven else ())
                self.channel.send(self.decoder.named_tensors(), version=version)
            else:
                arriving = self.channel.receive(version=version)
                held = dict(self.decoder.named_tensors())
                landing = folding.landing(arriving, held) if proven else arriving
                self.decoder.load(landing, where=f"version {version}")
            found = folding.digest() if proven else None
        return time.perf_counter() - began, found

    async def digest(self) -> tuple[float, Digest]:
        """Seconds for the fingerprint of what this end holds, both ends at the same time."""
        _together()
        began = time.perf_counter()
        found = digest(self.decoder.parameters())
        return time.perf_counter() - began, found

    async def canary(self) -> float:
        """Seconds of this end's share in the canary: the generator speaks, the trainer listens."""
        canary = canary_of(vocab=VOCAB, context=CONTEXT)
        began = time.perf_counter()
        if self.rank == 1:
            await self.generator.probe(canary.ids, canary.num_new)
        else:
            text = [*canary.ids, *canary.ids[: canary.num_new]]
            await self.scorer.logprobs(supervised([(text[:1], text[1:])]), sampling=Sampling())
        return time.perf_counter() - began

    def _num_bytes(self) -> int:
        return sum(parameter.nbytes for parameter in self.decoder.parameters())


def _together() -> None:
    """Both ends begin at the same time."""
    cast(Any, dist).barrier()


def run() -> Result:
    """Two processes of one thread each; medians of five, plain and ours by turns."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_measured(Path(folder)))


async def _measured(folder: Path) -> Result:
    call = Call(f"{__name__}:Member", {"folder": str(folder)})
    members = ProcessCluster[Member](call, 2, name="publish")
    try:
        size = (await members.each(Member.start))[0]
        plain, ours = list[float](), list[float]()
        for repeat in range(REPEATS + 1):  # the first of each finds cold memory and is not counted
            plain.append(max(await members.each(Member.plain)))
            ours.append(max(await members.each(Member.transport, repeat)))
        bare, proven = list[float](), list[float]()
        for repeat in range(REPEATS):
            first = REPEATS + 1 + 2 * repeat
            bare.append(max(took for took, _ in await members.each(Member.deliver, first, proven=False)))
            ends = await members.each(Member.deliver, first + 1, proven=True)
            assert ends[0][1] == ends[1][1], "the weights did not arrive"
            proven.append(max(took for took, _ in ends))
        digests = [await members.each(Member.digest) for _ in range(REPEATS)]
        canaries = [sum(await members.each(Member.canary)) for _ in range(REPEATS)]
    finally:
        await members.stop()
    digest_s = statistics.median(max(seconds for seconds, _ in each) for each in digests)
    proof = Proof(
        bare_s=statistics.median(bare),
        proven_s=statistics.median(proven),
        digest_s=digest_s,
        canary_s=statistics.median(canaries),
    )
    return _result(size, plain[1:], ours[1:], proof)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What the proof of a delivery costs."""

    bare_s: float
    """Of a publication that nobody proves: sent, received and copied to where it is used."""
    proven_s: float
    """Of one with the fingerprints of both ends."""
    digest_s: float
    """Of the fingerprints alone, both ends at the same time."""
    canary_s: float


def _result(size: int, plain: Sequence[float], ours: Sequence[float], proof: Proof) -> Result:
    plain_s, ours_s = statistics.median(plain), statistics.median(ours)
    details: dict[str, Any] = {
        "megabytes": round(size / 1e6),
        "plain_s": [round(seconds, 3) for seconds in plain],
        "ours_s": [round(seconds, 3) for seconds in ours],
        "bare_s": round(proof.bare_s, 3),
        "proven_s": round(proof.proven_s, 3),
        "digest_s": round(proof.digest_s, 3),
        "canary_s": round(proof.canary_s, 3),
        "digest_on_top": round(proof.proven_s / proof.bare_s - 1, 3),
        "proof_on_top": round((proof.proven_s + proof.canary_s) / proof.bare_s - 1, 3),
        "digest_of_transport": round(proof.digest_s / ours_s, 3),
        "canary_of_transport": round(proof.canary_s / ours_s, 3),
    }
    return Result(
        name="publish",
        unit="GB/s",
        higher_is_better=True,
        ours=size / ours_s / 1e9,
        peer=size / plain_s / 1e9,
        details=details,
    )
