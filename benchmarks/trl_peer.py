"""TRL's side of `trl_cpu`, run by the interpreter of an environment that has TRL but not this package.

Takes the work as one JSON object, and prints the seconds of each step after the first as its last line.
"""
# pyright: basic, reportMissingImports=false

import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_VERBOSITY": "error"}

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3Config, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Stopwatch(TrainerCallback):
    """Records the start of each step; generation, update and logging all lie between two starts."""

    def __init__(self) -> None:
        self.began: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.began.append(time.perf_counter())


def main(work: dict[str, Any]) -> None:
    """Train for `work["steps"]` steps and print their durations."""
    torch.set_num_threads(work["threads"])
    torch.manual_seed(0)
    stopwatch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        save_tokenizer(folder, work)
        save_model(folder, work)
        trainer = GRPOTrainer(
            model=folder,
            reward_funcs=distinct_characters,
            args=settings(folder, work),
            train_dataset=dataset(work),
            callbacks=[stopwatch],
        )
        trainer.train()
    lengths = [entry["completions/mean_length"] for entry in trainer.state.log_history if "reward" in entry]
    assert lengths and all(length == work["new_tokens"] for length in lengths), f"responses ended early: {lengths}"
    steps = [after - before for before, after in zip(stopwatch.began, stopwatch.began[1:], strict=False)]
    sys.stdout.write(json.dumps({"step_s": steps[1:]}) + "\n")


def save_tokenizer(folder: str, work: dict[str, Any]) -> None:
    """One token per character. The end of sequence is an id past the model's vocabulary: no response ends early."""
    vocabulary = {"<pad>": 0, "<bos>": 1, "<sep>": 2, "<unk>": 3}
    vocabulary |= {character: index for index, character in enumerate(work["alphabet"], 4)}
    vocabulary["<eos>"] = work["vocab"]
    tokenizer: Any = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>"
    ).save_pretrained(folder)


def save_model(folder: str, work: dict[str, Any]) -> None:
    """Random weights of the shape in `work`."""
    shape = work["shape"]
    config = Qwen3Config(
        vocab_size=work["vocab"],
        hidden_size=shape["hidden"],
        intermediate_size=shape["mlp"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["kv_heads"],
        head_dim=shape["hidden"] // shape["heads"],
        max_position_embeddings=shape["max_seq_len"],
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=work["vocab"],
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    assert Path(folder, "model.safetensors").is_file()


def settings(folder: str, work: dict[str, Any]) -> GRPOConfig:
    """All prompts of a step in one batch, without saving or reporting."""
    return GRPOConfig(
        output_dir=f"{folder}/run",
        per_device_train_batch_size=work["prompts"] * work["siblings"],
        num_generations=work["siblings"],
        max_completion_length=work["new_tokens"],
        max_steps=work["steps"],
        learning_rate=work["lr"],
        beta=0.0,
        gradient_checkpointing=work["gradient_checkpointing"],
        bf16=False,
        use_cpu=True,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )


def dataset(work: dict[str, Any]) -> Dataset:
    """Sums such as `12+34=`, one per prompt."""
    rng = random.Random(0)
    count = work["prompts"] * work["steps"]
    return Dataset.from_list([{"prompt": f"{rng.randrange(100)}+{rng.randrange(100)}="} for _ in range(count)])


def distinct_characters(completions: list[str], **_: Any) -> list[float]:
    """Number of distinct characters in each response."""
    return [float(len(set(response))) for response in completions]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
