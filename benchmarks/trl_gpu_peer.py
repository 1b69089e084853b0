# pyright: basic, reportMissingImports=false
"""TRL's side of `gpu_step`, where TRL is installed: GRPO with vLLM in the same process, on the same model.

A separate script that takes the work as one JSON argument. Its last line has the seconds of each step but the first. It
imports none of our modules.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import random
import sys
import tempfile
import time
from typing import Any

import pyarrow
import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

_MICROBATCH = 32


class GpuStopwatch(TrainerCallback):
    """Records the start of each step; generation, update and logging all lie between two starts."""

    def __init__(self) -> None:
        self.began: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        torch.cuda.synchronize()
        self.began.append(time.perf_counter())


def main(work: dict[str, Any]) -> None:
    """Train for `work["steps"]` steps and print their durations."""
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")  # TRL's default, localhost, does not resolve on every machine
    stopwatch = GpuStopwatch()
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=work["model"],
            reward_funcs=remainder,
            args=settings(folder, work),
            train_dataset=dataset(work),
            callbacks=[stopwatch],
        )
        trainer.train()
    lengths = [entry["completions/mean_length"] for entry in trainer.state.log_history if "reward" in entry]
    steps = [after - before for before, after in zip(stopwatch.began, stopwatch.began[1:], strict=False)]
    numbers = {
        "version": importlib.metadata.version("trl"),
        "step_s": [round(seconds, 3) for seconds in steps[1:]],
        "mean_length": round(sum(lengths) / max(1, len(lengths)), 1),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1),
    }
    sys.stdout.write(json.dumps(numbers) + "\n")


def settings(folder: str, work: dict[str, Any]) -> GRPOConfig:
    """One optimizer step per batch, without checkpointing, saving or reporting."""
    return GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=_MICROBATCH,
        gradient_accumulation_steps=work["prompts"] * work["siblings"] // _MICROBATCH,
        num_generations=work["siblings"],
        max_completion_length=work["new_tokens"],
        max_steps=work["steps"],
        learning_rate=1e-6,
        beta=0.0,
        bf16=True,
        gradient_checkpointing=False,
        use_vllm=True,
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=0.3,
        model_init_kwargs={"dtype": torch.bfloat16, "attn_implementation": "sdpa"},
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )


def dataset(work: dict[str, Any]) -> Dataset:
    """Prompts with one character per token."""
    rng = random.Random(0)
    letters = [word for word in AutoTokenizer.from_pretrained(work["model"]).get_vocab() if len(word) == 1]
    texts = ["".join(rng.choices(letters, k=work["prompt"])) for _ in range(work["prompts"] * work["steps"])]
    return Dataset(
        pyarrow.table({"prompt": texts}), fingerprint="prompts"
    )  # without a fingerprint it would pickle pyarrow


def remainder(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """A reward that varies between responses."""
    return [float(sum(ids) % 7) for ids in completion_ids]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
