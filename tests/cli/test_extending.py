"""What a user brings along, or turns on: rewards, losses, environments, services, staleness."""

import importlib.util
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from roll.tracking.glossary import describe

pytestmark = pytest.mark.slow

ONE_STEP = ("train", "run.yaml", "steps=1", "validation.tasks=[]")
TWO_STEPS = ("train", "run.yaml", "steps=2", "validation.tasks=[]")


def last(folder: Path) -> dict[str, float]:
    """The metrics of the last step, each of which the glossary explains."""
    found = json.loads((folder / "runs" / "tiny" / "metrics.jsonl").read_text().splitlines()[-1])
    assert {name for name in found if name not in ("step", "time") and describe(name) is None} == set()
    return found


def test_a_reward_next_to_the_file_is_used_with_its_arguments_and_its_parts_are_logged(
    roll: Callable, folder: Path
) -> None:
    (folder / "brevity_beside.py").write_text(
        "from roll.types import Score\n\n"
        "async def score(task, reply, *, bonus):\n    return Score(bonus + 1.0, {'brief': 0.25})\n"
    )
    outcome = roll(*ONE_STEP, "tasks.0.reward={kind: 'brevity_beside:score', bonus: 2}")
    assert outcome.code == 0, outcome
    assert last(folder)["reward/mean"] == 3.0 and last(folder)["reward/brief"] == 0.25


def test_a_loss_and_an_advantage_next_to_the_file_are_used_with_their_arguments(roll: Callable, folder: Path) -> None:
    (folder / "learning_beside.py").write_text(
        "import torch\n\n"
        "def same(batch, *, value):\n"
        "    assert 2 < float(batch.entropies[batch.trained].mean()) < 2.8\n"  # about log(16)
        "    return torch.full((batch.num_tokens,), value)\n\n"
        "def surprise(tokens, *, scale):\n"
        "    return -scale * tokens.advantages * tokens.logprobs, {'surprise': -tokens.logprobs.detach()}\n"
    )
    outcome = roll(
        *ONE_STEP,
        "algorithm.advantage={kind: 'learning_beside:same', value: 2.0}",
        "algorithm.loss={kind: 'learning_beside:surprise', scale: 3.0}",
        "algorithm.aggregation=token_mean",
        "algorithm.needs=[entropies]",
    )
    assert outcome.code == 0, outcome
    found = last(folder)
    assert found["loss/surprise"] == pytest.approx(math.log(16), rel=0.05)  # untrained: about even over 16 tokens
    assert found["loss/policy"] == pytest.approx(6 * found["loss/surprise"], rel=1e-5)


OBSERVERS = """
import json
from pathlib import Path

class Callback:
    def __init__(self, *, path):
        self.path, self.lines = Path(path), []

    def on_start(self, directory, step):
        self.lines.append(["start", Path(directory).name, step])

    def on_step(self, step, metrics):
        self.lines.append([step, "reward/mean" in metrics])

    def on_checkpoint(self, step, path):
        self.lines.append(["checkpoint", step, (path / "state.json").is_file()])

    def on_end(self):
        self.path.write_text(json.dumps(self.lines))

class Sink:
    def write(self, step, metrics):
        if step == 2 and "time/step" in metrics:
            raise RuntimeError("full")

    def close(self):
        raise AssertionError("closed after it failed")
"""


def test_callbacks_follow_the_run_and_a_sink_that_fails_ends_it_in_one_line(roll: Callable, folder: Path) -> None:
    (folder / "observers_beside.py").write_text(OBSERVERS)
    seen = folder / "seen.json"
    callback = f"callbacks=[{{kind: 'observers_beside:Callback', path: {seen}}}]"
    outcome = roll(*TWO_STEPS, callback, "tracking.sinks=['observers_beside:Sink']")
    assert outcome.fault(2).replace(f"{folder}/", "") == (
        "metric sink 'observers_beside:Sink': write: RuntimeError: full (observers_beside.py:24); fix its code"
    )
    calls = json.loads(seen.read_text())
    assert [call for call in calls if call[0] != "checkpoint"] == [["start", "tiny", 0], [0, False], [1, True]]
    assert [call for call in calls if call[0] == "checkpoint"] == [["checkpoint", 1, True], ["checkpoint", 2, True]]
    assert roll("resume", "runs/tiny", "tracking.sinks=[]", "steps=3").code == 0
    calls = json.loads(seen.read_text())
    assert calls[0] == ["start", "tiny", 2] and ["checkpoint", 3, True] in calls


