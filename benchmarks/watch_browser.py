"""What a reader of `roll watch` waits for, measured in a real browser: the first view, a filter, and an event."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Self
from urllib.parse import quote

from roll.errors import ConfigError

FILTERS = (("Domain", "select"), ("Step", "200"), ("Reward", "0.9:1"), ("Tokens", "1:20"))
"""Fields of the samples' filters with the text that is typed; `select` chooses the last option."""
_REPEATS = 5
_TIMEOUT_MS = 60_000
_DRAWN = '[data-page="{page}"][data-ready]'
_FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


@contextmanager
def open_tab() -> Generator[Any]:
    """A tab of a browser without a window."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium")
    if path is None:
        raise ConfigError("bench: no chromium on this machine; `make programs` installs it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            tab = browser.new_page(viewport={"width": 1280, "height": 800})
            tab.set_default_timeout(_TIMEOUT_MS)
            yield tab
        finally:
            browser.close()


class BrowserPage:
    """A page in a browser without a window that no tool observes: one that does costs as much as the page."""

    def __init__(self, link: str) -> None:
        path = shutil.which("chromium")
        if path is None:
            raise ConfigError("bench: no chromium on this machine; `make programs` installs it")
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        options = [f"--user-data-dir={self._profile.name}", "--remote-debugging-port=0", "--window-size=1280,800"]
        command = [path, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", *options, link]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    @property
    def pid(self) -> int:
        return self._process.pid

    def read(self, selector: str) -> str:
        """The text of the first element that matches."""
        from playwright.sync_api import sync_playwright

        port = (Path(self._profile.name) / "DevToolsActivePort").read_text().split()[0]
        with sync_playwright() as playwright:
            browser = playwright.chromium.connect_over_cdp(f"http://127.0.0.1:{port}", timeout=_TIMEOUT_MS)
            return browser.contexts[0].pages[0].locator(selector).first.inner_text(timeout=_TIMEOUT_MS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._profile.cleanup()


def measure_browser(link: str, run: str, write_step: Callable[[], int]) -> dict[str, Any]:
    """Seconds of the views, filters and events of a run whose index is complete.

    `write_step` commits one further step of the run and returns the number of its attempts.
    """
    base = link.partition("?")[0].rstrip("/")
    with open_tab() as tab:
        views = [_view_s(tab, link if index == 0 else f"{base}/?{index}", run) for index in range(_REPEATS)]
        filters = _filters_s(tab, base, run)
        events = [_event_s(tab, base, run, write_step) for _ in range(3)]
    return {
        "browser_first_view_s": views[0],
        "browser_view_s": median(views[1:]),
        "browser_filter_s": max(filters.values()),
        "browser_event_s": max(events),
        "browser_filters_s": {name: round(seconds, 4) for name, seconds in filters.items()},
    }


def _view_s(tab: Any, address: str, run: str) -> float:
    """From the request of the page to the overview with its curves on the screen."""
    start = time.perf_counter()
    tab.goto(f"{address}#/run/{quote(run)}/overview")
    tab.wait_for_selector(_DRAWN.format(page="overview") + " path.line")
    tab.evaluate(_FRAMES)
    return time.perf_counter() - start


def _filters_s(tab: Any, base: str, run: str) -> dict[str, float]:
    """From the choice of a filter to the rows that match it, by field; without the pause of 200 ms after typing."""
    seconds: dict[str, float] = {}
    for field, value in FILTERS:
        _open_samples(tab, base, run)
        label = tab.locator("label.field", has_text=re.compile(f"^{field}"))
        box = label.locator("input, select")
        start = time.perf_counter()
        if value == "select":
            box.select_option(index=box.locator("option").count() - 1)
        else:
            box.fill(value)
            start = time.perf_counter()
            box.press("Enter")
        tab.locator("#total", has_text="matching").wait_for()
        tab.evaluate(_FRAMES)
        seconds[field] = time.perf_counter() - start
    return seconds


def _open_samples(tab: Any, base: str, run: str) -> None:
    """The table without filters; by way of another page, so that it is drawn again."""
    for page in ("overview", "samples"):
        tab.goto(f"{base}/#/run/{quote(run)}/{page}")
        tab.wait_for_selector(_DRAWN.format(page=page))
    tab.wait_for_selector(".trow")


def _event_s(tab: Any, base: str, run: str, write_step: Callable[[], int]) -> float:
    """From the commit of a step to its attempts in the number above the table of samples."""
    _open_samples(tab, base, run)
    before = int(tab.locator("#total").inner_text().split()[0].replace(",", ""))
    number = write_step()
    start = time.perf_counter()
    tab.locator("#total", has_text=f"{before + number:,} attempts").wait_for()
    return time.perf_counter() - start
