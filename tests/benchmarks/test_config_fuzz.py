"""Some mutations of the benchmark, and that its checks see faults."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from benchmarks import config_fuzz
from benchmarks.config_fuzz import EXAMPLES, judge, mutated


def test_mutations_depend_on_the_seed_alone_and_change_the_example() -> None:
    texts = [mutated(seed) for seed in range(100)]
    assert texts == [mutated(seed) for seed in range(100)]
    trees = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in EXAMPLES]

    def is_changed(text: str) -> bool:
        try:
            return yaml.safe_load(text) not in trees
        except yaml.YAMLError:
            return True

    assert sum(map(is_changed, texts)) > 80


@pytest.mark.slow
def test_check_has_no_fault_on_the_first_mutations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    monkeypatch.setattr(config_fuzz, "LIMIT_S", 60.0)  # only the benchmark measures time
    path, accepted = tmp_path / "run.yaml", 0
    for seed in range(60):
        path.write_text(mutated(seed), encoding="utf-8")
        verdict = judge(path, with_training=False)
        assert not verdict.fault, f"seed {seed}: {verdict.fault}"
        accepted += verdict.accepted
    assert 0 < accepted < 60


def raise_error(arguments: Sequence[str]) -> None:
    raise ValueError("a bug")


def exit_with_three(arguments: Sequence[str]) -> None:
    raise SystemExit(3)


def compute_long(arguments: Sequence[str]) -> None:
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass


@pytest.mark.parametrize(
    ("bug", "fault"),
    [(raise_error, "ValueError: a bug"), (exit_with_three, "exit code 3"), (compute_long, "s of CPU")],
)
def test_planted_bugs_are_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: object, fault: str) -> None:
    monkeypatch.setattr("roll.cli.main", bug)
    monkeypatch.setattr(config_fuzz, "LIMIT_S", 0.1)
    assert fault in judge(tmp_path / "run.yaml", with_training=False).fault
