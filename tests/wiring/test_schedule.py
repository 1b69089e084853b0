"""Learning rates of a whole run: schedules count optimizer steps, each model its own."""

from pathlib import Path

import pytest

from roll.commands import train as commands
from roll.config.load import load
from roll.tracking.sinks import read_lines

pytestmark = pytest.mark.slow

TEXT = """\
name: run
steps: 4
threads: 1
model: {shape: {alphabet: "0123456789+=", hidden: 16, layers: 1, heads: 2, kv_heads: 1, mlp: 16, max_seq_len: 32}}
tasks: [{name: sums, data: arithmetic, reward: exact}]
rollout: {groups_per_step: 2, group_size: 2, max_seq_len: 16, max_new_tokens: 2}
actor_train: {optimizer: {lr: 0.008, schedule: linear}}
critic: {optimizer: {lr: 0.016, schedule: linear}}
tracking: {tensorboard: false}
"""


def rates(folder: Path, algorithm: str) -> dict[str, list[float]]:
    """The learning rates of each step's last update, in thousandths, by model."""
    (folder / "run.yaml").write_text(TEXT + f"directory: {folder}/runs\nalgorithm: {algorithm}\n")
    commands.train(load(folder / "run.yaml"), overwrite=False)
    lines = read_lines(folder / "runs" / "run" / "metrics.jsonl")
    return {key: [1000 * line[key] for line in lines if key in line] for key in ("loss/lr", "critic/lr")}


def test_a_schedule_counts_optimizer_steps_not_batches(tmp_path: Path) -> None:
    by_model = rates(tmp_path, "{recipe: grpo, epochs: 2, minibatches: 2}")
    assert by_model["loss/lr"] == pytest.approx([6.5, 4.5, 2.5, 0.5])  # 8 x 13, 9, 5 and 1 sixteenths


def test_steps_of_the_critic_alone_are_not_part_of_the_actors_schedule(tmp_path: Path) -> None:
    by_model = rates(tmp_path, "{recipe: ppo, epochs: 2, minibatches: 2, critic_warmup: 2}")
    assert by_model["critic/lr"] == pytest.approx([13.0, 9.0, 5.0, 1.0])
    assert by_model["loss/lr"] == pytest.approx([5.0, 1.0])  # 8 updates, the 4th and the 8th of them
