"""RL of a real small model on a GPU: SmolLM2-135M-Instruct on sums of numbers with one or two digits.

`ROLL_SMOLLM2` is the model's directory. No held-out sum is trained on. The run is the one of `roll train`.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import typer
import yaml

from benchmarks.gpu_model import missing
from benchmarks.result import Result
from roll.commands import train as commands
from roll.config.load import load
from roll.preflight import preflight
from roll.tracking.sinks import read_lines
from roll.types import Message, Task

BOUND, STEPS, LIMIT_S, MISMATCH = 0.3, 100, 480.0, 0.02
MODEL = "ROLL_SMOLLM2"


def run() -> Result:
    """The gain in held-out accuracy within 100 steps and 8 minutes, against 0.3."""
    path = os.environ.get(MODEL, "")
    reason = missing() or ("" if path else f"{MODEL} is not set; set it to the directory of SmolLM2-135M-Instruct")
    if reason:
        return Result(name="gpu_learn", unit="held-out accuracy gained", higher_is_better=True, skipped=reason)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        file = Path(folder, "run.yaml")
        file.write_text(config(Path(path), Path(folder)), encoding="utf-8")
        loaded = load(file)
        preflight(loaded)
        commands.train(loaded, overwrite=False)
        lines = read_lines(Path(folder, loaded.run.name, "metrics.jsonl"))
    spent_s = time.perf_counter() - began
    curve = {int(line["step"]): line["validation/accuracy"] for line in lines if "validation/accuracy" in line}
    mismatches = [line["sampler_mismatch/mean"] for line in lines if line["step"]]
    for step, accuracy in curve.items():
        typer.echo(f"step {step:3}: {accuracy:.3f} {'#' * round(60 * accuracy)}")
    details: dict[str, Any] = {
        "curve": {step: round(accuracy, 4) for step, accuracy in curve.items()},
        "largest_gap": round(max(mismatches), 4),
        "gaps": [round(mismatch, 4) for mismatch in mismatches[:: STEPS // 10]],
        "gaps_within_limit": max(mismatches) < MISMATCH,
        "spent_s": round(spent_s, 1),
        "in_time": spent_s <= LIMIT_S,
        "step_s": round(sum(line["time/step"] for line in lines if line["step"]) / STEPS, 3),
    }
    return Result(
        name="gpu_learn",
        unit="held-out accuracy gained",
        higher_is_better=True,
        ours=curve[max(curve)] - curve[min(curve)],
        bound=BOUND,
        details=details,
    )


def sums(split: str = "train", count: int = 6400, seed: int = 0) -> list[Task]:
    """Additions of numbers with one or two digits, equally likely; about a tenth of all pairs is held out."""
    rng = random.Random(f"{split} {seed}")
    tasks: list[Task] = []
    seen: set[tuple[int, int]] = set()
    while len(tasks) < count:
        left, right = (rng.randrange(10) if rng.random() < 0.5 else rng.randrange(10, 100) for _ in range(2))
        if held_out(left, right) != (split == "held_out") or (split == "held_out" and (left, right) in seen):
            continue
        seen.add((left, right))
        tasks.append(
            Task(
                id=f"{len(tasks)}:{left}+{right}",
                domain="sums",
                messages=(Message("user", f"What is {left} + {right}? Answer with the number only."),),
                answer=str(left + right),
            )
        )
    return tasks


def held_out(left: int, right: int) -> bool:
    """Whether a sum is excluded from training."""
    return hashlib.blake2b(f"sum-{left}-{right}".encode(), digest_size=8).digest()[0] < 26


def last_number(task: Task, response: str) -> float:
    """1 if the last number in the response is the answer."""
    numbers = re.findall(r"\d+", response)
    return float(bool(numbers) and numbers[-1].lstrip("0").rjust(1, "0") == task.answer)


def config(model: Path, directory: Path) -> str:
    """The run's config, as a user would write it in YAML."""
    source: dict[str, Any] = {"name": "sums", "reward": "benchmarks.gpu_learn:last_number"}
    tree: dict[str, Any] = {
        "name": "gpu-learn",
        "directory": str(directory),
        "seed": 0,
        "steps": STEPS,
        "model": {"path": str(model)},
        "algorithm": "grpo",
        "tasks": [{**source, "data": {"kind": "benchmarks.gpu_learn:sums"}}],
        "rollout": {"groups_per_step": 64, "group_size": 16, "max_seq_len": 128, "max_new_tokens": 16},
        "actor_train": {
            "devices": "cuda",
            "dtype": "bfloat16",
            "float32_compute": True,
            "tokens_per_microbatch": 65_536,
            "optimizer": {"lr": 3e-5, "warmup_steps": 5, "schedule": "linear", "final_lr_ratio": 0.1},
        },
        "actor_infer": {
            "backend": "vllm",
            "max_num_seqs": 1024,
            "max_num_batched_tokens": 32_768,
            "kv_cache_gib": 12,
            "per_request_seed": True,
        },
        "validation": {
            "every": 10,
            "tasks": [
                {
                    **source,
                    "name": "held_out",
                    "data": {"kind": "benchmarks.gpu_learn:sums", "split": "held_out", "count": 500},
                }
            ],
        },
        "checkpoint": {"every": 0},
        "tracking": {"tensorboard": False},
    }
    return yaml.safe_dump(tree)
