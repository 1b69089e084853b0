import json
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from roll.errors import ConfigError
from roll.tracking.curve import Series, curve_from, curve_svg, smooth, ticks

SVG = "{http://www.w3.org/2000/svg}"


def test_ticks_are_round_and_cover_the_range():
    assert ticks(0.0, 1.0, about=5) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert ticks(0.0, 1.02, about=5) == [0.0, 0.5, 1.0, 1.5]
    assert ticks(-3.0, 37.0, about=4) == [-10.0, 0.0, 10.0, 20.0, 30.0, 40.0]


def test_ticks_of_steps_are_whole_and_a_single_value_has_room():
    assert ticks(0, 2, whole=True) == [0.0, 1.0, 2.0]
    around = ticks(0.5, 0.5)
    assert around[0] <= 0.5 <= around[-1] and len(around) >= 2


def test_a_smoothed_line_takes_as_many_neighbours_from_either_side():
    assert smooth([(0, 0.0), (1, 3.0), (2, 6.0), (3, 0.0)]) == [(0, 0.0), (1, 3.0), (2, 3.0), (3, 0.0)]
    assert smooth([]) == []


def test_points_are_drawn_at_their_axis_positions():
    svg = ElementTree.fromstring(
        curve_svg([Series(name="a", points=[(0, 0.0), (10, 1.0)], sparse=True)], title="t", x_label="x", y_label="y")
    )
    line = svg.find(f"{SVG}polyline")
    assert line is not None
    labels = {
        (text.text, text.get("text-anchor")): (float(text.get("x", "nan")), float(text.get("y", "nan")))
        for text in svg.iter(f"{SVG}text")
        if text.get("x")
    }
    first, last = [tuple(map(float, point.split(","))) for point in line.get("points", "").split()]
    assert first[0] == labels["0", "middle"][0] and last[0] == labels["10", "middle"][0]
    assert first[1] == labels["0", "end"][1] - 4 and last[1] == labels["1", "end"][1] - 4


def test_titles_are_escaped_and_numbers_that_are_not_finite_are_left_out():
    text = curve_svg(
        [Series(name="a<b", points=[(0, 0.5), (1, math.nan), (2, 0.7)])], title='"&"', x_label="x", y_label="y"
    )
    ElementTree.fromstring(text)
    assert "nan" not in text and "a&lt;b" in text


def test_a_long_legend_takes_several_lines_within_the_picture():
    series = [Series(name=f"runs/experiment-{number}", points=[(0, 0.0), (1, 1.0)]) for number in range(9)]
    svg = ElementTree.fromstring(curve_svg(series, title="t", x_label="x", y_label="y"))
    names = [text for text in svg.iter(f"{SVG}text") if (text.text or "").startswith("runs/")]
    assert len(names) == 9 and len({text.get("y") for text in names}) == 3
    assert all(float(text.get("x", "nan")) + 7.2 * len(text.text or "") < 860 for text in names)
    highest = min(
        float(point.split(",")[1]) for line in svg.iter(f"{SVG}polyline") for point in line.get("points", "").split()
    )
    assert all(float(text.get("y", "nan")) < highest for text in names)


def test_a_picture_without_points_is_still_a_picture():
    ElementTree.fromstring(curve_svg([], title="t", x_label="x", y_label="y"))


def test_the_curve_of_a_run_has_its_reward_and_its_validations(tmp_path: Path):
    lines = [{"step": 0, "validation/accuracy": 0.4}]
    lines += [{"step": step, "reward/mean": step / 10} for step in range(1, 9)]
    lines += [{"step": 9, "reward/mean": None, "validation/accuracy": 0.9}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = curve_from(tmp_path / "metrics.jsonl")
    assert f'<text x="72" y="38" font-size="19" font-weight="600" fill="#0f172a">{tmp_path.name[:50]}: l' in text
    svg = ElementTree.fromstring(text)
    assert "training reward" in text and "held-out accuracy" in text
    assert len(list(svg.iter(f"{SVG}circle"))) == 2 + 1  # two validations and the legend
    assert len((next(svg.iter(f"{SVG}polyline")).get("points") or "").split()) == 8


def test_a_run_without_a_step_is_refused(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "time": 1.0}\n')
    with pytest.raises(ConfigError, match="no step with a reward"):
        curve_from(tmp_path / "metrics.jsonl")
