"""Draws the pictures of `docs/concepts.md` from a run that it makes: `make pictures`, half a minute on a CPU."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import roll
from roll.envs.base import StepResult
from roll.journal.events import GroupAdmitted, StepStarted, WeightsPublished
from roll.journal.records import TrajectoryQuery
from roll.journal.store import Reader
from roll.report.journals import open_journal
from roll.report.timeline import phases
from roll.report.timeline import write as write_timeline
from roll.types import Message, Task

FOLDER = Path(__file__).parent / "pictures"
STALENESS, STEPS = 2, 12
LEFT, WIDTH, ROW = 120, 860, 26
COLOURS = {
    "queued": "#bcd0e5",
    "generating": "#4c78a8",
    "environment": "#f2cf5b",
    "scoring": "#b279a2",
    "the controller": "#8c8c8c",
    "ready, waiting for its step": "#d9d9d9",
    "trained": "#54a24b",
    "published": "#f58518",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """One rectangle of a picture: a colour of `COLOURS`, its row, and its extent in the units of the axis."""

    name: str
    row: int
    start: float
    end: float
    opacity: float = 1.0


class SlowEcho:
    """Sends three letters, one per turn, each after a random wait; the policy should repeat them."""

    def __init__(self, task: Task) -> None:
        self.random = random.Random(task.seed)
        self.letters = self.random.choices("abcd", k=3)
        self.num_right = self.num_turns = 0

    async def start(self) -> tuple[Message, ...]:
        return (Message("user", f"{self.letters[0]}?"),)

    async def step(self, response: str) -> StepResult:
        await asyncio.sleep(self.random.expovariate(1 / 0.25))
        self.num_right += response.startswith(self.letters[self.num_turns])
        self.num_turns += 1
        if self.num_turns == len(self.letters):
            return StepResult(reward=self.num_right / self.num_turns, done=True)
        return StepResult(messages=(Message("user", f"{self.letters[self.num_turns]}?"),))

    async def close(self) -> None: ...


def config(steps: int) -> dict[str, Any]:
    """The run of the pictures: several turns, a slow environment, generation up to two steps ahead."""
    return {
        "name": "pictures",
        "steps": steps,
        "threads": 1,
        "model": {
            "shape": {"alphabet": "abcd?", "hidden": 64, "layers": 2, "heads": 4, "kv_heads": 2, "max_seq_len": 64}
        },
        "algorithm": {"recipe": "grpo", "correction": "truncate"},
        "tasks": [{"name": "echo", "env": SlowEcho}],
        "rollout": {
            "groups_per_step": 6, "group_size": 6, "max_staleness": STALENESS, "max_seq_len": 64, "max_new_tokens": 8
        },
        "actor_train": {"optimizer": {"lr": 2e-3}},
        "actor_infer": {"max_num_seqs": 128},
        "tracking": {"tensorboard": False},
    }  # fmt: skip


def make(folder: Path, steps: int = STEPS) -> None:
    """Train the run in a temporary directory and write its pictures into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as runs:
        result = roll.train(config(steps), directory=runs)
        write_timeline(result.directory, folder / "timeline.svg", f"{steps // 2}:{steps // 2 + 1}")
        with open_journal(result.directory) as reader:
            (folder / "life.svg").write_text(life(reader, step=max(2, steps * 2 // 3)), encoding="utf-8")
            (folder / "versions.svg").write_text(versions(reader, steps), encoding="utf-8")
        (folder / "staleness.svg").write_text(staleness(roll.metrics(result.directory)), encoding="utf-8")


def life(reader: Reader, step: int) -> str:
    """The attempts of the group of a step that waited longest between admission and training."""
    admitted = {entry.event.group: entry.time for entry in reader.events(GroupAdmitted)}
    started = next(entry for entry in reader.events(StepStarted) if entry.event.step == step)
    published = [entry for entry in reader.events(WeightsPublished)]
    end = next(entry.time for entry in published if entry.event.step == step)
    group = min(started.event.groups, key=lambda each: admitted[each])
    begin = admitted[group]
    bars: list[Bar] = []
    attempts = list(reader.trajectories(TrajectoryQuery(group=group)))
    for row, stored in enumerate(attempts):
        for phase in phases(stored, begin, stored.ended):
            name = next((each for each in COLOURS if phase.name.startswith(each)), "the controller")
            bars.append(Bar(name, row, phase.start - begin, phase.end - begin))
        bars.append(Bar("ready, waiting for its step", row, stored.ended - begin, started.time - begin))
        bars.append(Bar("trained", row, started.time - begin, end - begin))
    marks = {entry.time - begin: f"v{entry.event.version}" for entry in published if begin <= entry.time <= end}
    names = [f"attempt {stored.sibling}" for stored in attempts]
    return draw(
        f"Group {group}, trained in step {step}",
        bars,
        names,
        marks,
        "time since its admission, with the publication of versions",
    )


def versions(reader: Reader, steps: int) -> str:
    """For each step, the versions that sampled its tokens; darker is a larger share of the tokens of the step."""
    tokens: dict[int, Counter[int]] = {}
    for stored in reader.trajectories(TrajectoryQuery()):
        if stored.step is not None:
            tokens.setdefault(stored.step, Counter()).update(stored.versions)
    bars = [
        Bar("generating", row, version - 0.5, version + 0.5, num / tokens[step].total())
        for row, step in enumerate(sorted(tokens))
        for version, num in tokens[step].items()
    ]
    names = [f"step {step}" for step in sorted(tokens)]
    marks = {float(version): str(version) for version in range(steps)}
    return draw("Versions that sampled the tokens of each step", bars, names, marks, "version of the weights")


def staleness(rows: Sequence[dict[str, Any]]) -> str:
    """For each step, the fraction of its tokens by staleness."""
    shades = dict(zip(range(STALENESS + 1), ("generating", "queued", "environment"), strict=True))
    trained = [row for row in rows if "staleness/mean" in row]
    bars: list[Bar] = []
    for index, row in enumerate(trained):
        start = 0.0
        for age, colour in shades.items():
            share = row.get(f"staleness/{age}") or 0.0
            bars.append(Bar(colour, index, start, start + share))
            start += share
    names = [f"step {row['step']}" for row in trained]
    legend = {shades[age]: f"{age} step{'s' * (age != 1)}" for age in shades}
    marks = {0.0: "0", 0.25: "0.25", 0.5: "0.5", 0.75: "0.75", 1.0: "1"}
    return draw("Staleness of the tokens of each step", bars, names, marks, "fraction of the tokens", legend)


def draw(
    title: str, bars: Sequence[Bar], names: Sequence[str], marks: dict[float, str], axis: str,
    legend: dict[str, str] | None = None,
) -> str:  # fmt: skip
    """Rows of bars over one axis, with vertical lines at the marks."""
    low, high = min(bar.start for bar in bars), max(bar.end for bar in bars)
    scale = (WIDTH - LEFT - 24) / max(high - low, 1e-9)
    top, bottom = 84, 84 + ROW * len(names)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 52}" role="img" '
        f'aria-label="{escape(title)}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{bottom + 52}" rx="12" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="32" font-size="17" font-weight="600">{escape(title)}</text>',
    ]
    shown = legend or {name: name for name in COLOURS if len({bar.name for bar in bars}) > 1}
    used = {bar.name for bar in bars}
    lines += _legend({name: text for name, text in shown.items() if name in used})
    for row, name in enumerate(names):
        lines.append(f'<text x="{LEFT - 10}" y="{top + ROW * row + 16}" text-anchor="end">{escape(name)}</text>')
    for bar in bars:
        x, width = LEFT + (bar.start - low) * scale, max(0.5, (bar.end - bar.start) * scale)
        frame = f'x="{x:.1f}" y="{top + ROW * bar.row}" width="{width:.1f}" height="{ROW - 4}"'
        note = f"{escape(bar.name)}: {bar.start:.2f} to {bar.end:.2f}"
        style = f'fill="{COLOURS[bar.name]}" fill-opacity="{bar.opacity:.2f}"'
        lines.append(f"<rect {frame} {style}><title>{note}</title></rect>")
    for value, text in marks.items():
        x = LEFT + (value - low) * scale
        lines.append(
            f'<line x1="{x:.1f}" y1="{top - 6}" x2="{x:.1f}" y2="{bottom}" stroke="#94a3b8" stroke-width="1"/>'
        )
        lines.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{escape(text)}</text>')
    lines.append(f'<text x="{(LEFT + WIDTH) / 2}" y="{bottom + 38}" text-anchor="middle">{escape(axis)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _legend(entries: dict[str, str]) -> Iterator[str]:
    x = LEFT
    for name, text in entries.items():
        yield f'<rect x="{x}" y="48" width="12" height="12" fill="{COLOURS[name]}"/>'
        yield f'<text x="{x + 17}" y="58">{escape(text)}</text>'
        x += 40 + 6.4 * len(text)


if __name__ == "__main__":
    make(FOLDER)
    sys.stdout.write(f"pictures: {FOLDER}\n")
