"""The promise of `deterministic: true`: the same seed, the same run, to the last bit."""

import asyncio
import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from examples import rl_in_60_lines
from roll.commands import train as commands
from roll.commands.lifecycle import Embedded
from roll.config.load import LoadedRun, load
from roll.engines.base import Trainer
from roll.tracking.sinks import read_lines
from roll.types import Task
from roll.weights.huggingface import read_tensors

pytestmark = pytest.mark.slow

FUSE: list[Callable[[], None]] = []
"""What happens at the next calls of the reward, last entry first."""

RUN = f"""\
name: run
deterministic: true
threads: 1
steps: 5
model: {{shape: {{alphabet: "0123456789+=", hidden: 32, layers: 2, heads: 4, kv_heads: 2, mlp: 64, max_seq_len: 64}}}}
algorithm: grpo
tasks: [{{name: sums, data: sums.jsonl, reward: "{__name__}:even"}}]
rollout: {{groups_per_step: 3, group_size: 3, max_seq_len: 32, max_new_tokens: 8, temperature: 0.9, top_k: 12}}
actor_train: {{tokens_per_microbatch: 50, optimizer: {{lr: 0.01, schedule: cosine, warmup_steps: 1}}}}
actor_infer: {{max_num_seqs: 3, max_num_batched_tokens: 16}}
validation: {{at_start: true, every: 2, tasks: [{{name: same, data: sums.jsonl, limit: 3, reward: "{__name__}:even"}}]}}
checkpoint: {{every: 2}}
tracking: {{tensorboard: false}}
"""


def even(task: Task, reply: str) -> float:
    """How much of the reply is even digits: something that any model earns a little of."""
    if FUSE:
        FUSE.pop()()
    return sum(letter in "02468" for letter in reply) / 8


def nothing() -> None:
    """One more call without an event."""


def press_ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def pull_the_plug() -> None:
    raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def _settings_of_torch() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., LoadedRun]:
    """A run file beside its tasks, with changes laid over it."""
    tasks = [{"prompt": f"{left}+{left * 7 % 10}=", "answer": str(left + left * 7 % 10)} for left in range(11)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    (tmp_path / "run.yaml").write_text(RUN.replace("sums.jsonl", str(tmp_path / "sums.jsonl")))

    def loaded(*changes: str) -> LoadedRun:
        return load(tmp_path / "run.yaml", [f"directory={tmp_path}", *changes])

    FUSE.clear()
    return loaded


def weights(run: Path) -> dict[str, torch.Tensor]:
    return dict(read_tensors(run / "model"))


def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def metrics(run: Path) -> list[dict[str, Any]]:
    """Everything reported that is not about time."""
    timed = ("time", "speed/")
    return [
        {name: value for name, value in line.items() if not name.startswith(timed)}
        for line in read_lines(run / "metrics.jsonl")
    ]


def test_the_same_seed_gives_the_same_run_and_another_seed_another(start: Any, tmp_path: Path) -> None:
    for name, seed in (("first", 0), ("second", 0), ("other", 1)):
        commands.train(start(f"name={name}", f"seed={seed}"), overwrite=False)
    assert equal(weights(tmp_path / "first"), weights(tmp_path / "second"))
    assert metrics(tmp_path / "first") == metrics(tmp_path / "second")
    assert not equal(weights(tmp_path / "first"), weights(tmp_path / "other"))
    assert len({line["loss/grad_norm"] for line in metrics(tmp_path / "first")[1:]}) == 5, "it really learns"


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize("changes", [["actor_infer.max_num_seqs=40"], ["actor_infer.progress_interval=2"]])
def test_how_requests_are_served_changes_nothing(changes: list[str], start: Any, tmp_path: Path) -> None:
    commands.train(start("name=first"), overwrite=False)
    commands.train(start("name=second", *changes), overwrite=False)
    assert equal(weights(tmp_path / "first"), weights(tmp_path / "second"))
    assert metrics(tmp_path / "first") == metrics(tmp_path / "second")


@pytest.mark.parametrize(("event", "kept"), [(press_ctrl_c, 3), (pull_the_plug, 2)], ids=["asked to leave", "killed"])
def test_a_run_resumed_from_its_middle_equals_the_unbroken_one(
    event: Callable[[], None], kept: int, start: Any, tmp_path: Path
) -> None:
    commands.train(start("name=whole"), overwrite=False)
    FUSE[:] = [event, *[nothing] * (3 + 2 * 9 + 3 + 4)]  # in step 3: after two validations of 3 and two steps of 9
    with contextlib.suppress(KeyboardInterrupt):
        commands.train(start("name=broken"), overwrite=False, embedded=Embedded())
    assert not FUSE, "the interruption really came"
    assert (tmp_path / "broken/checkpoints" / f"step-{kept}").is_dir() and not (tmp_path / "broken/model").exists()
    commands.resume(tmp_path / "broken", [])
    assert equal(weights(tmp_path / "whole"), weights(tmp_path / "broken"))
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "broken")


@pytest.mark.sweep
def test_a_resumed_run_remembers_critic_reference_and_coefficients(start: Any, tmp_path: Path) -> None:
    algorithm = (
        "algorithm={recipe: ppo, minibatches: 2, shaping: [{kind: normalised, mean: running, std: running}], "
        "kl: {estimator: k1, coefficient: 0.05, apply_to: reward, target: 0.01, horizon: 20}}"
    )
    commands.train(start("name=whole", algorithm), overwrite=False)
    FUSE[:] = [pull_the_plug, *[nothing] * (3 + 2 * 9 + 3 + 4)]
    with contextlib.suppress(KeyboardInterrupt):
        commands.train(start("name=broken", algorithm), overwrite=False, embedded=Embedded())
    assert not FUSE, "the interruption really came"
    commands.resume(tmp_path / "broken", [])
    assert equal(weights(tmp_path / "whole"), weights(tmp_path / "broken"))
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "broken")
    coefficients = [line["kl/coefficient"] for line in metrics(tmp_path / "whole") if "kl/coefficient" in line]
    assert len(set(coefficients)) > 2, "the coefficient really moves"


def test_five_steps_equal_the_reference_loop(start: Any, tmp_path: Path) -> None:
    loaded = start("name=run")
    commands.train(loaded, overwrite=False)
    assert equal(weights(tmp_path / "run"), asyncio.run(reference_weights(loaded, tmp_path / "plain")))


def test_the_example_in_60_lines_has_at_most_60_lines_of_code() -> None:
    lines = Path(rl_in_60_lines.__file__).read_text().splitlines()
    assert len([line for line in lines if line.strip() and not line.startswith(("from ", "import "))]) <= 60


async def reference_weights(loaded: LoadedRun, folder: Path) -> dict[str, torch.Tensor]:
    """Weights after the run as one plain loop."""
    actor = await rl_in_60_lines.train(loaded.run)
    await actor.trainers.at(0, Trainer.save, folder, resumable=False)
    return dict(read_tensors(folder))
