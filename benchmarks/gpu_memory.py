"""The largest model that trains on one GPU, found by trying, beside what the memory plan of `roll explain` says.

A ladder of models of the shape of Qwen3-8B, or of Qwen3-32B for adapters, that differ in their number of layers. From
the rung that the plan thinks is the last one it is climbed up, or down, until the first that fits is below the first
that does not. A try is two updates of four sequences of 2,048 tokens, one a micro-batch, in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import typer
import yaml

from benchmarks.gpu_model import VOCAB, qwen3
from benchmarks.result import Result
from roll.config.load import load
from roll.config.schema import Run
from roll.placement.facts import facts_of
from roll.placement.kinds import GIB
from roll.placement.machine import described
from roll.placement.memory import USABLE, role_bytes
from roll.placement.planner import plan_devices
from roll.placement.records import Inventory

TOKENS = 2048
BOUND = 0.15
"""How far what is predicted may lie from what is found."""
LIMIT_S = 240.0
_BOUNDLESS = 2**50


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """Models that differ in their number of layers."""

    name: str
    shape: dict[str, int]
    layers: tuple[int, ...]
    lora: dict[str, Any] | None = None


_EIGHT = {"hidden_size": 4096, "intermediate_size": 12_288, "num_attention_heads": 32, "num_key_value_heads": 8}
_THIRTY_TWO = {"hidden_size": 5120, "intermediate_size": 25_600, "num_attention_heads": 64, "num_key_value_heads": 8}
LADDERS = (
    Ladder(name="full", shape=_EIGHT, layers=tuple(range(20, 52))),
    Ladder(name="lora", shape=_THIRTY_TWO, layers=tuple(range(60, 152, 4)), lora={"rank": 16}),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What became of one rung."""

    fits: bool
    peak: int
    """Bytes that torch had given out at most; of a try that failed, until then."""
    parameters: int
    why: str = ""


def run() -> Result:
    """The widest relative distance between predicted and measured, over ladders and over sizes and bytes."""
    if not torch.cuda.is_available():
        return Result(name="gpu_memory", unit="", higher_is_better=False, skipped="no GPU is to be seen")
    details: dict[str, Any] = {"tokens": TOKENS, "device": torch.cuda.get_device_name()}
    apart: list[float] = []
    for ladder in LADDERS:
        found = climb(ladder)
        details[ladder.name] = found
        apart += [found["parameters_apart"], found["bytes_apart"]]
    return Result(
        name="gpu_memory",
        unit="of the memory that is used, predicted wrongly",
        higher_is_better=False,
        ours=max(apart),
        bound=BOUND,
        details=details,
    )


def climb(ladder: Ladder) -> dict[str, Any]:
    """The last rung that fits, by trying and by the plan."""
    predicted = [layers for layers in ladder.layers if predict(ladder, layers)[0]]
    place = max(0, len(predicted) - 1)
    seen: dict[int, Found] = {}
    while 0 <= place < len(ladder.layers) and place not in seen:
        layers = ladder.layers[place]
        seen[place] = tried(ladder, layers)
        plan = predict(ladder, layers)[1]
        typer.echo(
            f"{ladder.name}: {layers} layers, {seen[place].parameters / 1e9:.2f}B: "
            f"{'fits' if seen[place].fits else 'does not fit'}, {seen[place].peak / GIB:.1f} GiB; "
            f"the plan says {plan / GIB:.1f} {seen[place].why}"
        )
        place += 1 if seen[place].fits else -1
    return _summary(ladder, predicted, seen)


def _summary(ladder: Ladder, predicted: list[int], seen: dict[int, Found]) -> dict[str, Any]:
    fitting = [place for place, found in seen.items() if found.fits]
    if not fitting or not predicted:
        why = next((found.why for found in seen.values() if found.why), "")
        return {"parameters_apart": 1.0, "bytes_apart": 1.0, "why": why or "nothing fits"}
    last = max(fitting)
    best, planned = seen[last], predict(ladder, ladder.layers[last])[1]
    sizes = {layers: parameters_of(ladder, layers) for layers in (predicted[-1], ladder.layers[last])}
    return {
        "layers": ladder.layers[last],
        "parameters": best.parameters,
        "peak_gib": round(best.peak / GIB, 1),
        "planned_gib": round(planned / GIB, 1),
        "planned_layers": predicted[-1],
        "planned_parameters": sizes[predicted[-1]],
        "tried": {ladder.layers[place]: round(found.peak / GIB, 1) for place, found in sorted(seen.items())},
        "parameters_apart": round(abs(sizes[predicted[-1]] / sizes[ladder.layers[last]] - 1), 4),
        "bytes_apart": round(abs(planned / best.peak - 1), 4),
    }


def predict(ladder: Ladder, layers: int) -> tuple[bool, int]:
    """Whether the plan thinks that the update of a rung fits one H200, and the bytes that it counts for it."""
    there = described("1xH200")
    boundless = Inventory(nodes=tuple(replace(node, memory=_BOUNDLESS) for node in there.nodes))
    with tempfile.TemporaryDirectory() as folder:
        facts = facts_of(planned_run(ladder, layers, Path(folder)))
        needed = sum(role_bytes(plan_devices(facts, boundless), "actor_train", "update"))
    return needed <= USABLE * there.nodes[0].memory, needed


def planned_run(ladder: Ladder, layers: int, folder: Path) -> Run:
    """The run that would train it, as a user would write it; its generator sleeps while it is trained."""
    qwen3(**ladder.shape, num_hidden_layers=layers, tie_word_embeddings=False).save_pretrained(folder / "model")
    lora = {} if ladder.lora is None else {"lora": ladder.lora}
    tree: dict[str, Any] = {
        "model": {"path": str(folder / "model")},
        "algorithm": "grpo",
        "tasks": [{"name": "sums", "data": {"kind": "arithmetic"}, "reward": "exact"}],
        "rollout": {"groups_per_step": 1, "group_size": 4, "context": TOKENS, "max_new_tokens": TOKENS // 2},
        "actor_train": {
            "devices": "cuda",
            "dtype": "bfloat16",
            "checkpointing": True,
            "tokens_per_microbatch": TOKENS,
            **lora,
        },
        "actor_infer": {"backend": "vllm", "slots": 4, "kv_gib": 1, "offload": True},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    return load(folder / "run.yaml").run


def parameters_of(ladder: Ladder, layers: int) -> int:
    """Of the whole model."""
    hidden, mlp = ladder.shape["hidden_size"], ladder.shape["intermediate_size"]
    heads, kv_heads = ladder.shape["num_attention_heads"], ladder.shape["num_key_value_heads"]
    attention = hidden * 128 * (2 * heads + 2 * kv_heads)
    return 2 * VOCAB * hidden + layers * (attention + 3 * hidden * mlp + 2 * hidden + 2 * 128) + hidden


def tried(ladder: Ladder, layers: int) -> Found:
    """One rung, in a process of its own: what another left on the device would count."""
    asked = json.dumps({"shape": ladder.shape, "layers": layers, "lora": ladder.lora})
    nothing = Found(fits=False, peak=0, parameters=parameters_of(ladder, layers))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.gpu_memory_try", asked],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return Found(fits=False, peak=0, parameters=nothing.parameters, why=f"(not done in {LIMIT_S:.0f} s)")
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return Found(fits=False, peak=0, parameters=nothing.parameters, why=f"(ended with {done.returncode})")
    return Found(**json.loads(lines[-1]), parameters=nothing.parameters)
