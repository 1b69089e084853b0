"""Whole runs over models of transformers: learning, asynchronous sampling, resuming, export, several processes."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.families import family_model
from roll.cli import main
from roll.data.templates import character_tokenizer
from roll.engines.hf.decoder import HuggingFaceDecoder
from roll.tracking.sinks import read_lines
from roll.types import Task
from roll.weights.huggingface import read_tensors, write_model
from tests.cli.conftest import call

pytestmark = pytest.mark.slow

RUN = f"""\
name: run
threads: 1
steps: 4
model: {{path: model}}
algorithm: {{recipe: grpo, kl: {{estimator: k3, coefficient: 0.01, apply_to: loss}}}}
tasks: [{{name: sums, data: {{kind: arithmetic, digits: 1}}, reward: "{__name__}:sevens"}}]
rollout: {{groups_per_step: 4, group_size: 4, max_seq_len: 16, max_new_tokens: 4}}
actor_train: {{tokens_per_microbatch: 64, optimizer: {{lr: 0.003}}}}
actor_infer: {{max_num_seqs: 8}}
checkpoint: {{every: 2}}
tracking: {{tensorboard: false}}
"""


def sevens(task: Task, reply: str) -> float:
    """Reward grows with the number of sevens; a random model gets a little."""
    return reply.count("7") / 4


@pytest.fixture(autouse=True)
def _settings_of_torch() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


Start = Callable[..., Path]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Writes a model and a run file, and trains with overrides; returns the run's directory."""

    def run(family: str, *changes: str, command: str = "train") -> Path:
        if not (tmp_path / "model").exists():
            tokenizer = character_tokenizer("0123456789+=")
            decoder = HuggingFaceDecoder(family_model(family, vocab_size=len(tokenizer), max_position_embeddings=64))
            write_model(tmp_path / "model", decoder.config, dict(decoder.named_tensors()))
            tokenizer.save_pretrained(tmp_path / "model")
            (tmp_path / "run.yaml").write_text(RUN.replace("path: model", f"path: {tmp_path}/model"))
        with pytest.raises(SystemExit) as ended:
            main([command, str(tmp_path / "run.yaml"), f"directory={tmp_path}", *changes])
        assert not ended.value.code
        return tmp_path / "run"

    return run


def metrics(run: Path) -> list[dict[str, Any]]:
    return [line for line in read_lines(run / "metrics.jsonl") if "reward/mean" in line]


@pytest.mark.parametrize("family", ["Gemma 2", "DeepSeek-V3"])
def test_a_model_of_transformers_learns(family: str, start: Start) -> None:
    found = [line["reward/mean"] for line in metrics(start(family, "steps=25"))]
    assert sum(found[-5:]) / 5 > sum(found[:3]) / 3 + 0.2, found


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        (("rollout.max_staleness=1", "algorithm.correction=truncate"), 2.0),
        (("actor_train.lora={rank: 4, target_modules: [q_proj, o_proj]}",), 1e-3),
        (("actor_train.activation_checkpointing=true",), 1e-3),
    ],
    ids=["asynchronous", "adapters", "recomputed"],
)
def test_settings_of_the_native_engine_work(changes: tuple[str, ...], limit: float, start: Start) -> None:
    """`limit`: most by which logprobs of sampler and trainer may differ."""
    lines = metrics(start("GPT-OSS", *changes))
    assert len(lines) == 4 and all(line["loss/refused"] == 0 for line in lines)
    assert all(line["sampler_mismatch/mean"] < limit for line in lines)


def test_a_stopped_run_continues_with_the_same_weights(start: Start, tmp_path: Path) -> None:
    whole = dict(read_tensors(start("Qwen3-MoE") / "model"))
    start("Qwen3-MoE", "name=half", "steps=2")
    code = call(tmp_path, "resume", "half", "steps=4").code
    assert code == 0
    resumed = dict(read_tensors(tmp_path / "half" / "model"))
    assert whole.keys() == resumed.keys()
    assert all(torch.allclose(whole[name], resumed[name], atol=1e-5) for name in whole)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "half" / "model")
    assert json.loads((tmp_path / "half" / "model" / "config.json").read_text())["model_type"] == "qwen3_moe"
    assert sum(parameter.numel() for parameter in model.parameters()) == sum(each.numel() for each in whole.values())


def test_adapters_of_a_model_of_transformers_are_exported(start: Start, tmp_path: Path) -> None:
    start("Gemma 2", "steps=2", "actor_train.lora={rank: 4, target_modules: [o_proj]}")
    assert call(tmp_path, "export", "run", "--output", "merged").code == 0
    exported, trained = (dict(read_tensors(tmp_path / name)) for name in ("merged", "run/model"))
    assert exported.keys() == trained.keys()
    assert all(torch.allclose(exported[name], trained[name], atol=1e-6) for name in trained)
    AutoModelForCausalLM.from_pretrained(tmp_path / "merged")


@pytest.mark.ray
@pytest.mark.sweep
def test_ranks_and_generators_in_processes(start: Start) -> None:
    run = start("Gemma 3", "executor=ray", "actor_train.backend=fsdp2", "actor_train.workers=2", "ray.cpu_slots=4")
    assert len(metrics(run)) == 4
