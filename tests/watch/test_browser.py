"""The pages of `roll watch` in a real browser, on runs that the real journal recorded."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roll.journal.events import WeightsPublished
from roll.journal.records import TrajectoryQuery
from roll.journal.store import Reader
from tests.watch.browsers import ROOT, Visit, needs_browser, serve, start_browser
from tests.watch.written_runs import BREAKS_AT, Attempt, WrittenRun, write_broken_run

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser"), needs_browser]

CONFIG = """
name: trained
steps: 6
model: {shape: {alphabet: "0123456789+=", hidden: 32, layers: 1, heads: 2, kv_heads: 1, mlp: 64, max_seq_len: 32}}
algorithm: grpo
tasks:
  - {name: short, data: {kind: arithmetic, digits: 1}, reward: exact}
  - {name: long, data: {kind: arithmetic, digits: 2}, reward: exact}
rollout: {groups_per_step: 4, group_size: 4, max_seq_len: 24, max_new_tokens: 4, max_staleness: 1}
actor_infer: {max_num_seqs: 32}
validation: {every: 3, tasks: [{name: held_out, data: {kind: arithmetic, split: held_out, count: 8}, reward: exact}]}
"""
HOSTILE = [
    "<script>window.acted = 1</script>",
    "<img src=x onerror='window.acted = 1'>",
    "<svg onload=window.acted=1><a href='javascript:window.acted=1'>x</a></svg>",
    "\x1b[2J\x1b]0;owned\x07",
    "\u202egnp.exe",
    "]]></style></title><script>acted=1</script>{{7*7}}${7*7}",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a real training, a broken run, and a run whose texts attack the page."""
    folder = tmp_path_factory.mktemp("work") / "runs"
    folder.mkdir()
    (folder.parent / "run.yaml").write_text(CONFIG, encoding="utf-8")
    command = [sys.executable, "-m", "roll", "train", "run.yaml"]
    training = subprocess.Popen(
        command, cwd=folder.parent, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    write_broken_run(folder / "broken")
    write_hostile_run(folder / "hostile")
    output, _ = training.communicate(timeout=600)
    assert training.returncode == 0, output.decode()
    return folder


@pytest.fixture(scope="module")
def link(folder: Path) -> Iterator[str]:
    with serve(folder) as link:
        yield link


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with start_browser() as browser:
        yield browser


@pytest.fixture
def visit(browser: Any, link: str) -> Iterator[Visit]:
    visit = Visit(browser, link)
    yield visit
    visit.close()


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def write_hostile_run(directory: Path) -> None:
    run = WrittenRun(directory, num_steps=1)
    run.train([[attack(text, sibling) for sibling in range(2)] for text in HOSTILE])
    run.end()


def attack(text: str, sibling: int) -> Attempt:
    reason = text if sibling == 1 else ""
    response = re.sub(r"[\x07{}$&]", "", text).replace("_", " ")
    return Attempt(
        domain=text[:40], prompt=response, response=response, reward=0.5, answer=text, comment=text, reason=reason
    )


def metrics_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def part(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match is not None, text
    return match[1]


def figure(page: Any, name: str) -> str:
    """The value next to a name among the numbers at the top of a page."""
    return page.locator(".figures div", has=page.get_by_text(name, exact=True)).locator("dd").inner_text()


def test_every_page_of_a_finished_run_shows_the_numbers_of_its_journal(visit: Visit, folder: Path) -> None:
    run = folder / "trained"
    reader = Reader(run / "journal.db")
    attempts = list(reader.trajectories(TrajectoryQuery(bodies=False)))
    publications = [entry.event for entry in reader.events(WeightsPublished)]
    reader.close()
    page = visit.open("run/trained/overview")
    assert figure(page, "Step").startswith("6") and figure(page, "Attempts") == f"{len(attempts)}"
    assert float(figure(page, "Reward, last step")) == pytest.approx(
        metrics_of(run)[-1]["reward/mean"], rel=1e-3, abs=1e-9
    )
    assert page.locator("svg.chart:visible").count() >= 6
    assert {"short", "long"} <= set(page.get_by_role("table", name="Domains").locator("tbody a").all_inner_texts())
    page = visit.open("run/trained/samples?step=2")
    trained = [each for each in attempts if each.step == 2]
    assert page.locator("#total").inner_text() == f"{len(trained)} attempts matching"
    page = visit.open("run/trained/versions")
    digests = page.get_by_role("table", name="Versions").locator("code[title]")
    assert digests.count() == len(publications)
    assert digests.first.get_attribute("title") == publications[-1].digest
    page = visit.open("run/trained/scheduler")
    assert page.get_by_role("table", name="Workers").locator("tbody tr").count() >= 2
    page = visit.open("run/trained/faults")
    assert figure(page, "Failed attempts") == str(sum(not each.status.valid for each in attempts))
    page = visit.open("run/trained/metrics?names=reward/mean")
    assert page.locator("figure h3").all_inner_texts() == ["reward/mean"]
    page = visit.open("run/trained/config?view=file")
    assert "groups_per_step: 4" in page.locator("pre.config").inner_text()
    page = visit.open("run/trained/config")
    page.wait_for_selector("pre.config")
    page = visit.open("compare?runs=trained,broken", "compare")
    page.get_by_role("table", name="Config keys that differ").get_by_text("steps", exact=True).wait_for()
    page = visit.open("runs", "runs")
    assert set(page.get_by_role("table", name="Runs").locator("tbody a").all_inner_texts()) == {
        "trained",
        "broken",
        "hostile",
    }


def test_the_page_of_a_sample_shows_what_the_journal_has_of_it(visit: Visit, folder: Path) -> None:
    reader = Reader(folder / "trained" / "journal.db")
    stored = next(each for each in reader.trajectories(TrajectoryQuery(step=3)) if each.sibling == 0)
    reader.close()
    assert stored.trajectory is not None and stored.reward is not None
    page = visit.open(f"run/trained/samples/{stored.id}", "sample")
    assert page.locator("h1").inner_text() == f"Attempt {stored.group}.0"
    assert float(figure(page, "Reward").split()[0]) == pytest.approx(stored.reward)
    assert figure(page, "Tokens") == str(stored.num_tokens)
    assert page.locator(".said.user pre").first.inner_text() == stored.trajectory.task.messages[0].content
    assert f"step {stored.step}" in page.locator(".lineage").inner_text().lower()
    page = visit.open(f"run/trained/samples/{stored.id}?view=tokens", "sample")
    page.wait_for_selector(".tokens")
    assert page.locator(".tokens .token:not(.observed)").count() == stored.num_tokens
    first = page.locator(".tokens .token:not(.observed)").first.get_attribute("title")
    logprob = float(stored.trajectory.turns[0].sampler_logprobs[0])
    assert float(part(r"logprob (\S+),", first)) == pytest.approx(logprob, rel=1e-3, abs=1e-6)
    for colour, known in (("advantage", "Advantage of each token"), ("mismatch", "only one update")):
        page = visit.open(f"run/trained/samples/{stored.id}?view=tokens&colour={colour}", "sample")
        assert known in page.locator(".top .small").inner_text()
    assert "advantage " in (page.locator(".tokens .token:not(.observed)").first.get_attribute("title") or "")
    page = visit.open(f"run/trained/samples/{stored.id}?view=siblings", "sample")
    page.wait_for_selector(".card.current")
    assert page.locator(".card").count() == 4


def test_a_newcomer_gets_from_the_overview_of_a_broken_run_to_an_example(visit: Visit) -> None:
    page = visit.open("run/broken/overview")
    finding = page.locator(".message.bad", has_text="fell suddenly")
    assert finding.count() == 1 and "units" in finding.inner_text() and f"at step {BREAKS_AT}" in finding.inner_text()
    finding.get_by_role("link", name=f"samples of step {BREAKS_AT}").click()
    visit.wait("samples")
    assert page.url.endswith(f"#/run/broken/samples?domain=units&step={BREAKS_AT}")
    page.locator("#total", has_text="16 attempts matching").wait_for()
    page.locator(".trow").first.click()
    visit.wait("sample")
    assert figure(page, "Reward").startswith("0")
    assert "compared '" in page.locator("aside").inner_text()


def test_a_point_of_a_curve_opens_the_samples_of_its_step_and_domain(visit: Visit) -> None:
    page = visit.open("run/broken/overview")
    chart = page.get_by_role("img", name=re.compile("^Reward per step"))
    chart.focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    assert page.locator(".readout strong").first.inner_text().startswith("step 39")
    page.keyboard.press("Enter")
    visit.wait("samples")
    assert re.search(r"samples\?domain=(sums|units)&step=39$", page.url)


def test_the_page_follows_a_journal_that_is_being_written(browser: Any, tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "live", num_steps=3)
    right = Attempt(domain="sums", prompt="1+1=", response="2", reward=1.0)
    run.train([[right, right]])
    with serve(tmp_path / "live") as link:
        visit = Visit(browser, link)
        page = visit.page
        visit.wait("overview")
        assert figure(page, "Attempts") == "2"
        page.evaluate("window.unchanged = true")
        run.train([[right, right, right]])
        page.locator(".figures div", has_text="Attempts").locator("dd", has_text=re.compile("^5$")).wait_for()
        visit.page.evaluate("location.hash = '#/run/live/samples'")
        visit.wait("samples")
        assert page.locator("#total").inner_text() == "5 attempts"
        run.train([[right]])
        page.locator("#total", has_text="6 attempts").wait_for()
        run.end()
        page.locator('[data-state="ended"]').wait_for()
        assert page.evaluate("window.unchanged"), "the page was loaded again"
        visit.close()


@pytest.mark.parametrize("dark", [False, True])
def test_hostile_texts_do_nothing(browser: Any, link: str, dark: bool) -> None:
    visit = Visit(browser, link, color_scheme="dark" if dark else "light")
    addresses = ["overview", "samples", "faults", "scheduler", "metrics", "versions"]
    for address in addresses:
        assert_harmless(visit.open(f"run/hostile/{address}"))
    page = visit.open("run/hostile/samples?sort=id")
    ids = [part(r"samples/(\d+)", row.get_attribute("href")) for row in page.locator(".trow").all()]
    assert len(ids) == 2 * len(HOSTILE)
    for view in ("conversation", "tokens", "siblings"):
        for id in ids[:: 1 if view == "conversation" else 4]:
            assert_harmless(visit.open(f"run/hostile/samples/{id}?view={view}", "sample"))
    page = visit.open(f"run/hostile/samples/{ids[0]}", "sample")
    assert HOSTILE[0] in page.locator("aside").inner_text(), "the text is shown as it is"
    page = visit.open(f"run/hostile/samples/{ids[6]}", "sample")
    assert "␛[2J" in page.locator("aside").inner_text() and "\x1b" not in page.content()
    visit.close()


def assert_harmless(page: Any) -> None:
    assert page.evaluate("window.acted") is None
    assert page.locator("main script, main img, main [onload], main [onerror], main a[href^=javascript]").count() == 0


def test_the_keys_lead_to_pages_rows_and_fields(visit: Visit) -> None:
    page = visit.open("run/broken/overview")
    for key, name in (
        ("s", "samples"),
        ("d", "scheduler"),
        ("v", "versions"),
        ("f", "faults"),
        ("k", "config"),
        ("s", "samples"),
    ):
        page.keyboard.press("g")
        page.keyboard.press(key)
        visit.wait(name)
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("j")
    href = page.locator(".trow.selected").get_attribute("href")
    assert page.locator(".trow.selected").get_attribute("aria-rowindex") == "2"
    page.keyboard.press("Enter")
    visit.wait("sample")
    assert page.url.endswith(href)
    page.keyboard.press("Escape")
    visit.wait("samples")
    page.keyboard.press("/")
    page.keyboard.type("1+4")
    page.wait_for_function("() => /text=1%2B4/.test(location.hash)")
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    assert page.locator("dialog").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("dialog").is_visible()


def test_a_link_restores_the_state_of_a_page(visit: Visit, browser: Any, link: str) -> None:
    page = visit.open("run/broken/samples")
    page.get_by_label("Domain").select_option("units")
    page.get_by_label("Reward", exact=True).fill("0.5:1")
    page.get_by_label("Step").fill("20:22")
    page.locator("#total", has_text="matching").wait_for()
    page.wait_for_function("() => /step=20:22/.test(location.hash)")
    page.get_by_role("button", name="Tokens").click()
    page.locator('[aria-sort="descending"]', has_text="Tokens").wait_for()  # with all filters
    total, address = page.locator("#total").inner_text(), page.url.partition("#/")[2]
    other = Visit(browser, link)
    page = other.open(address)
    assert page.locator("#total").inner_text() == total != "0 attempts matching"
    assert page.get_by_label("Domain").input_value() == "units" and page.get_by_label("Step").input_value() == "20:22"
    assert page.locator('[aria-sort="descending"]').inner_text().startswith("Tokens")
    other.close()


def test_dark_and_light_follow_the_system_until_the_reader_chooses(browser: Any, link: str) -> None:
    visit = Visit(browser, link, color_scheme="dark")
    page = visit.open("run/broken/overview")

    def ground() -> str:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    dark = ground()
    page.emulate_media(color_scheme="light")
    light = ground()
    assert dark != light
    page.keyboard.press("t")
    assert ground() == dark
    page.reload()
    visit.wait("overview")
    assert ground() == dark, "the choice outlasts a reload"
    visit.close()


def test_what_does_not_exist_is_one_sentence_that_says_what_to_do(browser: Any, link: str) -> None:
    visit = Visit(browser, link)
    page = visit.page
    for address in ("run/nowhere/overview", "run/broken/samples/999999", "run/broken/nothing"):
        page.goto(f"{visit.base}/#/{address}")
        page.locator("main .message").wait_for()
        assert page.locator("main .message").inner_text().count(";") >= 1
    page.goto(f"{visit.base}/#/run/broken/samples?step=9999")
    page.locator(".table .empty", has_text="remove a filter").wait_for()
    visit.context.close()  # refused requests are what this test is about


def test_without_javascript_the_page_points_to_plain_tables(browser: Any, link: str) -> None:
    visit = Visit(browser, link, java_script_enabled=False)
    visit.page.get_by_role("link", name="plain table").click()
    visit.page.locator("table").first.wait_for()
    assert "broken" in visit.page.content()
    visit.close()
