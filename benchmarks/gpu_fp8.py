"""The update of the native trainer with `fp8_products`, against the same update without, on one GPU.

For the shapes of Qwen3-0.6B and Qwen2.5-1.5B with random weights: 32 groups of 8 sequences in bf16, 128 tokens of a
shared prompt and 512 of a response. All sides have the same weights and alternate in one process. A part that fails is
reported with its reason, and the others are measured nevertheless. Arguments choose shapes: `0.6B`, `1.5B`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any, cast

import torch
import typer
from torch import Tensor

from benchmarks.gpu_hf import GROUPS, PROMPT, RESPONSE, SHAPE, SIBLINGS
from benchmarks.result import Result
from roll.algorithms.recipe import Objective
from roll.config.schema import Optimizer
from roll.data.collate import supervised
from roll.engines.native import fp8
from roll.engines.native.decoder import Decoder, geometry
from roll.engines.native.fp8 import Fp8
from roll.engines.native.mixed import Precision
from roll.engines.native.trainer import NativeTrainer, NativeTrainerSettings
from roll.errors import ConfigError
from roll.types import Batch, Sampling, Spec
from roll.weights.channel import Shared

TOKENS = 20_480
REPEATS = 3
CUDA = torch.device("cuda")
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "0.6B": ("qwen3", SHAPE),
    "1.5B": (
        "qwen2",
        {
            **SHAPE,
            "hidden_size": 1536,
            "intermediate_size": 8960,
            "num_attention_heads": 12,
            "num_key_value_heads": 2,
        },
    ),
}
SIDES = {"bf16": None, "gradients": Fp8(), "all": Fp8(forward=True)}
_CLIPPED = Objective(loss=Spec("clipped"))


def run(shapes: Sequence[str] = tuple(SHAPES)) -> Result:
    """Seconds per update with all products in fp8, for the last shape, and without as the peer."""
    empty = Result(name="gpu_fp8", unit="s per update", higher_is_better=False, skipped="no GPU")
    if not torch.cuda.is_available():
        return empty
    try:
        fp8.check_device(CUDA, CUDA.type)
    except ConfigError as error:
        return replace(empty, skipped=str(error))
    details: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": str(torch.__version__)}
    dynamo: Any = cast(Any, torch)._dynamo
    dynamo.config.recompile_limit = 64  # beyond the limit functions would run uncompiled
    for name in shapes:
        kind, numbers = SHAPES[name]
        details[name] = {
            "gradients": _attempt(f"{name} gradients", partial(compare_gradients, kind, numbers)),
            "updates": _attempt(f"{name} updates", lambda k=kind, n=numbers: asyncio.run(measure_updates(k, n))),
            "products": _attempt(f"{name} products", partial(measure_products, kind, numbers)),
        }
        dynamo.reset()
    medians = details[shapes[-1]]["updates"].get("median_s", {})
    if set(medians) != set(SIDES):
        return replace(empty, skipped=f"the updates of the shape {shapes[-1]} failed; see above", details=details)
    return replace(empty, skipped="", ours=medians["all"], peer=medians["bf16"], details=details)


def _attempt(name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The numbers of one part, or the reason why there are none; both are printed."""
    start = time.perf_counter()
    try:
        numbers = measure()
    except Exception as error:  # noqa: BLE001 - the other parts are measured whatever fails in this one
        numbers = {"failed": f"{type(error).__name__}: {str(error).strip()[:2000]}"}
    gc.collect()
    torch.cuda.empty_cache()
    typer.echo(f"{name} ({time.perf_counter() - start:.0f} s): {json.dumps(numbers)}")
    return numbers


