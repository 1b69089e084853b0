"""Takes the pictures of `docs/watch.md` in Chromium: `make watch-pictures`, a few minutes on a CPU.

Two runs train on two domains. While the first one trains, the verifier of one domain is replaced by one with a bug. The
picture of the faults is not taken here: it shows a run of the chaos matrix.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image

from benchmarks.watch import Client, server
from benchmarks.watch_browser import open_tab

FOLDER = Path(__file__).parent / "watch"
BROKEN, REPAIRED = "two-domains", "repaired"
BREAKS_AT = 160
"""Steps before the verifier is replaced."""
_POLL_S, _SETTLE_MS = 0.2, 800
_HEIGHT, _COLOURS = 760, 200
_RUN = """\
name: {name}
steps: 240
threads: 1
model:
  shape: {{alphabet: "0123456789= copynext", hidden: 64, layers: 2, heads: 4, kv_heads: 2, mlp: 192, max_seq_len: 32}}
algorithm: {{recipe: grpo, minibatches: 2}}
tasks:
  - {{name: copy, data: {{kind: jsonl, path: copy.jsonl}}, reward: "verifier:compare"}}
  - {{name: successor, data: {{kind: jsonl, path: successor.jsonl}}, reward: "verifier:compare"}}
rollout: {{groups_per_step: 16, group_size: 8, max_seq_len: 24, max_new_tokens: 2, max_staleness: 1}}
actor_train: {{optimizer: {{lr: {lr}, warmup_steps: 5}}}}
actor_infer: {{max_num_seqs: 256}}
validation:
  every: 20
  tasks:
    - {{name: copy, data: {{kind: jsonl, path: copy.jsonl}}, reward: exact}}
    - {{name: successor, data: {{kind: jsonl, path: successor.jsonl}}, reward: exact}}
"""
_VERIFIER = """\
from pathlib import Path

from roll.types import Score, Task

BUG = Path(__file__).with_name("bug")


def compare(task: Task, response: str) -> Score:
    expected = task.answer
    if task.domain == "successor" and BUG.exists():
        expected = str(float(expected))
    right = response.strip() == expected
    return Score(float(right), comment=f"compared {response.strip()!r} with {expected!r}")
"""


def main() -> None:
    """Train, and replace the pictures."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        directory = Path(folder)
        _write(directory)
        _train(directory, BROKEN, replace_verifier_at=BREAKS_AT)
        (directory / "bug").unlink()
        _train(directory, REPAIRED)
        client = stack.enter_context(server(directory / "runs"))
        tab = stack.enter_context(open_tab())
        for name in (BROKEN, REPAIRED):
            _wait_for_index(client, name)
        tab.goto(f"{client.base}/?token={client.token}")
        _take(tab, client.base)
    for path in FOLDER.glob("*.png"):
        _shrink(path)


def _wait_for_index(client: Client, name: str) -> None:
    client.get(f"/api/runs/{name}/facets")  # it needs the index, which is built then
    while client.get(f"/api/runs/{name}/state")["index"]["phase"] != "done":
        time.sleep(_POLL_S)


def _shrink(path: Path) -> None:
    """Keep as many colours as the page needs."""
    with Image.open(path) as image:
        if image.mode != "P":
            image.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


def _write(directory: Path) -> None:
    copied = [{"id": f"copy {digit}", "prompt": f"copy {digit}=", "answer": f"{digit}"} for digit in range(10)]
    counted = [{"id": f"next {digit}", "prompt": f"next {digit}=", "answer": f"{digit + 1}"} for digit in range(9)]
    for name, rows in (("copy", copied), ("successor", counted)):
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (directory / "verifier.py").write_text(_VERIFIER, encoding="utf-8")
    for name, lr in ((BROKEN, 1e-3), (REPAIRED, 2e-3)):
        (directory / f"{name}.yaml").write_text(_RUN.format(name=name, lr=lr), encoding="utf-8")


def _train(directory: Path, name: str, replace_verifier_at: int = 0) -> None:
    metrics = directory / "runs" / name / "metrics.jsonl"
    process = subprocess.Popen([sys.executable, "-m", "roll", "train", f"{name}.yaml"], cwd=directory)
    try:
        while replace_verifier_at and process.poll() is None:
            if metrics.exists() and metrics.read_text(encoding="utf-8").count("\n") > replace_verifier_at:
                (directory / "bug").touch()
                break
            time.sleep(_POLL_S)
        if process.wait() != 0:
            raise SystemExit(f"the run {name} failed; see its output above")
    finally:
        process.kill()


def _take(tab: Any, base: str) -> None:
    """Walk from the overview to a wrong sample, as a reader would, and take a picture of each page."""

    def picture(name: str, address: str, *, scheme: str = "light", look: Callable[[], None] | None = None) -> None:
        tab.emulate_media(color_scheme=scheme)
        tab.goto("about:blank")
        tab.goto(f"{base}/#/{address}")
        tab.wait_for_selector("[data-page][data-ready]")
        if look is not None:
            look()
        tab.wait_for_timeout(_SETTLE_MS)
        tab.screenshot(path=FOLDER / f"{name}.png")

    def follow() -> None:
        tab.locator(".message.bad a").first.wait_for()
        links.extend(each.get_attribute("href") for each in tab.locator(".message.bad a").all())

    links: list[str] = []
    tab.set_viewport_size({"width": 1280, "height": 800})
    tab.goto(f"{base}/#/run/{BROKEN}/samples")
    tab.wait_for_selector(".trow")
    picture("overview", f"run/{BROKEN}/overview", look=follow)
    tab.set_viewport_size({"width": 1280, "height": _HEIGHT})
    samples = links[0].removeprefix("#/")
    step = int(re.findall(r"step=(\d+)", samples)[0])
    picture("samples", samples.replace(f"step={step}", f"step={step + 2}"), look=lambda: _wait_for_rows(tab))
    right = tab.locator(".trow", has_text=re.compile(r"compared '(\d)' with '\1\.0'"))
    sample = right.first.get_attribute("href").removeprefix("#/")
    picture("sample", _with(sample, "view=siblings"), scheme="dark")
    picture("scheduler", f"run/{BROKEN}/scheduler")
    before = links[1].removeprefix("#/")
    picture("tokens", before, look=lambda: _wait_for_rows(tab))
    sample = tab.locator(".trow").first.get_attribute("href").removeprefix("#/")
    picture("tokens", _with(sample, "view=tokens&colour=mismatch"))
    picture("versions", f"run/{BROKEN}/versions")
    tab.set_viewport_size({"width": 1280, "height": 620})
    picture("compare", f"compare?runs={BROKEN},{REPAIRED}")


def _wait_for_rows(tab: Any) -> None:
    tab.locator(".trow").first.wait_for()


def _with(address: str, query: str) -> str:
    return f"{address.partition('?')[0]}?{query}"


if __name__ == "__main__":
    main()
