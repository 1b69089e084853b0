"""The GPU benchmarks without a GPU: bounds computed by hand, configs that load, and their tasks and rewards."""

from pathlib import Path

import pytest
import torch

from benchmarks import gpu_learn, gpu_memory, gpu_publish, gpu_step
from benchmarks.gpu_model import VOCAB, Ceilings, alphabet, qwen3
from roll.config.load import load
from roll.engines.native.decoder import geometry
from roll.types import Task


def test_bounds_are_the_bytes_and_operations_of_each_phase() -> None:
    # A layer has 1024 x (2 x 2048 + 2 x 1024) + 3 x 1024 x 3072 = 15.73M weights, all 28 have 440.4M, the head 155.6M.
    # Decoding reads 1.192 GB of weights 512 times, and 114,688 bytes per attended token, 256 x 196,352: 6.375 TB.
    # Prompts count once: 32 x 128 + 256 x 512 = 135,168 tokens.
    # They attend to 32 x 128^2 / 2 + 131,072 x (128 + 256) = 50.6M.
    # An update is 6 x 440.4M x 135,168 + 6 x 155.6M x 131,072 + 12 x 28 x 2048 x 50.6M operations: 514 T.
    bounds = gpu_step.phase_bounds(geometry(qwen3()), Ceilings(bytes_per_s=1e12, flops=1e14))
    assert bounds["wait"] == pytest.approx(6.375, rel=1e-3)
    assert bounds["update"] == pytest.approx(5.143, rel=1e-3)
    assert bounds["publish"] == pytest.approx(14 * 0.596e9 / 1e12, rel=1e-3)


@pytest.mark.parametrize("backend", ["native", "vllm"])
def test_the_config_of_a_step_is_valid(backend: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(gpu_step.config(tmp_path / "model", tmp_path, backend=backend))
    run = load(tmp_path / "run.yaml").run
    assert (run.actor_train.dtype, run.actor_infer.backend) == ("bfloat16", backend)
    assert run.rollout.groups_per_step * run.rollout.group_size * run.rollout.max_new_tokens == 131_072


def test_the_alphabet_and_the_special_tokens_make_the_vocabulary() -> None:
    letters = alphabet()
    assert len(set(letters)) == len(letters) == VOCAB - 4
    assert "".join(letters).encode("utf-8").decode("utf-8") == "".join(letters)


def test_prompts_are_distinct_and_have_128_letters() -> None:
    tasks = gpu_step.prompts(3)
    assert [len(task.messages[0].content) for task in tasks] == [gpu_step.PROMPT] * 3
    assert len({task.messages[0].content for task in tasks}) == 3


def test_no_held_out_sum_is_trained_on() -> None:
    trained, held_out = (
        {task.messages[0].content for task in gpu_learn.sums(split, count=400)} for split in ("train", "held_out")
    )
    assert not trained & held_out
    assert len(held_out) == 400


@pytest.mark.parametrize(
    ("response", "reward"),
    [("51", 1.0), ("3 + 48 = 51.", 1.0), ("051", 1.0), ("51 is 3 + 48", 0.0), ("", 0.0), ("fifty-one", 0.0)],
)
def test_the_last_number_of_a_reply_counts(response: str, reward: float) -> None:
    assert gpu_learn.last_number(Task(id="0", domain="sums", answer="51"), response) == reward


def test_zero_is_a_number() -> None:
    assert gpu_learn.last_number(Task(id="0", domain="sums", answer="0"), "0") == 1.0


def test_the_config_on_sums_is_valid(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(gpu_learn.config(tmp_path / "model", tmp_path))
    assert load(tmp_path / "run.yaml").run.steps == 100


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_result_is_skipped_with_a_reason() -> None:
    for benchmark in (gpu_step, gpu_publish, gpu_learn, gpu_memory):
        assert benchmark.run().skipped == "no GPU is visible"
