"""The monitor of all detectors, and the catalogue of notices."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from roll.config.knobs import knobs
from roll.config.notices import NoticeKind
from roll.tracking.glossary import describe
from roll.tracking.notices.catalogue import CATALOGUE
from roll.tracking.notices.monitor import Notice, NoticeMonitor, build_detectors

RECORDED = Path(__file__).with_name("recorded.json")
RESULTS = Path(__file__).parents[3] / "docs" / "results"


def watch(steps: Iterable[Mapping[str, Any]], *silenced: NoticeKind) -> list[Notice]:
    monitor = NoticeMonitor(build_detectors(uncorrected=False, silenced=silenced))
    return [notice for line in steps for notice in monitor.observe(line["step"], line)]


def collapse(value: float | None = 0.0) -> list[dict[str, Any]]:
    return [{"step": step, "reward/mean": 0.4 if step <= 10 else value} for step in range(1, 31)]


def test_every_kind_has_a_detector_and_an_entry_in_the_catalogue() -> None:
    kinds = set(get_args(NoticeKind))
    assert {detector.kind for detector in build_detectors(uncorrected=True)} == set(CATALOGUE) == kinds


def test_the_catalogue_names_metrics_and_keys_that_exist() -> None:
    known = {knob.key for knob in knobs()}
    for entry in CATALOGUE.values():
        assert all(describe(name.format(domain="math")) for name in entry.metrics)
        assert not [
            key for key in entry.keys if key not in known and not any(each.startswith(f"{key}.") for each in known)
        ]


def test_a_silenced_kind_is_not_reported() -> None:
    assert [notice.kind for notice in watch(collapse())] == ["reward_collapse"]
    assert watch(collapse(), "reward_collapse") == []


def test_steps_without_a_metric_and_values_that_are_not_finite_are_left_out() -> None:
    assert watch(collapse(None)) == watch(collapse(float("nan"))) == []
    assert watch([{"step": 0, "time": 5.0, "validation/reward": 0.5}]) == []


def test_a_problem_that_goes_on_is_reported_once_and_the_same_after_a_restart() -> None:
    """What a resumed run observes again gives the same state: floats survive the file."""
    steps = collapse()
    monitor = NoticeMonitor(build_detectors(uncorrected=False))
    before = [notice for line in steps[:20] for notice in monitor.observe(line["step"], line)]
    resumed = NoticeMonitor(build_detectors(uncorrected=False))
    again = [n for line in json.loads(json.dumps(steps[:20])) for n in resumed.observe(line["step"], line)]
    assert before == again and len(before) == 1
    assert not [notice for line in steps[20:] for notice in resumed.observe(line["step"], line)]


def recorded(name: str) -> list[dict[str, float]]:
    """The curves of a real run on a GPU; its validations had 250 tasks or more."""
    run = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    steps: list[dict[str, float]] = [{"step": step} for step in range(len(run["rewards"]) + 1)]
    for line, reward, length in zip(steps[1:], run["rewards"], run["lengths"], strict=True):
        line |= {"reward/mean": reward, "length/mean": length, "sampler_mismatch/mean": run["largest_mismatch"]}
    for step, accuracy in run["validation"].items():
        deviation = (accuracy * (1 - accuracy)) ** 0.5
        steps[int(step)] |= {"validation/reward": accuracy, "validation/std": deviation, "validation/tasks": 250}
    return steps


CURVES = sorted(path.stem for path in RESULTS.glob("*.json") if '"rewards"' in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", [name for name in CURVES if "control" not in name])
def test_real_runs_that_learn_have_no_notices(name: str) -> None:
    assert watch(recorded(name)) == []


def test_real_runs_that_became_worse_have_notices() -> None:
    """Their advantages were shuffled, so that they learned nothing and lost what the model could do."""
    found = {name: [(each.step, each.kind) for each in watch(recorded(name))] for name in CURVES if "control" in name}
    assert found == {
        "frozen_lake_control": [(7, "length_growth"), (12, "validation_fall")],
        "mbpp_control": [(18, "reward_collapse"), (18, "validation_fall")],
    }


@pytest.mark.parametrize(
    ("run", "notice"), [("stale", (95, "sampler_mismatch")), ("hot", (32, "entropy_collapse"))], ids=["stale", "hot"]
)
def test_real_runs_on_a_cpu_that_went_wrong_have_their_notice(run: str, notice: tuple[int, str]) -> None:
    """Recorded: `stale` trained on tokens one step old at a rate of 2e-3, `hot` on sums of digits at one of 0.03."""
    columns: dict[str, list[float | None]] = json.loads(RECORDED.read_text(encoding="utf-8"))[run]
    length = len(columns["reward/mean"])
    steps = [{"step": step + 1} | {name: values[step] for name, values in columns.items()} for step in range(length)]
    assert [(each.step, each.kind) for each in watch(steps)] == [notice]
