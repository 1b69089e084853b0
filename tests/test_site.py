"""The documentation site: it builds without a warning, has every page, and its search works without a network."""

import http.server
import re
import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import nbformat
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("site")]

ROOT = Path(__file__).parents[1]
HOOKS: dict[str, Any] = runpy.run_path(str(ROOT / "docs/hooks.py"))
LOADS = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src")}
"""Attributes whose addresses a browser fetches by itself."""
CHROMIUM = Path("/usr/bin/chromium")


def build(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", *options]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={"NO_MKDOCS_2_WARNING": "1", "PATH": ""}
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    ended = build("--quiet", "--site-dir", str(folder))
    assert ended.returncode == 0, ended.stderr
    return folder


class Addresses(HTMLParser):
    """Addresses that a browser fetches when it opens a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if (tag, name) in LOADS]


def addresses(page: Path) -> list[str]:
    parser = Addresses()
    parser.feed(page.read_text(encoding="utf-8"))
    return parser.found


def test_every_page_of_the_docs_is_a_page_of_the_site(site: Path) -> None:
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    names = [path.with_name("index.md") if path.name == "README.md" else path for path in pages]
    assert [name for name in names if not (site / name.with_suffix(".html")).is_file()] == []
    assert (site / "notebook.html").is_file() and (site / "decisions/index.html").is_file()


def test_files_of_the_repository_that_pages_link_to_are_on_the_site(site: Path) -> None:
    assert "rollout: {groups_per_step: 64" in re.sub(
        "<[^>]*>", "", (site / "repository/examples/gsm8k.yaml.html").read_text(encoding="utf-8")
    )
    assert 'href="../repository/examples/gsm8k.yaml.html"' in (site / "start/gpu.html").read_text(encoding="utf-8")


def test_the_reference_shows_the_functions_with_their_signatures(site: Path) -> None:
    text = re.sub("<[^>]*>", "", (site / "reference/api.html").read_text(encoding="utf-8"))
    for name in ("train", "start", "resume", "evaluate", "metrics_frame", "Training", "Result"):
        assert re.search(rf"\b{name}\b", text), name
    assert "overwrite: bool = False" in re.sub(r"\s+", " ", text)


def test_pages_fetch_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    foreign = {each for page in pages for each in addresses(page) if re.match(r"(https?:)?//", each)}
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert len(pages) > 60 and foreign == set()
    assert re.findall(r"url\(\s*[\"']?(?:https?:)?//", styles) == []


def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    config = tmp_path / "mkdocs.yml"
    plain = re.sub(r"^plugins:\n(  .*\n)*|^hooks:.*\n", "", settings, flags=re.MULTILINE)
    plain = re.sub(r"^theme:\n(  .*\n)*", "theme: mkdocs\n", plain, flags=re.MULTILINE)
    config.write_text(plain, encoding="utf-8")
    page = tmp_path / "docs/README.md"
    page.parent.mkdir()
    for text, code in (("# A page\n", 0), ("[b](b.md)\n", 1), ("# A\n[b](#none)\n", 1)):
        page.write_text(text, encoding="utf-8")
        assert build("--config-file", str(config)).returncode == code, text


def test_links_out_of_the_docs_lead_to_pages_of_the_site_and_code_stays() -> None:
    relink = HOOKS["relink"]
    text = "[a](../examples/gsm8k.yaml) [d](decisions) [n](notebook.ipynb#x) [s](#here)\n```\n[a](../b)\n```\n"
    assert relink(text, "docs/guide.md", "guide.md") == (
        "[a](repository/examples/gsm8k.yaml.md) [d](decisions/index.md) [n](notebook.md#x) [s](#here)\n"
        "```\n[a](../b)\n```\n"
    )


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.skipif(not CHROMIUM.exists(), reason="needs Chromium")
def test_the_search_finds_a_key_in_a_browser_without_a_network(address: str) -> None:
    browsers = pytest.importorskip("playwright.sync_api")
    asked: list[str] = []
    errors: list[str] = []
    with browsers.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(300_000)
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.goto(f"{address}/index.html")
        page.wait_for_selector('input.md-search__input[placeholder="Search"]')
        found = page.locator(".md-search-result__item").first
        for _ in range(60):  # a text that comes before the index is loaded may find nothing
            page.fill("input.md-search__input", "")
            page.type("input.md-search__input", "max_staleness")
            with suppress(browsers.TimeoutError):
                found.wait_for(timeout=5_000)
                break
        results = page.locator(".md-search-result__link").all_inner_texts()
        browser.close()
    assert any("staleness" in text for text in results)
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == [] and errors == []


def test_the_pictures_of_a_run_are_drawn_from_a_run(tmp_path: Path) -> None:
    make = runpy.run_path(str(ROOT / "docs/pictures.py"), run_name="pictures")["make"]
    make(tmp_path, steps=3)
    page = (ROOT / "docs/concepts.md").read_text(encoding="utf-8")
    shown = re.findall(r"\(pictures/([\w.]+)\)", page)
    assert sorted(shown) == sorted(path.name for path in tmp_path.glob("*.svg"))
    for name in shown:
        small, kept = (ElementTree.parse(folder / name).getroot() for folder in (tmp_path, ROOT / "docs/pictures"))
        assert len(list(small.iter("{http://www.w3.org/2000/svg}rect"))) > 3, "the ground, and a bar for each step"
        assert small.tag == kept.tag and len(list(kept.iter())) > len(list(small.iter())) / 2


def test_the_notebook_runs_and_its_stored_outputs_are_of_the_same_kinds(tmp_path: Path) -> None:
    path = ROOT / "docs/notebook.ipynb"
    stored = nbformat.read(path, as_version=4)
    notebook = nbformat.read(path, as_version=4)
    (config,) = [cell for cell in notebook.cells if "steps = 40" in cell.source]
    config.source = (
        config.source.replace("steps = 40", "steps = 4")
        .replace('"groups_per_step": 16, "group_size": 8', '"groups_per_step": 2, "group_size": 2, "max_staleness": 0')
        .replace('"name": "notebook"', '"name": "notebook", "threads": 1')
    )
    execute = runpy.run_path(str(ROOT / "docs/notebook.py"), run_name="notebook")["execute"]
    executed = execute(notebook, tmp_path)
    assert kinds(executed) == kinds(stored)
    assert len(kinds(stored)) >= 7 and path.stat().st_size < 100_000
    assert "True 4" in str(executed.cells) and "(6, True)" in str(executed.cells)


def kinds(notebook: Any) -> list[str]:
    """The richest form of each output, besides the printed lines of the run."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ()) if "data" in output]
    return [max(output["data"], key=["text/plain", "text/html", "image/svg+xml"].index) for output in outputs]
