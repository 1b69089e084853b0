"""A whole run that changes its trainer at every checkpoint gives the metrics of one that does not."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from roll.commands import train as commands
from roll.config.load import load
from roll.preflight import preflight
from roll.tracking.sinks import read_lines
from tests.trainers_optional.conftest import NEEDS_DEEPSPEED

pytestmark = [
    NEEDS_DEEPSPEED,
    pytest.mark.skipif(find_spec("megatron") is None, reason="megatron-core is not installed"),
    pytest.mark.slow,
    pytest.mark.xdist_group("megatron"),
]
os.environ.setdefault("RAY_AUTH_MODE", "disabled")

RUN = """\
threads: 1
executor: ray
model: {shape: {alphabet: "0123456789+=", hidden: 32, layers: 2, heads: 4, kv_heads: 2, mlp: 64, max_seq_len: 64}}
algorithm: grpo
tasks: [{name: sums, data: {kind: arithmetic, count: 50}, reward: "even:score"}]
rollout: {groups_per_step: 8, group_size: 4, max_seq_len: 32, max_new_tokens: 6}
actor_train: {backend: fsdp2, workers: 2, tokens_per_microbatch: 200, optimizer: {lr: 0.01, weight_decay: 0.1}}
weight_sync: {transport: gloo}
validation:
  every: 2
  tasks: [{name: held_out, data: {kind: arithmetic, count: 50, split: held_out}, reward: "even:score"}]
checkpoint: {every: 2}
tracking: {tensorboard: false}
ray: {cpu_slots: 8}
"""
EVEN = """\
def score(task, reply):
    return sum(letter in "02468" for letter in reply) / 6
"""
MOVES = (("megatron", "actor_train.parallel.tp=2"), ("deepspeed", "actor_train.parallel.tp=1"), ("fsdp2",))
COMPARED = ("loss/policy", "loss/grad_norm", "loss/entropy", "reward/mean", "sampler_mismatch/mean")


@pytest.fixture(autouse=True)
def _settings_of_torch() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_a_run_that_moves_between_trainers_learns_as_one_that_does_not(tmp_path: Path) -> None:
    (tmp_path / "even.py").write_text(EVEN)
    (tmp_path / "run.yaml").write_text(RUN)
    start(tmp_path, "stays", steps=2 + 2 * len(MOVES))
    start(tmp_path, "moves", steps=2)
    for number, (backend, *others) in enumerate(MOVES, 2):
        commands.resume(tmp_path / "moves", [f"actor_train.backend={backend}", *others, f"steps={2 * number}"])
    stays, moves = (lines(tmp_path / name) for name in ("stays", "moves"))
    assert len(moves) == len(stays) == 3 + 2 * len(MOVES)
    for ours, theirs in zip(moves[1:], stays[1:], strict=True):
        assert [ours[name] for name in COMPARED] == pytest.approx([theirs[name] for name in COMPARED], abs=1e-3)
    accuracy = [[line["validation/reward"] for line in each if "validation/reward" in line] for each in (moves, stays)]
    assert accuracy[0] == pytest.approx(accuracy[1], abs=0.01) and accuracy[0][-1] > accuracy[0][0]


def start(folder: Path, name: str, *, steps: int) -> None:
    loaded = load(folder / "run.yaml", [f"directory={folder}", f"name={name}", f"steps={steps}"])
    preflight(loaded)
    commands.train(loaded, overwrite=False)


def lines(run: Path) -> list[dict[str, Any]]:
    return read_lines(run / "metrics.jsonl")
