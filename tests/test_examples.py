"""Every example loads, can be explained and runs; what it brings along does what it says."""

import asyncio
import contextlib
import json
import math
from pathlib import Path

import pytest
import torch

from roll.cli import main
from roll.config.load import load
from roll.explain.run import explain
from roll.preflight import importable
from roll.registry import DATASETS, ENVS, LOSSES, REWARDS
from roll.types import Message, Score, Task, Tokens

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[1] / "examples"
CUSTOM = EXAMPLES / "custom" / "run.yaml"
FILES = sorted(path for path in EXAMPLES.rglob("*.yaml") if path.parent.name not in ("rewards", "kubernetes", "stages"))
"""Those that are runs; the others are rewards to be calibrated, stages, and what Kubernetes reads."""
SMALL = ["steps=2", "threads=1", "rollout.groups_per_step=4", "rollout.group_size=2", "validation.tasks.0.limit=4"]


def metrics_of(path: Path, folder: Path, *overrides: str) -> list[dict[str, float]]:
    """The lines of a small run of the file, started from another folder."""
    with contextlib.chdir(folder), pytest.raises(SystemExit) as ended:
        main(["train", str(path), "name=small", *SMALL, *overrides])
    assert not ended.value.code
    return [json.loads(line) for line in (folder / "runs" / "small" / "metrics.jsonl").read_text().splitlines()]


def test_there_are_examples() -> None:
    assert {"arithmetic.yaml", "guess_number.yaml", "run.yaml", "rlvr.yaml", "rlvr_full.yaml"} <= {
        path.name for path in FILES
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_every_example_loads_and_can_be_explained(path: Path) -> None:
    run = load(path).run
    assert f"{run.steps} steps, seed 0" in explain(run)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_every_example_passes_the_check(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if path.name == "rlvr_full.yaml":
        pytest.skip("its data are not ours; tests/test_examples_rlvr.py checks it where they are")
    if path.name.endswith("_gpus.yaml") or path.name in ("gsm8k.yaml", "mbpp.yaml", "frozen_lake_chat.yaml"):
        pytest.skip("its model is not ours; tests/test_examples_gpus.py checks it")
    with contextlib.chdir(EXAMPLES.parent), pytest.raises(SystemExit) as ended:
        main(["check", str(path)])
    assert not ended.value.code and ": ok" in capsys.readouterr().out


def test_the_custom_example_trains_with_its_own_reward_environment_loss_and_data(tmp_path: Path) -> None:
    start, *steps = metrics_of(CUSTOM, tmp_path, "validation.tasks.1.limit=4")
    assert [step["step"] for step in steps] == [1, 2]
    assert {"validation/reversal/reward", "validation/echo/reward"} <= start.keys()
    for step in steps:
        assert 0 <= step["reward/right"] <= 1 and 0 <= step["env/echo/right"] <= 1
        assert step["loss/weight"] == pytest.approx(1, abs=0.2)  # two updates change little
        assert step["staleness/max"] <= 1


def test_the_guessing_example_plays_several_turns(tmp_path: Path) -> None:
    *_, last = metrics_of(EXAMPLES / "guess_number.yaml", tmp_path)
    assert last["step"] == 2 and 1 < last["env/guess/turns"] <= 4
    assert 0 < last["env/guess/valid_actions"] <= 1


def test_the_example_reward_counts_letters_in_their_place_and_letters_too_many() -> None:
    importable(CUSTOM)
    reward, task = REWARDS["my_rewards:letters"], Task(id="t", domain="d", answer="cba")
    assert reward(task, "cba", brevity=0.1) == Score(1.0, {"right": 1.0, "excess": 0.0})
    assert reward(task, "cbbaa", brevity=0.1).value == pytest.approx(2 / 3 - 0.2)
    assert reward(task, "", brevity=0.1).value == 0.0


def test_the_example_environment_rewards_what_it_hears_again() -> None:
    importable(CUSTOM)

    async def play(num_right: int) -> tuple[list[str], float]:
        env = ENVS["my_env:Echo"](Task(id="t", domain="d", seed=3), turns=4)
        (message,) = await env.start()
        said = [message]
        for turn in range(4):
            reply = await env.step(said[-1].content[0] if turn < num_right else "?")
            said += reply.messages
        assert reply.done and all(isinstance(message, Message) for message in said)
        await env.close()
        return [message.content for message in said], reply.reward

    assert asyncio.run(play(4))[1] == 1.0 and asyncio.run(play(1))[1] == 0.25
    assert asyncio.run(play(4))[0] == asyncio.run(play(0))[0]  # siblings face the same world
    assert len(asyncio.run(play(0))[0]) == 4


def test_the_example_loss_weighs_by_how_likely_a_token_is_now_up_to_its_cap() -> None:
    importable(CUSTOM)
    now = torch.tensor([0.5, 0.4, 0.2]).log().requires_grad_()
    tokens = Tokens(
        logprobs=now,
        old_logprobs=now.detach(),
        sampler_logprobs=torch.tensor([0.5, 0.1, 0.4]).log(),
        advantages=torch.tensor([1.0, 1.0, -2.0]),
        trained=torch.ones(3, dtype=torch.bool),
        row=torch.zeros(3, dtype=torch.int64),
        trajectory=torch.zeros(3, dtype=torch.int64),
        turn=torch.zeros(3, dtype=torch.int64),
    )
    loss, metrics = LOSSES["my_loss:capped"](tokens, cap=2.0)
    assert metrics["weight"].tolist() == pytest.approx([1.0, 2.0, 0.5])  # 0.4 / 0.1 is 4, and the cap is 2
    assert loss.tolist() == pytest.approx([-math.log(0.5), -2 * math.log(0.4), math.log(0.2)])
    loss.sum().backward()
    assert now.grad is not None and now.grad.tolist() == pytest.approx([-1.0, -2.0, 1.0])


def test_the_example_words_are_reversed_and_none_is_in_both_files() -> None:
    importable(CUSTOM)
    words, held_out = (DATASETS["my_data:words"](file) for file in ("words.jsonl", "held_out.jsonl"))
    assert (len(words), len(held_out)) == (64, 16)
    assert all(task.messages == (Message("user", f"{task.answer[::-1]}>"),) for task in (*words, *held_out))
    assert {task.id for task in words}.isdisjoint(task.id for task in held_out)
