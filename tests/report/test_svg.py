"""A trace as a picture: every span and phase is drawn at its time and in its colour."""

import re
from xml.etree import ElementTree

from roll.report.svg import draw

SVG = "{http://www.w3.org/2000/svg}"
NAMED = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "ts": 0, "args": {"name": "generator-0 <&>"}}


def span(name: str, began: int, took: int) -> dict[str, object]:
    return {"ph": "X", "name": name, "pid": 1, "tid": 1, "ts": began, "dur": took}


def mark(kind: str, name: str, attempt: int, when: int) -> dict[str, object]:
    return {"ph": kind, "name": name, "pid": 2, "tid": 0, "id": attempt, "ts": when}


def test_spans_and_phases_are_drawn_at_their_times() -> None:
    events = [
        NAMED,
        span("generate", 0, 500_000),
        span("idle: slots", 500_000, 500_000),
        mark("b", "environment", 7, 250_000),
        mark("e", "environment", 7, 750_000),
    ]
    picture = ElementTree.fromstring(draw(events))
    bars = {
        bar[0].text.split(",")[0]: (float(bar.get("x", 0)), float(bar.get("width", 0)), bar.get("fill"))
        for bar in picture.iter("{http://www.w3.org/2000/svg}rect")
        if len(bar) and bar[0].text
    }
    begin, width, _ = bars["generate"]
    assert bars["idle: slots"][0] == begin + width and bars["idle: slots"][1] == width
    assert bars["environment"][:2] == (begin + width / 2, width)
    assert len({colour for _, _, colour in bars.values()}) == 3
    words = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert "generator-0 <&>" in words and "1 attempts" in words and "1 s" in words


def test_of_many_attempts_an_even_selection_is_drawn() -> None:
    events = [mark(kind, "ready", number, 10 * number + (kind == "e")) for number in range(1000) for kind in "be"]
    found = re.findall(r"<title>ready", draw(events))
    assert 50 <= len(found) <= 64


def test_the_whole_legend_is_inside_the_picture_and_above_the_tracks() -> None:
    names = ["generate", "environment", "score", "ready", "trained", "update", "publish", "checkpoint", "idle: x"]
    names += ["queued", "the controller"]
    events = [NAMED, *(span(name, 1000 * index, 1000) for index, name in enumerate(names))]
    picture = ElementTree.fromstring(draw(events))
    left, top, width, height = map(float, picture.get("viewBox", "").split())
    tracks = [bar for bar in picture.iter(f"{SVG}rect") if len(bar)]
    words = [
        (text.text or "", float(text.get("x", "nan")), float(text.get("y", "nan")))
        for text in picture.iter(f"{SVG}text")
    ]
    legend = [word for word in words if word[2] < min(float(bar.get("y", "nan")) for bar in tracks)]
    assert len(legend) == len(names) and {"queued", "training on it", "waiting"} <= {word for word, _, _ in legend}
    assert len({(x, y) for _, x, y in legend}) == len(names)
    for word, x, y in words:  # seven pixels per letter at this size
        assert left <= x and x + 7 * len(word) <= left + width and top < y < top + height, word


def test_an_empty_trace_is_still_a_picture() -> None:
    assert ElementTree.fromstring(draw([])) is not None
