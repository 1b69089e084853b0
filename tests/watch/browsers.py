"""A real browser on the pages of a real `roll watch`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BROWSER = shutil.which("chromium")
TIMEOUT_MS = 120_000
"""Deadline of every wait: long, since the machine may be busy."""
_OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]

_FORGET = """(hash) => {
  const shown = location.hash === hash ? null : document.querySelector("[data-ready]");
  shown?.removeAttribute("data-ready");
}"""
"""Before another address is shown: the page in view no longer counts as drawn."""

needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium here; `make programs` installs it")


@contextmanager
def serve(directory: Path) -> Iterator[str]:
    """The link that `roll watch` prints for a run or a folder of runs; the server ends with the block."""
    command = [sys.executable, "-m", "roll", "watch", str(directory), "--no-open", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=directory.parent, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "http://127.0.0.1:" in line, line
        yield next(word for word in line.split() if word.startswith("http://"))
    finally:
        process.terminate()
        process.wait(timeout=60)
        assert process.stdout is not None
        process.stdout.close()


@contextmanager
def start_browser() -> Iterator[Any]:
    """Chromium without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=_OPTIONS)
        try:
            yield browser
        finally:
            browser.close()


class Visit:
    """One tab, with everything in it that went wrong."""

    def __init__(self, browser: Any, link: str, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        self.page = self.context.new_page()
        self.page.set_default_timeout(TIMEOUT_MS)
        self.problems: list[str] = []
        self.page.on("console", self._note_console)
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("dialog", self._note_dialog)
        self.page.on("requestfailed", self._note_failure)
        self.page.on("response", self._note_response)
        self.base = link.partition("?")[0].rstrip("/")
        self.page.goto(link)

    def open(self, address: str, page: str | None = None) -> Any:
        """Show an address such as `run/first/samples`, and wait until it is drawn."""
        self.page.evaluate(_FORGET, f"#/{address}")
        self.page.goto(f"{self.base}/#/{address}")
        self.wait(page or address.partition("?")[0].split("/")[2])
        return self.page

    def wait(self, page: str) -> None:
        self.page.wait_for_selector(f'[data-page="{page}"][data-ready]')

    def close(self) -> None:
        """End the visit; fails if anything went wrong in it."""
        problems = list(self.problems)  # closing ends requests that are still running
        self.context.close()
        assert not problems, "\n".join(problems)

    def _note_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"console: {message.text}")

    def _note_dialog(self, dialog: Any) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _note_failure(self, request: Any) -> None:
        if not (request.failure == "net::ERR_ABORTED" and "/api/" in request.url):  # the page was left meanwhile
            self.problems.append(f"request: {request.url} {request.failure}")

    def _note_response(self, response: Any) -> None:
        if response.status >= 400:
            self.problems.append(f"response: {response.url} {response.status}")