ECHO = """
from roll.envs.base import StepResult
from roll.types import Message

class Echo:
    def __init__(self, task, *, turns):
        self.left = turns

    async def start(self):
        return (Message("user", "12="),)

    async def step(self, response):
        self.left -= 1
        return StepResult(messages=(Message("user", "+"),), reward=0.5, done=self.left == 0, metrics={"said": 1.0})

    async def close(self): ...
"""


def test_an_environment_next_to_the_file_is_played_to_its_end(roll: Callable, folder: Path) -> None:
    (folder / "echo_beside.py").write_text(ECHO)
    outcome = roll(*ONE_STEP, "tasks=[{name: echo, env: {kind: 'echo_beside:Echo', turns: 3}}]")
    assert outcome.code == 0, outcome
    assert last(folder)["reward/mean"] == 1.5 and last(folder)["env/echo/said"] == 1.0
    assert "--- turn 3: sampled" in roll("samples", "runs/tiny", "--last", "1").out


def test_an_environment_that_fails_now_and_then_does_not_stop_the_run(roll: Callable, folder: Path) -> None:
    broken = ECHO.replace("self.left -= 1", "self.left -= 1\n        assert sum(map(ord, response)) % 8, 'bad luck'")
    (folder / "luck_beside.py").write_text(broken)
    outcome = roll(
        *TWO_STEPS, "tasks=[{name: echo, env: {kind: 'luck_beside:Echo', turns: 2}}]", "rollout.max_retries=9"
    )
    assert outcome.code == 0, outcome
    steps = [json.loads(line) for line in (folder / "runs" / "tiny" / "metrics.jsonl").read_text().splitlines()]
    assert sum(step.get("failed/env_failed", 0) for step in steps) > 0
    assert "bad luck" in roll("samples", "runs/tiny", "--status", "env_failed").out
    last(folder)


def test_the_number_game_trains(roll: Callable, folder: Path) -> None:
    outcome = roll(
        *TWO_STEPS,
        "model.shape.alphabet='0123456789-?abcdefghijklmnopqrstuvwxyz'",
        "tasks=[{name: guess, env: {kind: guess_number, max_turns: 3}}]",
        "rollout.max_seq_len=64",
    )
    assert outcome.code == 0, outcome
    assert 1 <= last(folder)["env/guess/turns"] <= 3


@pytest.mark.parametrize("staleness", [0.5, 1, 2])
def test_tokens_are_never_older_than_the_bound(roll: Callable, folder: Path, staleness: float) -> None:
    arguments = ("deterministic=false", f"rollout.max_staleness={staleness}", "steps=6")
    outcome = roll("train", "run.yaml", "validation.tasks=[]", "checkpoint.every=0", *arguments)
    assert outcome.code == 0, outcome
    steps = [json.loads(line) for line in (folder / "runs" / "tiny" / "metrics.jsonl").read_text().splitlines()]
    ages = [step["staleness/max"] for step in steps if "staleness/max" in step]
    assert len(ages) == 6 and 0 < max(ages) <= math.ceil(staleness)  # some were old, or nothing was tested


@pytest.mark.sweep
@pytest.mark.parametrize("service", ["wandb", "swanlab"])
def test_a_run_can_be_followed_offline(child: Callable, folder: Path, service: str) -> None:
    if importlib.util.find_spec(service) is None:
        pytest.skip(f"{service} is not installed")
    offline = f"os.environ.update({service.upper()}_MODE='offline', HOME={str(folder)!r})"
    outcome = child(*TWO_STEPS, f"tracking.{service}=tests", "tracking.tensorboard=false", before=offline).end()
    assert outcome.code == 0, outcome
    (record,) = (folder / "runs" / "tiny" / service).rglob(f"*.{service}")
    assert b"reward/mean" in record.read_bytes()


def test_a_reward_that_hangs_fails_its_sample_and_the_run_continues(roll: Callable, folder: Path) -> None:
    (folder / "hanging_beside.py").write_text(
        "import os, time\n\n"
        "def once(task, reply, *, witness):\n"
        "    if not os.path.exists(witness):\n"
        "        open(witness, 'w').close()\n"
        "        time.sleep(1000)\n"
        "    return float(len(reply))\n"
    )
    witness = folder / "hung"
    outcome = roll(
        *ONE_STEP,
        f"tasks.0.reward={{kind: 'hanging_beside:once', witness: {witness}}}",
        "rewards={workers: 1, timeout_s: 2.0}",
        "deterministic=false",
    )
    assert outcome.code == 0, outcome
    assert witness.exists(), "it really hung"
    assert last(folder)["failed/reward_failed"] == 1
    shown = roll("samples", "runs/tiny", "--status", "reward_failed")
    assert "timed out after 2 s and was killed" in shown.out
