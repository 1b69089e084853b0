import json
import math
from pathlib import Path

import numpy as np
import pytest

from roll.errors import ConfigError
from roll.tracking.sinks import JsonLines
from roll.watch.metrics import MetricColumns, SeriesQuery, other_time


def unknown(name: str, read: object) -> None:
    return None


def test_new_lines_are_read_once_and_a_line_in_progress_only_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics = MetricColumns(path)
    assert not metrics.update() and metrics.last_step() is None
    path.write_text('{"step": 1, "time": 5.0, "reward/mean": 0.5}\n{"step": 2, "ti')
    assert metrics.update() and len(metrics) == 1
    assert not metrics.update()
    with path.open("a") as file:
        file.write('me": 6.0, "reward/mean": 0.75, "new": 1.0}\nnot json\n')
    assert metrics.update() and metrics.last() == {"reward/mean": (2, 0.75), "new": (2, 1.0)}
    np.testing.assert_array_equal(metrics.column("new"), [np.nan, 1.0])


def test_steps_that_a_resume_removes_disappear(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines, metrics = JsonLines(path), MetricColumns(path)
    for step in range(5):
        lines.write(step, {"reward/mean": float(step)})
    metrics.update()
    assert metrics.last_step() == 4
    lines.truncate_after(2)
    lines.write(3, {"reward/mean": 30.0})
    assert metrics.update() and metrics.last()["reward/mean"] == (3, 30.0) and len(metrics) == 4
    lines.close()


def test_a_long_run_is_shown_as_means_and_extremes_of_buckets(tmp_path: Path) -> None:
    lines, metrics = JsonLines(tmp_path / "m.jsonl"), MetricColumns(tmp_path / "m.jsonl")
    for step in range(1, 24):
        values = {"reward/mean": float(step), "tokens/generated": 10.0}
        lines.write(step, {**values, "validation/reward": 1.0} if step == 5 else values)
    metrics.update()
    series = metrics.series(SeriesQuery(names=("reward/mean", "validation/*"), points=10), unknown)
    assert series["bucket"] == 3 and series["step"] == [3, 6, 9, 12, 15, 18, 21, 23]
    assert series["tokens"] == [30, 60, 90, 120, 150, 180, 210, 230]
    reward = series["series"]["reward/mean"]
    assert reward["mean"][:2] == [2.0, 5.0] and reward["mean"][-1] == 22.5
    assert (reward["low"][-1], reward["high"][-1], reward["error"]) == (22.0, 23.0, None)
    assert series["series"]["validation/reward"]["mean"] == [None, 1.0, *[None] * 6]
    some = metrics.series(SeriesQuery(names=("reward/mean",), first=4, last=6), unknown)
    assert some["step"] == [4, 5, 6] and some["series"]["reward/mean"]["low"] is None
    lines.close()


def test_the_standard_error_of_a_bucket_is_that_of_the_mean_of_its_steps(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text("".join(json.dumps({"step": n, "a": 1.0}) + "\n" for n in range(20)))
    metrics = MetricColumns(tmp_path / "m.jsonl")
    metrics.update()
    series = metrics.series(SeriesQuery(names=("a",), points=10), lambda *_: np.full(20, 0.2))
    assert series["series"]["a"]["error"] == pytest.approx([0.2 / math.sqrt(2)] * 10)


def test_numbers_that_are_not_finite_are_null_and_the_rest_of_a_step_is_its_own_band() -> None:
    columns = {
        "time/step": np.array([5.0, 3.0]),
        "time/wait": np.array([1.0, np.nan]),
        "time/update": np.array([2.0, 1.0]),
    }
    np.testing.assert_array_equal(other_time(columns), [2.0, 2.0])


@pytest.mark.parametrize("points", [9, 5001])
def test_a_number_of_points_that_a_page_cannot_show_is_refused(points: int) -> None:
    with pytest.raises(ConfigError, match="points: expected 10 to 5000"):
        SeriesQuery(names=("a",), points=points)
