"""Gain of a small model on tic-tac-toe by self-play from random weights."""

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
from roll.commands.evaluate import evaluate
from roll.config.load import LoadedRun, load
from roll.preflight import preflight

SEEDS = (0, 1)
BOUND = 0.2
EXAMPLE = Path("examples/tic_tac_toe.yaml")
CONTROL = "algorithm.advantage=benchmarks.control:shuffled_turns"


def run() -> Result:
    """The smaller decrease in loss rate over 400 games with a random player, against 0.2; details: seeds, control."""
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for label, overrides in (
            *((f"seed {seed}", [f"seed={seed}", f"name=seed-{seed}"]) for seed in SEEDS),
            ("control", [f"seed={SEEDS[0]}", "name=control", CONTROL]),
        ):
            results[label] = _learn(Path(folder), [f"directory={folder}", *overrides])
            typer.echo(f"{label}: {results[label]}")
    return Result(
        name="learn_tic_tac_toe",
        unit="decrease in loss rate",
        higher_is_better=True,
        ours=min(numbers["gain"] for label, numbers in results.items() if label != "control"),
        bound=BOUND,
        details=results,
    )


def _learn(folder: Path, overrides: list[str]) -> dict[str, Any]:
    """Rates of games with a random player before and after self-play, and the seconds in between."""
    loaded, began = _load(overrides), time.perf_counter()
    before = _play_random(loaded, folder)
    with redirect_stdout(sys.stderr):
        commands.train(loaded, overwrite=False)
    spent_s = round(time.perf_counter() - began, 1)
    path = f"{loaded.run.directory}/{loaded.run.name}/model"
    after = _play_random(
        _load([*overrides, f"model={{path: '{path}', template: {loaded.run.model.template}}}"]), folder
    )
    return {"before": before, "after": after, "gain": round(before["lost"] - after["lost"], 4), "spent_s": spent_s}


def _play_random(loaded: LoadedRun, folder: Path) -> dict[str, float]:
    """Rates over all games. `lost` includes games with an illegal move; `beaten` is the loss rate of the others."""
    rows = folder / "rows.jsonl"
    with redirect_stdout(sys.stderr):
        evaluate(loaded, output=rows)
    counts = [json.loads(line)["metrics"] for line in rows.read_text(encoding="utf-8").splitlines()]
    rates = {name: sum(each[name] for each in counts) / len(counts) for name in ("lost", "illegal", "drawn", "won")}
    legal = [each["lost"] for each in counts if not each["illegal"]]
    rates["beaten"] = sum(legal) / max(1, len(legal))
    return {name: round(value, 4) for name, value in rates.items()}


def _load(overrides: list[str]) -> LoadedRun:
    loaded = load(EXAMPLE, overrides)
    preflight(loaded)
    return loaded
