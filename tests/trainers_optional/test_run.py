"""Whole runs on Ray with DeepSpeed's trainer on two ranks: every version of the weights is verified, a run resumes."""

from pathlib import Path

import pytest

from roll.journal.events import WeightsPublished
from roll.journal.store import Reader
from roll.tracking.sinks import read_lines
from tests.cli.conftest import call
from tests.trainers_optional.conftest import NEEDS_DEEPSPEED

pytestmark = [NEEDS_DEEPSPEED, pytest.mark.slow, pytest.mark.ray]

RUN = """\
name: run
executor: ray
threads: 1
steps: 4
model: {shape: {alphabet: "0123456789+=", hidden: 32, layers: 2, heads: 2, kv_heads: 2, mlp: 64, max_seq_len: 64}}
algorithm: {recipe: ppo, kl: {estimator: k3, coefficient: 0.01, apply_to: loss}}
tasks: [{name: sums, data: {kind: arithmetic, digits: 1}, reward: exact}]
rollout: {groups_per_step: 4, group_size: 4, max_seq_len: 16, max_new_tokens: 4}
actor_train: {backend: deepspeed, workers: 2, tokens_per_microbatch: 64, optimizer: {lr: 0.003}}
critic: {sharded: true, workers: 2}
reference: {sharded: true, workers: 2}
actor_infer: {max_num_seqs: 8}
checkpoint: {every: 2}
tracking: {tensorboard: false}
ray: {cpu_slots: 8}
"""


def test_every_version_of_a_run_with_a_critic_and_a_reference_is_verified(tmp_path: Path) -> None:
    start(tmp_path, "train", "run.yaml", "directory=.")
    assert_trained(tmp_path)


@pytest.mark.sweep
def test_a_stopped_run_resumes(tmp_path: Path) -> None:
    start(tmp_path, "train", "run.yaml", "directory=.", "steps=2")
    start(tmp_path, "resume", "run", "steps=4")
    assert_trained(tmp_path)


def start(folder: Path, *arguments: str) -> None:
    (folder / "run.yaml").write_text(RUN)
    ended = call(folder, *arguments)
    assert ended.code == 0, ended


def assert_trained(folder: Path) -> None:
    lines = [line for line in read_lines(folder / "run/metrics.jsonl") if "reward/mean" in line]
    assert len(lines) == 4
    assert all(line["loss/refused"] == 0 and line["critic/refused"] == 0 for line in lines)
    assert all(line["sampler_mismatch/max"] < 1e-3 for line in lines)
    reader = Reader(folder / "run/journal.db")
    published = [entry.event for entry in reader.events(WeightsPublished)]
    reader.close()
    assert len(published) >= 5
    assert all("canary" in event.seconds for event in published)
