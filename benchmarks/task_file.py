"""CPU time and memory from a task file of a million rows to the first drawn tasks, in a fresh process.

python -m benchmarks.task_file FOLDER    (measures the file `tasks.jsonl` in a folder, and prints JSON)
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import typer

from benchmarks.result import Result

ROWS = 1_000_000
DRAWS = 64
GOAL_CPU_S, GOAL_MB = 5.0, 400.0
_RUN = """\
model: {shape: {hidden: 64}}
algorithm: grpo
rollout: {max_seq_len: 512, max_new_tokens: 64}
tasks: [{name: sums, data: TASKS, reward: exact}]
validation: {tasks: [{name: held_out, data: HELD_OUT, reward: exact}]}
"""
_PADDING = "explain each step of the sum in one short sentence. " * 4


def run() -> Result:
    """The worse of CPU seconds and peak memory, each as a fraction of its goal."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), ROWS)
        command = [sys.executable, "-m", "benchmarks.task_file", folder]
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        megabytes = (Path(folder) / "tasks.jsonl").stat().st_size / 1e6
    measured: dict[str, Any] = json.loads(output.splitlines()[-1])
    typer.echo(f"{measured['cpu_s']:.2f} s of CPU, at most {measured['peak_mb']:.0f} MB in the process")
    return Result(
        name="task_file",
        unit="worst fraction of the goals",
        higher_is_better=False,
        ours=max(measured["cpu_s"] / GOAL_CPU_S, measured["peak_mb"] / GOAL_MB),
        bound=1.0,
        details={"rows": ROWS, "file_mb": round(megabytes), **measured},
    )


def write(folder: Path, num_rows: int) -> None:
    """A training file with `num_rows` rows, one of 100 rows for validation, and the file of a run."""
    for name, rows in {"tasks": range(num_rows), "held_out": range(num_rows, num_rows + 100)}.items():
        with (folder / f"{name}.jsonl").open("w") as stream:
            for n in rows:
                stream.write(f'{{"id": "sum-{n}", "prompt": "{_PADDING}{n}+1=", "answer": "{n + 1}"}}\n')
    text = _RUN.replace("TASKS", str(folder / "tasks.jsonl")).replace("HELD_OUT", str(folder / "held_out.jsonl"))
    (folder / "run.yaml").write_text(text)


def measure(folder: Path) -> dict[str, Any]:
    """CPU seconds of building the data of a run and drawing the first tasks, and memory before and at its peak."""
    from roll.config.load import load
    from roll.data.templates import Template, character_tokenizer
    from roll.wiring.data import build_data

    loaded = load(folder / "run.yaml").run
    assert loaded.model.shape is not None
    template = Template(character_tokenizer(loaded.model.shape.alphabet))
    before_mb, began = _peak_mb(), time.process_time()
    data = build_data(loaded, loaded.tasks, template)
    drawn = [data.mixture.draw().task.id for _ in range(DRAWS)]
    assert len(set(drawn)) == DRAWS, "draws of a permutation repeat no task"
    return {
        "cpu_s": round(time.process_time() - began, 3),
        "imports_mb": round(before_mb),
        "peak_mb": round(_peak_mb()),
    }


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6  # Linux counts in KiB


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(Path(sys.argv[1]))) + "\n")
