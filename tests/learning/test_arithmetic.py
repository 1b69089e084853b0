"""The demo does what it says: it learns from its rewards, and from nothing else."""

import contextlib
import json
from contextlib import closing
from pathlib import Path

import pytest

from roll.cli import main
from roll.journal.events import ProblemNoticed
from roll.journal.store import Reader

pytestmark = [pytest.mark.xdist_group("arithmetic"), pytest.mark.learns]
EXAMPLE = str(Path(__file__).parents[2] / "examples" / "arithmetic.yaml")


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where the example's warm start was made."""
    folder = tmp_path_factory.mktemp("arithmetic")
    roll(folder, "sft", EXAMPLE)
    return folder


def roll(folder: Path, *arguments: str) -> None:
    with contextlib.chdir(folder), pytest.raises(SystemExit) as ended:
        main(arguments)
    assert not ended.value.code


def accuracies(folder: Path, name: str, *overrides: str) -> tuple[float, float]:
    """Held-out, before the first step and after the last of a run from the warm model."""
    roll(folder, "train", EXAMPLE, "model={path: runs/arithmetic-sft/model}", f"name={name}", *overrides)
    return first_and_last(folder, name)


def first_and_last(folder: Path, name: str) -> tuple[float, float]:
    lines = [json.loads(line) for line in (folder / "runs" / name / "metrics.jsonl").read_text().splitlines()]
    found = [line["validation/accuracy"] for line in lines if "validation/accuracy" in line]
    return found[0], found[-1]


@pytest.fixture(scope="module")
def learned(warm: Path) -> tuple[float, float]:
    """Accuracies of a fifth of the demo's steps."""
    return accuracies(warm, "learned", "validation.every=0", "steps=25")


def test_reinforcement_lifts_held_out_accuracy(learned: tuple[float, float]) -> None:
    """`roll bench learning` has all steps, and 0.9 for three seeds."""
    before, after = learned
    assert 0.3 <= before <= 0.6
    assert after - before >= 0.2


def test_learning_to_add_is_not_reported_as_reward_hacking(warm: Path, learned: tuple[float, float]) -> None:
    """Right answers become identical within a group, and equal sums have equal answers."""
    lines = [json.loads(line) for line in (warm / "runs" / "learned" / "metrics.jsonl").read_text().splitlines()]
    assert [line["hacks/notices"] for line in lines if line["step"] > 0] == [0.0] * 25


def noticed(folder: Path, name: str) -> set[str]:
    """Kinds of the problems that the metrics of a run showed."""
    with closing(Reader(folder / "runs" / name / "journal.db")) as journal:
        return {entry.event.kind for entry in journal.events(ProblemNoticed)}


def test_a_run_that_learns_to_add_has_no_notices(warm: Path, learned: tuple[float, float]) -> None:
    assert noticed(warm, "learned") == set()


def test_a_learning_rate_that_is_far_too_high_is_noticed(warm: Path) -> None:
    """The first updates destroy what the warm start has learned."""
    settings = ("actor_train.optimizer={lr: 3e-2}", "rollout.groups_per_step=64", "validation.every=0", "steps=8")
    before, after = accuracies(warm, "destroyed", *settings)
    assert before >= 0.3 and after < 0.1
    assert noticed(warm, "destroyed") >= {"reward_collapse", "validation_fall"}


@pytest.mark.sweep
def test_with_more_steps_it_learns_more(warm: Path, learned: tuple[float, float]) -> None:
    roll(warm, "resume", "runs/learned", "steps=45")
    before, after = first_and_last(warm, "learned")
    assert before == learned[0] and after - before >= 0.3
    assert noticed(warm, "learned") == set()


@pytest.mark.sweep
def test_rewards_that_say_nothing_teach_nothing(warm: Path) -> None:
    before, after = accuracies(
        warm, "control", "algorithm.advantage='benchmarks.control:shuffled'", "validation.every=0", "steps=20"
    )
    assert after - before < 0.05
