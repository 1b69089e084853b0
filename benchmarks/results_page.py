"""The page `docs/results.md` and its pictures, from the files that `benchmarks.gpu_results` has written."""

from __future__ import annotations

from pathlib import Path

import msgspec

from benchmarks.gpu_results import EXPERIMENTS, Curve
from roll.tracking.curve import Series, curve_svg

HEAD = """\
# Results of real models

Written by `make docs` from the files in `docs/results`, which the benchmarks `gpu_gsm8k`, `gpu_async`, `gpu_code`,
`gpu_agent` and `gpu_recipes` write. Each run is `roll train` on a file of `examples/` on one GPU, without a warm start.
Accuracy is that of greedy responses to held-out tasks. Time is that of the whole command, with loading and validation.
"""


def pages(folder: Path) -> dict[str, str]:
    """The page and a picture of every run, by name relative to `docs`."""
    curves = {
        name: msgspec.json.decode(file.read_bytes(), type=Curve)
        for name in EXPERIMENTS
        if (file := folder / f"{name}.json").exists()
    }
    pictures = {f"results/{name}.svg": _picture(name, curve) for name, curve in curves.items()}
    return {"results.md": _page(curves), **pictures}


def _page(curves: dict[str, Curve]) -> str:
    rows = [
        f"| `{name}` | {_first(curve):.3f} | {_last(curve):.3f} | {curve.gain:+.3f} | {max(curve.validation)} "
        f"| {curve.step_s:.1f} s | {curve.spent_s / 60:.1f} min |"
        for name, curve in curves.items()
    ]
    table = [
        "| run | before | after | gain | steps | median step | time |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    missing = [f"`{name}` (`{EXPERIMENTS[name].command}`)" for name in EXPERIMENTS if name not in curves]
    unmeasured = ["", "Without a result so far:", "", *(f"- {each}" for each in missing)] if missing else []
    sections = [line for name, curve in curves.items() for line in _section(name, curve)]
    return HEAD + "\n" + "\n".join([*table, *rows, *unmeasured, *sections]) + "\n"


def _section(name: str, curve: Curve) -> list[str]:
    points = ", ".join(f"{accuracy:.4f} at step {step}" for step, accuracy in curve.validation.items())
    return [
        "",
        f"## {name}",
        "",
        f"`{curve.command}` with {curve.model} on {curve.host}.",
        "",
        f"- Held-out accuracy: {points}.",
        f"- Mean reward of the first and last five steps: {_mean(curve.rewards[:5])}, {_mean(curve.rewards[-5:])}.",
        f"- Mean tokens of a response, likewise: {_mean(curve.lengths[:5])}, {_mean(curve.lengths[-5:])}.",
        f"- Largest mean difference between logprobs of sampler and trainer: {curve.largest_mismatch:.4f}.",
        "",
        f"![Reward and held-out accuracy of {name}](results/{name}.svg)",
    ]


def _picture(name: str, curve: Curve) -> str:
    reward = Series(name="training reward", points=[(step, each) for step, each in enumerate(curve.rewards, 1)])
    held_out = Series(name="held-out accuracy", points=list(curve.validation.items()), sparse=True)
    return curve_svg([reward, held_out], title=name, x_label="step", y_label="reward, accuracy")


def _first(curve: Curve) -> float:
    return curve.validation[min(curve.validation)]


def _last(curve: Curve) -> float:
    return curve.validation[max(curve.validation)]


def _mean(values: list[float]) -> str:
    return f"{sum(values) / len(values):.3g}"
