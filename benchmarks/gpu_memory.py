"""The largest model that trains on one GPU, by trial, compared with the memory plan of `roll explain`.

A ladder has models of the shape of Qwen3-8B, or of Qwen3-32B for LoRA, with increasing numbers of layers. Trials start
at the largest model that fits by the plan, and go up or down until the limit is reached. A trial is two updates of four
sequences of 2,048 tokens, one per micro-batch, in a separate process.
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
from roll.placement.machine import GIB, parse_cluster
from roll.placement.memory import USABLE, role_bytes
from roll.placement.planner import plan_devices
from roll.placement.records import Inventory

TOKENS = 2048
BOUND = 0.15
"""Largest allowed relative error of a prediction."""
LIMIT_S = 240.0
_UNLIMITED = 2**50


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """Models of one shape with increasing numbers of layers."""

    name: str
    shape: dict[str, int]
    layers: tuple[int, ...]
    lora: dict[str, Any] | None = None


_QWEN3_8B = {"hidden_size": 4096, "intermediate_size": 12_288, "num_attention_heads": 32, "num_key_value_heads": 8}
_QWEN3_32B = {"hidden_size": 5120, "intermediate_size": 25_600, "num_attention_heads": 64, "num_key_value_heads": 8}
LADDERS = (
    Ladder(name="full", shape=_QWEN3_8B, layers=tuple(range(20, 52))),
    Ladder(name="lora", shape=_QWEN3_32B, layers=tuple(range(60, 152, 4)), lora={"rank": 16}),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Result of training one model of a ladder."""

    fits: bool
    peak: int
    """Peak bytes that torch allocated, until the failure if it failed."""
    parameters: int
    why: str = ""
    """Reason of a failure other than lack of memory, for the printed line."""


def run() -> Result:
    """The largest relative error of the plan over both ladders, in bytes and in parameters of the largest model."""
    if not torch.cuda.is_available():
        return Result(name="gpu_memory", unit="", higher_is_better=False, skipped="no GPU is visible")
    details: dict[str, Any] = {"tokens": TOKENS, "device": torch.cuda.get_device_name()}
    errors: list[float] = []
    for ladder in LADDERS:
        summary = climb(ladder)
        details[ladder.name] = summary
        errors += [summary["parameters_apart"], summary["bytes_apart"]]
    return Result(
        name="gpu_memory",
        unit="relative error of the memory plan",
        higher_is_better=False,
        ours=max(errors),
        bound=BOUND,
        details=details,
    )


def climb(ladder: Ladder) -> dict[str, Any]:
    """The largest model that fits, by trial and by the plan."""
    predicted = [layers for layers in ladder.layers if predict(ladder, layers)[0]]
    index = max(0, len(predicted) - 1)
    trials: dict[int, Trial] = {}
    while 0 <= index < len(ladder.layers) and index not in trials:
        layers = ladder.layers[index]
        trials[index] = train_once(ladder, layers)
        plan = predict(ladder, layers)[1]
        typer.echo(
            f"{ladder.name}: {layers} layers, {trials[index].parameters / 1e9:.2f}B: "
            f"{'fits' if trials[index].fits else 'does not fit'}, {trials[index].peak / GIB:.1f} GiB; "
            f"the plan says {plan / GIB:.1f} {trials[index].why}"
        )
        index += 1 if trials[index].fits else -1
    return _summary(ladder, predicted, trials)


def _summary(ladder: Ladder, predicted: list[int], trials: dict[int, Trial]) -> dict[str, Any]:
    fitting = [index for index, trial in trials.items() if trial.fits]
    if not fitting or not predicted:
        why = next((trial.why for trial in trials.values() if trial.why), "")
        return {"parameters_apart": 1.0, "bytes_apart": 1.0, "why": why or "no model fits"}
    last = max(fitting)
    best, planned = trials[last], predict(ladder, ladder.layers[last])[1]
    sizes = {layers: parameters_of(ladder, layers) for layers in (predicted[-1], ladder.layers[last])}
    return {
        "layers": ladder.layers[last],
        "parameters": best.parameters,
        "peak_gib": round(best.peak / GIB, 1),
        "planned_gib": round(planned / GIB, 1),
        "planned_layers": predicted[-1],
        "planned_parameters": sizes[predicted[-1]],
        "tried": {ladder.layers[index]: round(trial.peak / GIB, 1) for index, trial in sorted(trials.items())},
        "parameters_apart": round(abs(sizes[predicted[-1]] / sizes[ladder.layers[last]] - 1), 4),
        "bytes_apart": round(abs(planned / best.peak - 1), 4),
    }


def predict(ladder: Ladder, layers: int) -> tuple[bool, int]:
    """Whether the update fits one H200 by the plan, and the bytes that the plan counts."""
    cluster = parse_cluster("1xH200")
    unlimited = Inventory(nodes=tuple(replace(node, memory=_UNLIMITED) for node in cluster.nodes))
    with tempfile.TemporaryDirectory() as folder:
        facts = facts_of(planned_run(ladder, layers, Path(folder)))
        needed = sum(role_bytes(plan_devices(facts, unlimited), "actor_train", "update"))
    return needed <= USABLE * cluster.nodes[0].memory, needed


def planned_run(ladder: Ladder, layers: int, folder: Path) -> Run:
    """The run that trains this model, as a user would write it; its generator is offloaded during updates."""
    qwen3(**ladder.shape, num_hidden_layers=layers, tie_word_embeddings=False).save_pretrained(folder / "model")
    lora = {} if ladder.lora is None else {"lora": ladder.lora}
    tree: dict[str, Any] = {
        "model": {"path": str(folder / "model")},
        "algorithm": "grpo",
        "tasks": [{"name": "sums", "data": {"kind": "arithmetic"}, "reward": "exact"}],
        "rollout": {"groups_per_step": 1, "group_size": 4, "max_seq_len": TOKENS, "max_new_tokens": TOKENS // 2},
        "actor_train": {
            "devices": "cuda",
            "dtype": "bfloat16",
            "activation_checkpointing": True,
            "tokens_per_microbatch": TOKENS,
            **lora,
        },
        "actor_infer": {"backend": "vllm", "max_num_seqs": 4, "kv_cache_gib": 1, "offload": True},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    return load(folder / "run.yaml").run


def parameters_of(ladder: Ladder, layers: int) -> int:
    """Number of parameters of the whole model."""
    hidden, mlp = ladder.shape["hidden_size"], ladder.shape["intermediate_size"]
    heads, kv_heads = ladder.shape["num_attention_heads"], ladder.shape["num_key_value_heads"]
    attention = hidden * 128 * (2 * heads + 2 * kv_heads)
    return 2 * VOCAB * hidden + layers * (attention + 3 * hidden * mlp + 2 * hidden + 2 * 128) + hidden


def train_once(ladder: Ladder, layers: int) -> Trial:
    """Train one model in a separate process, so that no memory of an earlier trial is counted."""
    spec = json.dumps({"shape": ladder.shape, "layers": layers, "lora": ladder.lora})
    parameters = parameters_of(ladder, layers)
    try:
        process = subprocess.run(
            [sys.executable, "-m", "benchmarks.gpu_memory_try", spec],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return Trial(fits=False, peak=0, parameters=parameters, why=f"(not done in {LIMIT_S:.0f} s)")
    lines = process.stdout.splitlines()
    if process.returncode or not lines:
        return Trial(fits=False, peak=0, parameters=parameters, why=f"(exit code {process.returncode})")
    return Trial(**json.loads(lines[-1]), parameters=parameters)
