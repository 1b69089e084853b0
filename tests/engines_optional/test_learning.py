"""A policy learns from samples of vLLM, with the loop used for the native generator."""

import json
from pathlib import Path

import pytest

from roll.commands import train as commands
from roll.config.load import load
from roll.journal.events import WeightsPublished
from roll.journal.store import Reader
from roll.types import Task
from tests.engines_optional.conftest import NEEDS_VLLM

pytestmark = NEEDS_VLLM
STEPS = 12


def sevens(task: Task, reply: str) -> float:
    return reply.count("7") / 4


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_run_learns_from_samples_of_vllm(staleness: int, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(f"""\
directory: {tmp_path}
steps: {STEPS}
threads: 1
model: {{shape: {{alphabet: "0123456789+=", hidden: 64, layers: 1, heads: 2, kv_heads: 2, mlp: 64, max_seq_len: 96}}}}
algorithm: grpo
tasks: [{{name: sums, data: {{kind: arithmetic, digits: 1}}, reward: "{__name__}:sevens"}}]
rollout: {{groups_per_step: 8, group_size: 8, max_seq_len: 96, max_new_tokens: 4, max_staleness: {staleness}}}
actor_train: {{devices: cpu, optimizer: {{lr: 1e-2}}}}
actor_infer: {{backend: vllm, max_num_seqs: 64, kv_cache_gib: 0.25, enforce_eager: true}}
tracking: {{tensorboard: false}}
""")
    commands.train(load(tmp_path / "run.yaml"), overwrite=False)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["step"]]
    rewards = [line["reward/mean"] for line in steps]
    assert sum(rewards[-3:]) / 3 > rewards[0] + 0.25
    assert max(line["sampler_mismatch/max"] for line in steps) < (1e-3 if staleness == 0 else 10)
    reader = Reader(tmp_path / "run" / "journal.db")
    published = [entry.event for entry in reader.events(WeightsPublished)]
    reader.close()
    assert [event.version for event in published] == list(range(STEPS + 1))
    assert all("canary" in event.seconds for event in published)
