"""Turns as sequences of their own: a model learns from them what it learns from whole attempts."""

import json
from pathlib import Path

import pytest
import torch

from roll.commands import train as commands
from roll.config.load import load
from roll.envs.base import StepResult
from roll.preflight import preflight
from roll.types import Message, Task

pytestmark = [pytest.mark.learns, pytest.mark.sweep]
TURNS = 3
RUN = f"""\
deterministic: true
threads: 2
steps: 12
model:
  shape: {{alphabet: "0123456789?", hidden: 32, layers: 1, heads: 2, kv_heads: 2, mlp: 64, max_seq_len: 32}}
algorithm: step_reinforce
tasks: [{{name: sevens, env: "{__name__}:Sevens"}}]
rollout: {{groups_per_step: 8, group_size: 8, max_seq_len: 32, max_new_tokens: 2, segment_per: turn}}
actor_train: {{optimizer: {{lr: 1e-2}}}}
tracking: {{tensorboard: false}}
checkpoint: {{every: 0}}
"""


class Sevens:
    """Wants a seven, several times; every one earns its part."""

    def __init__(self, task: Task) -> None:
        self._turn = 0

    async def start(self) -> tuple[Message, ...]:
        return (Message("user", "?"),)

    async def step(self, response: str) -> StepResult:
        self._turn += 1
        return StepResult(
            messages=(Message("user", "?"),),
            reward=float("7" in response) / TURNS,
            done=self._turn == TURNS,
            state=str(self._turn),
        )

    async def close(self) -> None: ...


@pytest.mark.parametrize("recipe", ["step_reinforce", "gigpo"])
def test_a_model_learns_from_turns(recipe: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN, encoding="utf-8")
    loaded = load(tmp_path / "run.yaml", [f"directory={tmp_path}", "name=turns", f"algorithm={recipe}"])
    preflight(loaded)
    try:
        commands.train(loaded, overwrite=False)
    finally:
        torch.use_deterministic_algorithms(False)
    lines = [json.loads(line) for line in (tmp_path / "turns" / "metrics.jsonl").read_text().splitlines()]
    rewards = [line["reward/mean"] for line in lines if line["step"]]
    assert rewards[0] < 0.35 and sum(rewards[-3:]) / 3 > rewards[0] + 0.25
