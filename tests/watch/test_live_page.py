"""What an open page costs: requests, drawings and answers, in a real browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roll.watch.changes import EVERY_S
from tests.watch.browsers import Visit, needs_browser, serve, start_browser
from tests.watch.written_runs import Attempt, WrittenRun, write_broken_run

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser"), needs_browser]

COMMENT = "<img src=x onerror='window.acted = 1'>\u202e\x1b[2J"
_JOIN = """async ([older, newer]) => {
  const { joinSeries } = await import("/assets/series.js");
  return joinSeries(older, newer);
}"""
_HIDE = """(state) => {
  Object.defineProperty(document, "visibilityState", { configurable: true, get: () => state });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
_GROW = """async () => {
  const { lineChart } = await import("/assets/chart.js");
  const { bandChart } = await import("/assets/bands.js");
  const figures = [lineChart({ title: "line" }), bandChart({ title: "bands" })];
  document.body.prepend(...figures.map(({ node }) => node));
  const show = async (count) => {
    const points = Array.from({ length: count }, (_, x) => ({ x, y: x % 7, low: 0, high: 8 }));
    const options = { domain: [0, 99] };
    figures[0].update(() => [[{ name: "a", tone: "tone0", points }], { ...options, range: [0, 9] }]);
    const series = [{ name: "b", tone: "tone1", values: points.map(({ y }) => y) }];
    figures[1].update(() => [points.map(({ x }) => x), series, options]);
    await new Promise((done) => setTimeout(done, 300));
    return figures.flatMap(({ node }) => [...node.querySelectorAll(".data path")]);
  };
  const before = await show(70);
  const drawn = new Set();
  const watch = new MutationObserver((records) => records.forEach(({ target }) => drawn.add(target)));
  for (const { node } of figures) watch.observe(node, { subtree: true, attributes: true, attributeFilter: ["d"] });
  const after = await show(75);
  return [before.length, after.length, before.map((path, index) => path === after[index] && !drawn.has(path))];
}"""
_COUNT_CHANGES = """() => {
  window.changes = 0;
  const count = (records) => (window.changes += records.length);
  const options = { subtree: true, childList: true, attributes: true, characterData: true };
  new MutationObserver(count).observe(document.body, options);
}"""


def _is_stream(message: Any) -> bool:
    return "/overview?" in message.url and "follow=1" in message.url


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with start_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The link to a finished run."""
    directory = tmp_path_factory.mktemp("runs") / "broken"
    write_broken_run(directory)
    with serve(directory) as link:
        yield link


def attempts(reward: float, comment: str = "") -> list[Attempt]:
    return [Attempt(domain="sums", prompt="1+1=", response="2", reward=reward, comment=comment)]


def test_a_hidden_page_asks_for_nothing_and_a_shown_one_at_once(browser: Any, broken: str) -> None:
    visit = Visit(browser, broken)
    page = visit.open("run/broken/overview")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.evaluate(_HIDE, "hidden")
    page.wait_for_timeout(3000)  # for requests that were on their way
    requests.clear()
    page.wait_for_timeout(4000)
    assert requests == []
    with page.expect_response(_is_stream):
        page.evaluate(_HIDE, "visible")
    with page.expect_event("requestfailed", _is_stream):
        page.evaluate(_HIDE, "hidden")
    visit.close()


def test_a_page_that_is_left_ends_its_stream(browser: Any, broken: str) -> None:
    visit = Visit(browser, broken)
    page = visit.page
    with page.expect_response(_is_stream):
        visit.wait("overview")
    with page.expect_event("requestfailed", _is_stream), page.expect_response(lambda each: "/state" in each.url):
        visit.open("run/broken/samples")
    visit.close()


def test_a_page_whose_server_has_ended_says_so(browser: Any, tmp_path: Path) -> None:
    write_broken_run(tmp_path / "ended")
    with serve(tmp_path / "ended") as link:
        visit = Visit(browser, link)
        with visit.page.expect_response(_is_stream):
            visit.wait("overview")
    visit.page.locator("#bar .status.lost", has_text="no connection").wait_for()
    visit.context.close()


def test_a_page_whose_run_does_not_change_changes_nothing(browser: Any, broken: str) -> None:
    visit = Visit(browser, broken)
    page = visit.open("run/broken/overview")
    page.wait_for_selector("path.line")
    page.locator('[data-state="ended"]').wait_for()
    page.evaluate(_COUNT_CHANGES)
    with page.expect_response(_is_stream):
        page.evaluate(_HIDE, "hidden")
        page.evaluate(_HIDE, "visible")
    page.wait_for_timeout(3000 * EVERY_S)  # three looks
    assert page.evaluate("window.changes") == 0
    visit.close()


def test_a_figure_out_of_view_is_not_drawn_until_it_is_scrolled_into_view(browser: Any, tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "live", num_steps=9)
    phases = {"time/step": 2.0, "time/wait": 1.0}
    run.train([attempts(1.0)], **phases)
    with serve(tmp_path / "live") as link:
        visit = Visit(browser, link, viewport={"width": 1280, "height": 400})
        page = visit.page
        visit.wait("overview")
        figures = page.locator("figure")
        reward, phase = figures.filter(has_text="Reward per step"), figures.filter(has_text="Seconds per step")
        reward.locator("path.line").wait_for(state="attached")
        assert phase.locator("path").count() == 0
        run.train([attempts(0.0)], **phases)
        page.locator(".figures div", has_text="Attempts").locator("dd", has_text="2").wait_for()
        assert phase.locator("path").count() == 0
        phase.scroll_into_view_if_needed()
        phase.locator("path").first.wait_for(state="attached")
        run.end()
        visit.close()


def test_of_a_curve_that_grows_only_the_last_piece_is_drawn_again(browser: Any, broken: str) -> None:
    visit = Visit(browser, broken)
    visit.page.wait_for_selector("path.line")
    before, after, kept = visit.page.evaluate(_GROW)
    assert before == after == 9, "three pieces each of a band, a line and an area"
    assert kept == [True, True, False] * 3
    visit.close()


def test_a_page_that_asks_for_what_is_new_shows_all(browser: Any, tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "live", num_steps=9)
    with serve(tmp_path / "live") as link:
        visit = Visit(browser, link)
        page, joined, cursor = visit.page, None, ""
        visit.wait("overview")
        address = f"{visit.base}/api/runs/live/overview?points=10"
        for step in range(1, 14):
            run.train([attempts(step / 14)], **({"validation/reward": 0.5} if step > 3 else {}))
            newer = page.request.get(f"{address}&cursor={cursor}").json()
            whole = page.request.get(address).json()
            joined, cursor = page.evaluate(_JOIN, [joined, newer["series"]]), newer["cursor"]
            assert joined == {**whole["series"], "from": 0}, step
            assert newer["series"]["from"] > 0 or step in (1, 10), "no points were kept"
        run.end()
        page.locator(".figures div", has_text="Attempts").locator("dd", has_text="13").wait_for()
        d = page.locator("figure", has_text="Reward per step").locator("path.line").get_attribute("d")
        assert d.count("L") == 12
        visit.close()


def test_the_histogram_of_rewards_follows_the_filters(browser: Any, broken: str) -> None:
    visit = Visit(browser, broken)
    page = visit.open("run/broken/samples")
    histogram = page.locator(".histogram")
    histogram.get_by_text("Rewards of 1,280").wait_for()
    page.get_by_label("Domain").select_option("units")
    histogram.get_by_text("Rewards of 640").wait_for()
    page.get_by_label("Step").fill("30:31")
    page.get_by_label("Step").press("Enter")
    histogram.get_by_text("Rewards of 32").wait_for()
    titles = [bar.get_attribute("title") for bar in histogram.locator("a").all()]
    assert titles[0].startswith("32 attempts with a reward of 0 ") and titles[-1].startswith("0 attempts")
    href = histogram.locator("a").first.get_attribute("href")
    assert "domain=units" in href and "step=30:31" in href and "reward=0:0.05" in href
    visit.close()


def test_the_comment_of_a_reward_is_a_column_of_text(browser: Any, tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run", num_steps=1)
    run.train([attempts(1.0, COMMENT)])
    run.end()
    with serve(tmp_path / "run") as link:
        visit = Visit(browser, link)
        page = visit.open("run/run/samples")
        page.get_by_role("columnheader", name="Comment").wait_for()
        cell = page.locator(".trow .cell", has_text="onerror")
        cell.wait_for()
        assert cell.inner_text() == "<img src=x onerror='window.acted = 1'>\u2039U+202E\u203a\u241b[2J"
        assert page.locator("main img").count() == 0 and page.evaluate("window.acted") is None
        visit.close()


def test_the_first_and_last_reward_are_said_to_be_means_over_steps(browser: Any, broken: str) -> None:
    visit = Visit(browser, broken)
    page = visit.open("run/broken/overview")
    page.get_by_text("means over the first and the last 10 steps with the domain").wait_for()
    answer = page.request.get(f"{visit.base}/api/runs/broken/overview").json()
    rewards = answer["series"]["series"]["domain/units/reward"]["mean"]
    units = next(domain for domain in answer["domains"] if domain["domain"] == "units")
    means = [sum(part) / 10 for part in (rewards[1:11], rewards[-10:])]
    assert [units["reward_first"], units["reward_last"]] == pytest.approx(means), json.dumps(units)
    visit.close()
