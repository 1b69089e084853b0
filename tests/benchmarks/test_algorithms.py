"""The step on which losses and advantages are timed, and the result of the benchmark."""

import json

import pytest
import torch

from benchmarks.algorithms import Size, run, step, tokens
from roll.registry import ADVANTAGES, LOSSES

SMALL = Size(trajectories=16, length=64, siblings=4, turns=4)


def test_a_step_is_1024_trajectories_of_2048_tokens() -> None:
    size = Size()
    assert (size.trajectories, size.length) == (1024, 2048)


def test_a_step_has_every_field_that_an_advantage_reads_and_turn_rewards_add_up() -> None:
    batch = step(SMALL)
    assert batch.num_tokens == 1024 and batch.lengths == (64,) * 16
    assert batch.group.unique().numel() == 4 and batch.turn.unique().numel() == 64
    earned = torch.zeros(16).index_add(0, batch.turn_trajectory, batch.turn_rewards)
    torch.testing.assert_close(earned, batch.rewards)
    assert not batch.trained[::64].any() and 0.9 < batch.trained.float().mean() < 1


def test_a_micro_batch_is_the_whole_step() -> None:
    seen = tokens(step(SMALL))
    assert seen.logprobs.requires_grad and seen.values is not None and seen.values.requires_grad
    assert torch.equal(seen.row, torch.arange(16).repeat_interleave(64))


@pytest.mark.slow
def test_every_loss_and_advantage_is_timed_and_the_slowest_counts(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(SMALL)
    details = result.details
    assert {label.partition("(")[0] for label in details["losses_s"]} == set(LOSSES.targets)
    timed = {label.partition("(")[0] for label in (*details["advantages_s"], *details["wide_s"])}
    assert timed == set(ADVANTAGES.targets)
    assert {label.partition("(")[0] for label in details["wide_s"]} == {"gae", "gigpo"}
    slowest = max(*details["losses_s"].values(), *details["advantages_s"].values())
    assert result.ours == pytest.approx(slowest, abs=1e-4)
    assert json.loads(result.to_json())["bound"] == 0.25
    assert capsys.readouterr().out.startswith("one pass of exp:")
