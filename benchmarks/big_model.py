"""Time and memory of loading and publishing models of up to a billion weights, over two ranks of each trainer."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import typer
from transformers import AutoConfig, PretrainedConfig

from benchmarks.big_model_ranks import NUM_RANKS, BigModel, Measured
from benchmarks.rank_processes import RankTeam
from benchmarks.result import Result
from roll.engines.native.decoder import Decoder
from roll.weights.huggingface import write_sharded_model
from roll.weights.meeting import open_meeting

LAYERS = (16, 32, 64)
"""Layers of the models: 0.26, 0.51 and 1.01 billion weights."""
BUCKET = 64 * 2**20
"""Bytes of a bucket of transport gloo."""
GROWTH = 1.25
"""Most seconds per byte, relative to those of the smallest model."""
TRANSPORTS = ("disk", "gloo")
_HOST = "benchmarks.big_model_ranks:BigModelHost"
_LIMIT_S = 1800.0
_FILE_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """What a rank holds after loading, per weight that is its share, with SGD in float32."""

    package: str
    weights: int
    gradients: int = 0
    masters: int = 0

    @property
    def num_bytes(self) -> int:
        return self.weights + self.gradients + self.masters


BACKENDS = {
    "fsdp2": Backend(package="torch", weights=4),
    "deepspeed": Backend(package="deepspeed", weights=4, gradients=4, masters=4),
    "megatron": Backend(package="megatron", weights=4, gradients=4),
}


@dataclass(slots=True, kw_only=True)
class SizeResult:
    """One backend with one model."""

    backend: str
    num_weights: int
    share: int
    """Bytes of a rank: half of the weights, gradients and master weights."""
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    """By operation: of the slowest rank."""
    excess: dict[str, float] = field(default_factory=dict[str, float])
    """By operation: peak of the fullest rank above its share, in buckets."""
    held: int = 0
    """Resident bytes of the fullest rank after loading."""

    @property
    def text(self) -> str:
        rows = [f"{name} {self.seconds[name]:.1f} s, {self.excess[name]:+.2f} buckets" for name in self.seconds]
        return f"{self.backend}, {self.num_weights / 1e6:.0f} million weights: {'; '.join(rows)}"


def run() -> Result:
    """The worst of all numbers, each relative to its bound."""
    return measure(LAYERS, _installed())


def measure(layers: Sequence[int], backends: Sequence[str]) -> Result:
    """For models with these numbers of layers, the smallest first."""
    results: list[SizeResult] = []
    with tempfile.TemporaryDirectory() as folder:
        for num_layers in layers:
            path = Path(folder) / f"model-{num_layers}"
            num_weights = write_random(path, num_layers)
            for backend in backends:
                results.append(_measure_size(backend, path, num_weights, Path(folder)))
                typer.echo(results[-1].text)
    growth = _growth(results)
    worst = max([*(each for result in results for each in result.excess.values()), *growth.values()])
    return Result(
        name="big_model",
        unit="the worst of excess memory in buckets and of growth in seconds per byte over 1.25",
        higher_is_better=False,
        ours=max(worst, 0.0),
        bound=1.0,
        details={
            "growth": {name: round(each, 3) for name, each in growth.items()},
            "not_installed": sorted(set(BACKENDS) - set(_installed())),
            "sizes": [_details(each) for each in results],
        },
    )


def _installed() -> list[str]:
    return [name for name, backend in BACKENDS.items() if find_spec(backend.package) is not None]


def _details(result: SizeResult) -> dict[str, Any]:
    backend = BACKENDS[result.backend]
    return {
        "backend": result.backend,
        "weights": result.num_weights,
        "bytes_per_weight": {
            "weights": backend.weights,
            "gradients": backend.gradients,
            "masters": backend.masters,
        },
        "share_mib": round(result.share / 2**20),
        "held_mib": round(result.held / 2**20),
        "seconds": {name: round(each, 2) for name, each in result.seconds.items()},
        "excess_buckets": {name: round(each, 2) for name, each in result.excess.items()},
    }


def _growth(results: Sequence[SizeResult]) -> dict[str, float]:
    """For each backend and operation, the most seconds per weight, relative to the smallest model's and to `GROWTH`."""
    growth: dict[str, float] = {}
    for backend in dict.fromkeys(each.backend for each in results):
        first, *others = (each for each in results if each.backend == backend)
        for name, seconds in first.seconds.items():
            rate = seconds / first.num_weights
            slowest = max((each.seconds[name] / each.num_weights for each in others), default=rate)
            growth[f"{backend} {name}"] = slowest / rate / GROWTH
    return growth


def _measure_size(backend: str, path: Path, num_weights: int, folder: Path) -> SizeResult:
    share = BACKENDS[backend].num_bytes * num_weights // NUM_RANKS
    result = SizeResult(backend=backend, num_weights=num_weights, share=share)
    team = RankTeam(_HOST, _LIMIT_S)
    try:
        tiny = folder / "tiny"
        if not tiny.is_dir():
            write_random(tiny, 1)
        for _ in _operations(team, backend, tiny):  # imports and first messages
            pass
        team.run(team.ask(NUM_RANKS, "rest"))
        for name, ranks in _operations(team, backend, path):
            result.seconds[name] = max(each.seconds for each in ranks)
            result.excess[name] = (max(each.peak for each in ranks) - share) / BUCKET
            result.held = result.held or max(each.held for each in ranks)
    finally:
        team.close()
    return result


def _operations(team: RankTeam, backend: str, path: Path) -> Iterator[tuple[str, list[Measured]]]:
    """The measurements of the trainer's ranks: of loading, then of publishing by each transport."""
    with tempfile.TemporaryDirectory() as folder:
        case = BigModel(path=path, backend=backend, folder=Path(folder))
        open_meeting(Path(case.meeting))
        yield "load", team.run(team.ask(NUM_RANKS, "load", case))
        for version, transport in enumerate(TRANSPORTS):
            together = transport == "gloo"  # sender and receiver run at the same time
            ranks = team.run(team.ask(NUM_RANKS + together, "publish", case, transport, version))
            assert len({str(each.digest) for each in ranks}) == 1, f"{transport}: other weights arrived"
            yield transport, ranks[:NUM_RANKS]
        team.run(team.ask(NUM_RANKS, "end"))


def write_random(path: Path, num_layers: int) -> int:
    """Write a model of random weights tensor by tensor; returns their number."""
    config = _config(num_layers)
    noise = torch.Generator().manual_seed(num_layers)
    with torch.device("meta"):
        shapes = [(name, tensor.shape) for name, tensor in Decoder(config).named_tensors()]

    def random() -> Iterator[tuple[str, torch.Tensor]]:
        for name, shape in shapes:
            yield name, torch.empty(shape).normal_(0, 0.02, generator=noise).to(torch.bfloat16)

    write_sharded_model(path, config, random(), file_bytes=_FILE_BYTES)
    return sum(shape.numel() for _, shape in shapes)


def _config(num_layers: int) -> PretrainedConfig:
    """Layers of Qwen3-0.6B. The vocabulary is small, so that no tensor has more bytes than a bucket."""
    return AutoConfig.for_model(
        "qwen3",
        architectures=["Qwen3ForCausalLM"],
        vocab_size=4096,
        hidden_size=1024,
        num_hidden_layers=num_layers,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=3072,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        dtype="bfloat16",
    )
