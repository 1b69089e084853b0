"""Whole runs whose trainer is two ranks of backend megatron, compared with the same run in one process."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from roll.commands import train as commands
from roll.config.load import load
from roll.preflight import preflight
from roll.tracking.sinks import read_lines
from roll.weights.huggingface import read_tensors

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("megatron")]
os.environ.setdefault("RAY_AUTH_MODE", "disabled")

RUN = """\
threads: 1
steps: 10
model: {shape: {alphabet: "0123456789+=", hidden: 32, layers: 2, heads: 4, kv_heads: 2, mlp: 64, max_seq_len: 64}}
algorithm: grpo
tasks: [{name: sums, data: {kind: arithmetic, count: 50}, reward: "even:score"}]
rollout: {groups_per_step: 4, group_size: 3, max_seq_len: 32, max_new_tokens: 6}
actor_train: {tokens_per_microbatch: 50, optimizer: {lr: 0.003}}
checkpoint: {every: 5}
tracking: {tensorboard: false}
"""
EVEN = """\
def score(task, reply):
    return sum(letter in "02468" for letter in reply) / 6
"""
RANKS = ("executor=ray", "actor_train.backend=megatron", "actor_train.workers=2", "weight_sync.transport=gloo")
LAYOUT = "actor_train.parallel.pp=2"
PPO = (
    "algorithm={recipe: ppo, kl: {estimator: k3, coefficient: 0.01, apply_to: loss}}",
    "critic.optimizer.lr=0.01",
    "steps=4",
    "checkpoint.every=2",
)
ROLES = ("critic={sharded: true, workers: 2}", "reference={sharded: true, workers: 2}")
COMPARED = ("loss/policy", "loss/grad_norm", "loss/entropy", "reward/mean", "sampler_mismatch/mean")


@pytest.fixture(autouse=True)
def _settings_of_torch() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_ten_steps_on_two_stages_are_those_of_one_process_and_the_run_resumes(tmp_path: Path) -> None:
    train(tmp_path, "one")
    train(tmp_path, "two", *RANKS, LAYOUT)
    one, two = (read_lines(tmp_path / name / "metrics.jsonl") for name in ("one", "two"))
    assert len(one) == len(two) == 11
    for ours, theirs in zip(two[1:], one[1:], strict=True):
        assert [ours[name] for name in COMPARED] == pytest.approx([theirs[name] for name in COMPARED], abs=1e-4)
    models = [dict(read_tensors(tmp_path / name / "model")) for name in ("one", "two")]
    assert models[0].keys() == models[1].keys()
    for name, tensor in models[0].items():
        torch.testing.assert_close(models[1][name], tensor, rtol=1e-3, atol=1e-3)
    state = tmp_path / "two/checkpoints/step-10/optimizer"
    assert json.loads((state / "state.json").read_text()) == {"format": 1, "optimizer": "adamw", "num_updates": 10}
    assert len(list(state.glob("rank-00000-*.safetensors"))) == len(list(state.glob("rank-00001-*.safetensors"))) == 1
    result = commands.resume(tmp_path / "two", ["steps=11"])
    assert result.finished and result.checkpoint == tmp_path / "two/checkpoints/step-11"


def test_a_critic_and_a_reference_on_two_stages_give_the_run_of_one_process(tmp_path: Path) -> None:
    train(tmp_path, "one", *PPO)
    train(tmp_path, "two", *RANKS, LAYOUT, *ROLES, "ray.cpu_slots=8", *PPO)
    one, two = (read_lines(tmp_path / name / "metrics.jsonl") for name in ("one", "two"))
    assert len(one) == len(two) == 5
    compared = (*COMPARED, "critic/value_error", "critic/grad_norm", "loss/kl")
    for ours, theirs in zip(two[1:], one[1:], strict=True):
        assert [ours[name] for name in compared] == pytest.approx([theirs[name] for name in compared], abs=1e-4)
    assert one[-1]["critic/grad_norm"] > 0.01
    critics = [dict(read_tensors(tmp_path / name / "checkpoints/step-4/critic")) for name in ("one", "two")]
    assert critics[0].keys() == critics[1].keys() and critics[0]["score.weight"].norm() > 0
    for name, tensor in critics[0].items():
        torch.testing.assert_close(critics[1][name], tensor, rtol=1e-3, atol=1e-3)


def train(folder: Path, name: str, *where: str) -> None:
    (folder / "even.py").write_text(EVEN)
    (folder / "run.yaml").write_text(RUN)
    loaded = load(folder / "run.yaml", [f"directory={folder}", f"name={name}", *where])
    preflight(loaded)
    commands.train(loaded, overwrite=False)
