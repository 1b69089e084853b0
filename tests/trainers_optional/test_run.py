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


def test_a_run_with_a_critic_and_a_reference_is_verified_and_resumes(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(RUN)
    first = call(tmp_path, "train", str(file), f"directory={tmp_path}", "steps=2")
    assert first.code == 0, first
    more = call(tmp_path, "resume", "run", "steps=4")
    assert more.code == 0, more
    lines = [line for line in read_lines(tmp_path / "run/metrics.jsonl") if "reward/mean" in line]
    assert len(lines) == 4
    assert all(line["loss/refused"] == 0 and line["critic/refused"] == 0 for line in lines)
    assert all(line["sampler_mismatch/max"] < 1e-3 for line in lines)
    reader = Reader(tmp_path / "run/journal.db")
    published = [entry.event for entry in reader.events(WeightsPublished)]
    reader.close()
    assert len(published) >= 5
    assert all("canary" in event.seconds for event in published)
