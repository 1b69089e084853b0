"""Accuracy of SmolLM2-135M-Instruct on GSM8K before and after a few minutes of RL on a GPU. There is no goal.

`ROLL_SMOLLM2` is the model's directory; the folder `ROLL_DATA` has `math/gsm8k_train.jsonl` and
`math/gsm8k_test.jsonl`. The first file is trained on; accuracy is that of greedy responses to all of the second.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import msgspec
import typer
import yaml

from benchmarks.gpu_learn import MODEL
from benchmarks.gpu_model import missing
from benchmarks.result import Result
from roll.commands import train as commands
from roll.config.load import load
from roll.preflight import preflight
from roll.tracking.sinks import read_lines
from roll.types import Message, Task

DATA, STEPS = "ROLL_DATA", 35
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def run() -> Result:
    """Accuracy on the test set after training, against the accuracy before."""
    folders = {name: os.environ.get(name, "") for name in (MODEL, DATA)}
    reason = missing() or next((f"{name} is not set" for name, path in folders.items() if not path), "")
    if reason:
        return Result(name="gpu_gsm8k", unit="test accuracy", higher_is_better=True, skipped=reason)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        file = Path(folder, "run.yaml")
        file.write_text(config(Path(folders[MODEL]), Path(folder)), encoding="utf-8")
        loaded = load(file)
        preflight(loaded)
        commands.train(loaded, overwrite=False)
        lines = read_lines(Path(folder, loaded.run.name, "metrics.jsonl"))
    curve = {int(line["step"]): line["validation/accuracy"] for line in lines if "validation/accuracy" in line}
    for step, accuracy in curve.items():
        typer.echo(f"step {step:3}: {accuracy:.4f}")
    steps = [line for line in lines if line["step"]]
    return Result(
        name="gpu_gsm8k",
        unit="test accuracy",
        higher_is_better=True,
        ours=curve[max(curve)],
        bound=max(curve[min(curve)], 1e-4),
        details={
            "curve": {step: round(accuracy, 4) for step, accuracy in curve.items()},
            "rewards": [round(line["reward/mean"], 4) for line in steps],
            "largest_gap": round(max(line["sampler_mismatch/mean"] for line in steps), 4),
            "spent_s": round(time.perf_counter() - began, 1),
        },
    )


def problems(split: str = "train") -> list[Task]:
    """The problems of one file, each followed by an instruction about the form of the response."""
    path = Path(os.environ[DATA], "math", f"gsm8k_{split}.jsonl")
    rows = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    instruction = "Think step by step, and end with 'The answer is' and the number."
    return [
        Task(
            id=row["id"],
            domain="gsm8k",
            messages=(Message("user", f"{row['prompt']} {instruction}"),),
            answer=row["answer"],
        )
        for row in rows
    ]


def last_number(task: Task, response: str) -> float:
    """1 if the last number in the response is the answer."""
    numbers = _NUMBER.findall(response)
    return float(bool(numbers) and _value(numbers[-1]) == _value(str(task.answer)))


def _value(text: str) -> float:
    return float(text.replace(",", ""))


def config(model: Path, directory: Path) -> str:
    """The run's config, as a user would write it in YAML."""
    source: dict[str, Any] = {"reward": "benchmarks.gpu_gsm8k:last_number"}
    data = {"kind": "benchmarks.gpu_gsm8k:problems"}
    tree: dict[str, Any] = {
        "name": "gpu-gsm8k",
        "directory": str(directory),
        "seed": 0,
        "steps": STEPS,
        "model": {"path": str(model)},
        "algorithm": "grpo",
        "tasks": [{**source, "name": "gsm8k", "data": data}],
        "rollout": {"groups_per_step": 64, "group_size": 16, "max_seq_len": 512, "max_new_tokens": 200},
        "actor_train": {
            "devices": "cuda",
            "dtype": "bfloat16",
            "tokens_per_microbatch": 65_536,
            "optimizer": {"lr": 2e-5, "warmup_steps": 5, "schedule": "linear", "final_lr_ratio": 0.1},
        },
        "actor_infer": {
            "backend": "vllm",
            "max_num_seqs": 512,
            "max_num_batched_tokens": 32_768,
            "kv_cache_gib": 24,
            "per_request_seed": False,
        },
        "validation": {
            "every": 20,
            "tasks": [{**source, "name": "test", "data": {**data, "split": "test"}}],
        },
        "checkpoint": {"every": 0},
        "tracking": {"tensorboard": False},
    }
    return yaml.safe_dump(tree)