def measure_products(kind: str, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Per projection, with 17,000 tokens: what `_measure_product` returns."""
    matrices = fp8.projections(geometry(_config(kind, numbers)))
    rounding = torch.compile(fp8.quantise, dynamic=True)
    return {name: _measure_product(rounding, *sizes) for name, sizes in matrices.items()}


def _measure_product(rounding: Any, num_in: int, num_out: int) -> dict[str, Any]:
    """Microseconds in bf16, in fp8, and of rounding each factor by itself; the relative error of the product."""
    x = torch.randn(17_000, num_in, device=CUDA, dtype=torch.bfloat16)
    weight = torch.randn(num_in, num_out, device=CUDA)
    narrow = weight.bfloat16()
    (left, scale), (right, other) = rounding(x), rounding(weight.t())
    kernel: Any = torch.ops.aten._scaled_mm.default
    product = partial(kernel, left, right.t(), scale, other.t(), out_dtype=torch.bfloat16, use_fast_accum=True)
    return {
        "size": f"{num_in} x {num_out}",
        "bf16_us": _microseconds(lambda: x @ narrow),
        "fp8_us": _microseconds(product),
        "round_x_us": _microseconds(lambda: rounding(x)),
        "round_weight_us": _microseconds(lambda: rounding(weight.t())),
        "error": _apart(product(), x @ narrow),
    }


def compare_gradients(kind: str, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """The gradient of a small update with fp8 against that without, and the mean difference of its logprobs."""
    decoder, batch = _decoder(kind, numbers), _batch(groups=4)
    scored = asyncio.run(_trainer(decoder, None, Optimizer()).logprobs(batch))
    batch = replace(batch, sampler_logprobs=scored)
    expected, _ = asyncio.run(_gradient(decoder, batch, None))
    result: dict[str, Any] = {}
    for side, narrow in SIDES.items():
        if narrow is not None:
            gradient, gap = asyncio.run(_gradient(decoder, batch, narrow))
            norms = float(gradient.norm()), float(expected.norm())
            result[side] = {
                "cosine": round(float((gradient * expected).sum(dtype=torch.float64)) / (norms[0] * norms[1]), 5),
                "norm_ratio": round(norms[0] / norms[1], 5),
                "relative_error": _apart(gradient, expected),
                "logprob_gap_mean": round(gap, 5),
            }
    return result


async def _gradient(decoder: Decoder, batch: Batch, narrow: Fp8 | None) -> tuple[Tensor, float]:
    """The gradient, from a step of plain SGD that is undone, and the mean difference from the sampler's logprobs."""
    trainer = _trainer(decoder, narrow, Optimizer(kind="sgd", lr=1.0, max_grad_norm=None))
    await trainer.start()
    before = [parameter.detach().clone() for parameter in decoder.parameters()]
    metrics = await trainer.update(batch, _CLIPPED)
    assert not metrics["loss/refused"], "the update was refused: its loss or gradient is not finite"
    parts: list[Tensor] = []
    with torch.no_grad():
        for old, parameter in zip(before, decoder.parameters(), strict=True):
            parts.append((old - parameter).flatten())
            parameter.copy_(old)
    return torch.cat(parts), metrics["sampler_mismatch/mean"]


async def measure_updates(kind: str, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds per update of all sides in alternation, after one update each, and their peak memory."""
    batch = _batch(groups=GROUPS)
    decoder = _decoder(kind, numbers)  # one module: all sides do the same work whatever its weights are
    trainers = {side: _trainer(decoder, narrow, Optimizer(lr=1e-6)) for side, narrow in SIDES.items()}
    for trainer in trainers.values():
        await trainer.start()
        await trainer.update(batch, _CLIPPED)
    seconds: dict[str, list[float]] = {side: [] for side in trainers}
    peaks: dict[str, float] = {}
    for _ in range(REPEATS):
        for side, trainer in trainers.items():
            torch.cuda.reset_peak_memory_stats()
            seconds[side].append(round(await _timed(trainer, batch), 4))
            peaks[side] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
    medians = {side: median(each) for side, each in seconds.items()}
    ratios = {side: round(each / medians["bf16"], 3) for side, each in medians.items()}
    return {"median_s": medians, "ratio": ratios, "seconds": seconds, "peak_gib": peaks}


async def _timed(trainer: NativeTrainer, batch: Batch) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    await trainer.update(batch, _CLIPPED)
    torch.cuda.synchronize()
    return time.perf_counter() - start


def _trainer(decoder: Decoder, narrow: Fp8 | None, optimizer: Optimizer) -> NativeTrainer:
    settings = NativeTrainerSettings(
        optimizer=optimizer,
        total_steps=100,
        tokens_per_microbatch=TOKENS,
        sampling=Sampling(),
        device=CUDA,
        precision=Precision(dtype=torch.bfloat16, fp8=narrow),
    )
    return NativeTrainer(decoder, settings, Shared())


def _decoder(kind: str, numbers: Mapping[str, Any]) -> Decoder:
    """A decoder with random weights, drawn on the device: the host would take half a minute."""
    with CUDA:
        decoder = Decoder(_config(kind, numbers))
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if parameter.ndim == 2 and not name.endswith("norm"):
                parameter.normal_(0, 0.02)
    return decoder


def _config(kind: str, numbers: Mapping[str, Any]) -> Any:
    from transformers import AutoConfig

    return AutoConfig.for_model(kind, **numbers)


def _batch(*, groups: int) -> Batch:
    noise = torch.Generator().manual_seed(0)

    def ids(count: int) -> list[int]:
        return torch.randint(0, 150_000, (count,), generator=noise).tolist()

    rows = [(prompt, ids(RESPONSE)) for prompt in (ids(PROMPT) for _ in range(groups)) for _ in range(SIBLINGS)]
    batch = supervised(rows)
    return replace(batch, advantages=torch.randn(batch.num_tokens, generator=noise) * batch.trained)


def _microseconds(work: Callable[[], Any], repeats: int = 20) -> float:
    """Device time of one call: the mean of `repeats` calls after three."""
    for _ in range(3):
        work()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        work()
    end.record()
    torch.cuda.synchronize()
    return round(begin.elapsed_time(end) * 1e3 / repeats, 1)


def _apart(result: Tensor, expected: Tensor) -> float:
    return round(float((result.float() - expected.float()).norm() / expected.float().norm()), 5)


if __name__ == "__main__":
    typer.echo(run(sys.argv[1:] or tuple(SHAPES)).to_json())
