"""The runs over several domains: every domain is trained and measured, and what is known to be right scores as such."""

import asyncio
import contextlib
import json
import os
from collections import Counter
from pathlib import Path

import pytest

from roll.cli import main
from roll.config.load import load
from roll.journal.records import StoredTrajectory, TrajectoryQuery
from roll.journal.store import Reader
from roll.rewards.base import RewardAdapter
from roll.sandbox.level import TRUSTED_CODE, unavailable_reason
from roll.types import Spec, Task
from roll.wiring.data import build_sources

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
DOMAINS = ["math", "code", "reasoning", "ifeval", "qa"]
RIGHT = {"math": "worked", "code": "reference", "reasoning": "answer", "ifeval": "example", "qa": "aliases"}
"""The field of a row that holds a right reply, or several."""
SANDBOX = f'vars.sandbox="{TRUSTED_CODE}"' if unavailable_reason() else "vars.sandbox=auto"
"""The level that there is."""
SMALL = ["threads=1", "steps=2", "rollout.group_size=2", *(f"validation.tasks.{place}.limit=1" for place in range(5))]
ROLL_DATA = os.environ.get("ROLL_DATA", "")


def roll(folder: Path, *arguments: str) -> None:
    with contextlib.chdir(folder), pytest.raises(SystemExit) as ended:
        main(arguments)
    assert not ended.value.code


def metrics_of(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def samples_of(run: Path) -> list[StoredTrajectory]:
    with contextlib.closing(Reader(run / "journal.db")) as reader:
        return list(reader.trajectories(TrajectoryQuery(last=None)))


def scored(reward: Spec, task: Task, replies: list[str]) -> list[float]:
    async def ask() -> list[float]:
        made = RewardAdapter.load(reward)
        assert await made.start() is None
        outcomes = [await made.score(task, reply) for reply in replies]
        await made.stop()
        assert all(outcome.score is not None for outcome in outcomes), outcomes
        return [outcome.score.value for outcome in outcomes if outcome.score is not None]

    return asyncio.run(ask())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps from random weights."""
    folder = tmp_path_factory.mktemp("rlvr")
    roll(folder, "train", str(ROOT / "examples/rlvr.yaml"), f"vars.data={ROOT}/examples/data", SANDBOX, *SMALL)
    return folder / "runs" / "rlvr"


@pytest.mark.sweep
def test_every_step_trains_every_domain_by_its_share(trained: Path) -> None:
    shares = {"math": 3, "code": 2, "reasoning": 2, "ifeval": 2, "qa": 1}
    for step in (1, 2):
        groups = Counter(sample.domain for sample in samples_of(trained) if sample.step == step)
        assert groups == {name: 2 * share for name, share in shares.items()}  # two attempts a group
    _, first, second = metrics_of(trained)
    for metrics in (first, second):
        assert {f"domain/{name}/reward" for name in DOMAINS} <= metrics.keys()
        assert {"reward/format", "reward/length", "reward/passed", "reward/f1"} <= metrics.keys()


def test_every_domain_is_validated_with_several_attempts(trained: Path) -> None:
    start, *_, end = metrics_of(trained)
    for metrics in (start, end):
        for name in DOMAINS:
            wanted = {f"validation/{name}/{what}" for what in ("reward", "accuracy", "pass@2", "pass@4", "majority")}
            assert wanted <= metrics.keys()


@pytest.mark.sweep
def test_no_sample_fails(trained: Path) -> None:
    samples = samples_of(trained)
    assert len(samples) >= 40 and {sample.status for sample in samples} <= {"finished", "truncated"}
    for metrics in metrics_of(trained):
        assert not any(metrics.get(name) for name in metrics if "failed" in name)


@pytest.mark.sweep(keep=5)
@pytest.mark.parametrize("name", DOMAINS)
@pytest.mark.parametrize("held_out", [True, False])
def test_what_a_row_calls_right_scores_1_and_something_else_does_not(name: str, held_out: bool) -> None:
    run = load(ROOT / "examples/rlvr.yaml", [f"vars.data={ROOT}/examples/data", SANDBOX]).run
    config = next(each for each in (run.validation.tasks if held_out else run.tasks) if each.name == name)
    (source,) = build_sources([config])
    file = ROOT / "examples" / "data" / (f"{name}_held_out.jsonl" if held_out else f"{name}.jsonl")
    rows = {row["id"]: row for row in map(json.loads, file.read_text().splitlines())}
    assert len(source.tasks) == len(rows) == (4 if held_out else 12)
    for task in source.tasks:
        right = rows[task.id][RIGHT[name]]
        several = right if isinstance(right, list) else [right]
        assert source.reward is not None
        *good, bad = scored(source.reward, task, [*several, ""])
        assert min(good) >= 1.0 > bad, task


def test_no_task_is_both_trained_on_and_held_out() -> None:
    run = load(ROOT / "examples/rlvr.yaml", [f"vars.data={ROOT}/examples/data"]).run
    trained, held_out = (
        {task.messages for source in build_sources(configs) for task in source.tasks}
        for configs in (run.tasks, run.validation.tasks)
    )
    assert len(trained) == 60 and len(held_out) == 20 and trained.isdisjoint(held_out)


def test_the_warm_start_learns_the_replies_of_all_domains(tmp_path: Path) -> None:
    overrides = [f"vars.data={ROOT}/examples/data", SANDBOX, *SMALL, "sft.steps=2", "model.shape.hidden=32"]
    roll(tmp_path, "sft", str(ROOT / "examples/rlvr.yaml"), *overrides)
    assert (tmp_path / "runs/rlvr-sft/model/config.json").is_file()


@pytest.mark.sweep
@pytest.mark.skipif(not ROLL_DATA, reason="the larger sets are in the folder that ROLL_DATA names")
def test_the_run_over_real_tasks_passes_the_check_and_trains_a_step(tmp_path: Path) -> None:
    arguments = [str(ROOT / "examples/rlvr_full.yaml"), f"vars.data={Path(ROLL_DATA).resolve()}", SANDBOX, *SMALL]
    roll(tmp_path, "check", *arguments)
    roll(tmp_path, "train", *arguments, "steps=1", "rollout.max_new_tokens=16")
    *_, last = metrics_of(tmp_path / "runs" / "rlvr_full")
    assert {f"domain/{name}/reward" for name in DOMAINS} <= last.keys()
