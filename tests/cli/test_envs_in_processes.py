"""A run whose environments live in processes is the run that it would be with all of them here."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

RUN = """\
name: tiny
deterministic: true
threads: 1
steps: 2
model:
  shape: {alphabet: "0123456789-?ehiglortw", hidden: 32, layers: 1, heads: 2, kv_heads: 1, mlp: 64, max_seq_len: 64}
algorithm: grpo
tasks: [{name: guess, env: {kind: guess_number, max_turns: 3}}]
rollout: {groups_per_step: 8, group_size: 4, max_seq_len: 64, max_new_tokens: 1}
actor_train: {optimizer: {lr: 1e-3}}
tracking: {tensorboard: false}
"""


def metrics(folder: Path, name: str) -> list[dict[str, Any]]:
    lines = (folder / "runs" / name / "metrics.jsonl").read_text().splitlines()
    timings = ("time", "speed/")
    return [{k: v for k, v in json.loads(line).items() if not k.startswith(timings)} for line in lines]


def test_nothing_but_the_time_it_takes_depends_on_where_environments_live(
    folder: Path, roll: Callable[..., Any]
) -> None:
    (folder / "run.yaml").write_text(RUN)
    assert roll("train", "run.yaml", "name=here").code == 0
    assert roll("train", "run.yaml", "name=there", "envs.workers=2", "envs.max_concurrent_starts=3").code == 0
    here, there = metrics(folder, "here"), metrics(folder, "there")
    assert here == there and any(line.get("reward/mean") for line in here)
