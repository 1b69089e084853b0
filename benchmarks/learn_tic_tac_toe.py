"""Whether a small model learns tic-tac-toe from nothing, by playing against itself."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import typer

from benchmarks.result import Result
from roll.commands import train as commands
from roll.config.load import Loaded, load
from roll.preflight import preflight

SEEDS = (0, 1)
BOUND = 0.2
_EXAMPLE = Path("examples/tic_tac_toe.yaml")
_CONTROL = "algorithm={recipe: gigpo, advantage: 'benchmarks.control:shuffled_turns'}"


def run() -> Result:
    """The smaller fall of the loss rate in 400 games against chance, against 0.2; seeds and control in the details."""
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for label, overrides in (
            *((f"seed {seed}", [f"seed={seed}", f"name=seed-{seed}"]) for seed in SEEDS),
            ("control", [f"seed={SEEDS[0]}", "name=control", _CONTROL]),
        ):
            found[label] = _learned(Path(folder), [f"directory={folder}", *overrides])
            typer.echo(f"{label}: {found[label]}")
    return Result(
        name="learn_tic_tac_toe",
        unit="part of the games lost no more",
        higher_is_better=True,
        ours=min(numbers["gain"] for label, numbers in found.items() if label != "control"),
        bound=BOUND,
        details=found,
    )


def _learned(folder: Path, overrides: list[str]) -> dict[str, Any]:
    """What became of the games against chance before and after self-play, and the seconds in between."""
    loaded, began = _loaded(overrides), time.perf_counter()
    before = _against_chance(loaded, folder)
    with redirect_stdout(sys.stderr):
        commands.train(loaded, overwrite=False)
    spent_s = round(time.perf_counter() - began, 1)
    path = f"{loaded.run.directory}/{loaded.run.name}/model"
    after = _against_chance(
        _loaded([*overrides, f"model={{path: '{path}', template: {loaded.run.model.template}}}"]), folder
    )
    return {"before": before, "after": after, "gain": round(before["lost"] - after["lost"], 4), "spent_s": spent_s}


def _against_chance(loaded: Loaded, folder: Path) -> dict[str, float]:
    """Parts of all games; `lost` are those with an illegal move and those of `beaten`, a part of the legal ones."""
    rows = folder / "rows.jsonl"
    with redirect_stdout(sys.stderr):
        commands.evaluate(loaded, output=rows)
    counts = [json.loads(line)["metrics"] for line in rows.read_text(encoding="utf-8").splitlines()]
    found = {name: sum(each[name] for each in counts) / len(counts) for name in ("lost", "illegal", "drawn", "won")}
    legal = [each["lost"] for each in counts if not each["illegal"]]
    found["beaten"] = sum(legal) / max(1, len(legal))
    return {name: round(value, 4) for name, value in found.items()}


def _loaded(overrides: list[str]) -> Loaded:
    loaded = load(_EXAMPLE, overrides)
    preflight(loaded)
    return loaded
