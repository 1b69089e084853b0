"""Whole GRPO steps on one GPU with vLLM beside the trainer in one process, each phase beside what bounds it.

The model has the shape of Qwen3-0.6B and random weights; 32 prompts of 128 tokens, 8 replies of 512 tokens each, one
optimizer step. It is the real loop, with journal, metrics and attested publications. No reply can end early. It is
measured twice, each time in a process of its own: with the sampler's logprobs, and without them. Where TRL is installed
it does the same work beside ours.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing, redirect_stdout
from pathlib import Path
from typing import Any

import torch
import typer
import yaml

from benchmarks.gpu_model import Ceilings, alphabet, ceilings, missing, qwen3, write_qwen3
from benchmarks.result import Result
from roll.allocator import startup_set_aside
from roll.config.load import load
from roll.config.schema import Run
from roll.engines.native.decoder import Geometry, geometry
from roll.journal.events import Published
from roll.journal.store import Journal
from roll.pipelines.interrupt import Interrupt
from roll.tracking.directory import RunDirectory
from roll.tracking.sinks import read_lines
from roll.types import Message, Task
from roll.wiring.data import build_data
from roll.wiring.models import build_roles
from roll.wiring.run import Books, build_keeper, build_loop, build_reporter

BOUND_S, BARE_BOUND_S = 8.0, 6.5
"""Of a step with the sampler's logprobs, and without."""
PROMPTS, SIBLINGS, PROMPT, NEW = 32, 8, 128, 512
WARM, COUNTED = 2, 5
STEPS = WARM + COUNTED + 1
"""The last one saves the model and is not counted."""
PHASES = ("wait", "score", "update", "publish")


def run() -> Result:
    """The median of five steps after two, against 8 s."""
    if reason := missing():
        return Result(name="gpu_step", unit="s a step", higher_is_better=False, skipped=reason)
    found = ceilings()
    typer.echo(f"device: {found.bytes_per_s / 1e12:.2f} TB/s copied, {found.flops / 1e12:.0f} TFLOP/s")
    bounds = phase_bounds(geometry(qwen3()), found)
    sides = {name: _apart("-m", "benchmarks.gpu_step", name) for name in ("with", "without")}
    for name, side in sides.items():
        typer.echo(f"{name} the sampler's logprobs: {statistics.median(side['step_s']):.3f} s a step")
        for phase, seconds in side["phases_s"].items():
            typer.echo(f"  {phase:<8} {seconds:6.3f} s; bound {bounds[phase]:.3f} s")
    ours, bare = (statistics.median(side["step_s"]) for side in sides.values())
    details: dict[str, Any] = {
        **sides["with"],
        "bounds_s": {phase: round(seconds, 3) for phase, seconds in bounds.items()},
        "tokens_per_s": round(PROMPTS * SIBLINGS * NEW / ours),
        "without": {"median_s": round(bare, 3), "bound_s": BARE_BOUND_S, **sides["without"]},
        "device": torch.cuda.get_device_name(),
        "torch": str(torch.__version__),
        "vllm": importlib.metadata.version("vllm"),
        "trl": _peer(ours),
    }
    return Result(name="gpu_step", unit="s a step", higher_is_better=False, ours=ours, bound=BOUND_S, details=details)


def _peer(ours: float) -> dict[str, Any] | str:
    """What TRL takes for the same work in the same hour, or why nobody knows."""
    if not importlib.util.find_spec("trl"):
        return "not installed"
    work = {"prompts": PROMPTS, "siblings": SIBLINGS, "prompt": PROMPT, "new_tokens": NEW, "steps": STEPS}
    with tempfile.TemporaryDirectory() as folder:
        write_qwen3(Path(folder, "model"))
        script = Path(__file__).with_name("trl_gpu_peer.py")
        try:
            found = _apart("-P", str(script), json.dumps({**work, "model": f"{folder}/model"}))
        except subprocess.CalledProcessError as error:
            return f"installed, but ended with {error.returncode}; see its output above"
    seconds = statistics.median(found["step_s"][WARM:])
    typer.echo(f"TRL {found['version']}: {seconds:.3f} s a step, {seconds / ours:.2f} times ours")
    return {**found, "median_s": round(seconds, 3), "of_ours": round(seconds / ours, 3)}


def _apart(*arguments: str) -> dict[str, Any]:
    """What a process of its own says in its last line; the rest of what it says goes where ours goes."""
    done = subprocess.run([sys.executable, *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def prompts(count: int) -> list[Task]:
    """Texts of 128 characters from all over the vocabulary."""
    source, letters = random.Random(0), alphabet()
    return [
        Task(
            id=str(index),
            domain="letters",
            messages=(Message("user", "".join(source.choice(letters) for _ in range(PROMPT))),),
        )
        for index in range(count)
    ]


def remainder(task: Task, reply: str) -> float:
    """A number that differs from reply to reply."""
    return float(sum(map(ord, reply)) % 7)


def config(model: Path, directory: Path, *, logprobs: bool = True) -> str:
    """The run as a user would write it."""
    letters = {
        "name": "letters",
        "data": {"kind": "benchmarks.gpu_step:prompts", "count": PROMPTS * STEPS},
        "reward": "benchmarks.gpu_step:remainder",
    }
    tree: dict[str, Any] = {
        "name": "gpu-step",
        "directory": str(directory),
        "steps": STEPS,
        "model": {"path": str(model)},
        "algorithm": "grpo",
        "tasks": [letters],
        "rollout": {
            "groups_per_step": PROMPTS,
            "group_size": SIBLINGS,
            "context": PROMPT + NEW,
            "max_new_tokens": NEW,
        },
        "actor_train": {"devices": "cuda", "dtype": "bfloat16", "tokens_per_microbatch": 32 * (PROMPT + NEW)},
        "actor_infer": {
            "backend": "vllm",
            "slots": PROMPTS * SIBLINGS,
            "prefill_tokens": 16_384,
            "kv_gib": 18,
            "seeded": False,
            "logprobs": logprobs,
        },
        "checkpoint": {"every": 0},
        "tracking": {"tensorboard": False},
    }
    return yaml.safe_dump(tree)


def phase_bounds(shape: Geometry, found: Ceilings) -> dict[str, float]:
    """Seconds that each phase takes at least, by the bytes it must move or the operations it must do.

    Generation reads all weights and everybody's keys and values for every token; the update is three products forward
    and back for each weight and token, siblings' prompts counted once, and attention; a publication reads wide weights,
    and writes and reads narrow ones on both sides. What other models say is asked of none: scoring has nothing to do.
    """
    heads, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    body = shape.layers * (shape.hidden * (2 * heads + 2 * kv) + 3 * shape.hidden * shape.mlp)
    head = shape.vocab * shape.hidden
    rows, cached = PROMPTS * SIBLINGS, 2 * 2 * kv * shape.layers
    read = NEW * 2 * (body + head) + rows * cached * sum(range(PROMPT, PROMPT + NEW))
    tokens = PROMPTS * PROMPT + rows * NEW
    seen = PROMPTS * PROMPT**2 / 2 + rows * NEW * (PROMPT + NEW / 2)
    flops = 6 * body * tokens + 6 * head * rows * NEW + 12 * shape.layers * heads * seen
    return {
        "wait": read / found.bytes_per_s,
        "score": 0.0,
        "update": flops / found.flops,
        "publish": (body + head) * (4 + 2 + 2 + 2 + 2 + 2) / found.bytes_per_s,
    }


def measured(folder: Path, *, logprobs: bool) -> dict[str, Any]:
    """What the counted steps took, phase by phase, and what they held."""
    write_qwen3(folder / "model")
    (folder / "run.yaml").write_text(config(folder / "model", folder, logprobs=logprobs), encoding="utf-8")
    loaded = load(folder / "run.yaml").run
    with closing(RunDirectory.create(folder / loaded.name, overwrite=False)) as directory:
        held = asyncio.run(train(loaded, directory))
        lines = [line for line in read_lines(directory.metrics) if WARM < line["step"] <= WARM + COUNTED]
        with closing(Journal(directory.journal)) as journal:
            published = publications([entry.event for entry in journal.events(Published)][WARM:-1])
    gaps = [round(line["gap/mean"], 4) for line in lines if "gap/mean" in line]
    return {
        "step_s": [round(line["time/step"], 3) for line in lines],
        "phases_s": {
            phase: round(statistics.median(line.get(f"time/{phase}", 0.0) for line in lines), 3) for phase in PHASES
        },
        "publication_s": published,
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1),
        "generator_gib": round(held / 2**30, 1),
        **({"gap_mean": max(gaps)} if gaps else {}),
    }


def publications(events: Sequence[Published]) -> dict[str, float]:
    """The median of each part."""
    parts = {name for event in events for name in event.seconds}
    return {
        name: round(statistics.median(event.seconds.get(name, 0.0) for event in events), 4) for name in sorted(parts)
    }


async def train(run: Run, directory: RunDirectory) -> int:
    """What `roll train` does, but for the token that would end a reply; gives the bytes held before the first step."""
    roles = build_roles(run, run.actor_train.optimizer, run.steps)
    roles.template.eos_ids = frozenset()
    data = build_data(run, run.tasks, roles.template)
    await roles.start()
    held = torch.cuda.memory_allocated()
    with ExitStack() as stack:
        interrupt = stack.enter_context(Interrupt())
        journal = stack.enter_context(closing(Journal(directory.journal)))
        keeper = build_keeper(run, directory, roles, journal)
        reporter = stack.enter_context(closing(build_reporter(run, directory, None)))
        stack.enter_context(startup_set_aside())
        await build_loop(run, roles, data, Books(journal, keeper, reporter, interrupt)).run()
    await roles.stop()
    lengths = {line["tokens/generated"] for line in read_lines(directory.metrics) if line["step"]}
    assert lengths == {float(PROMPTS * SIBLINGS * NEW)}, f"replies were cut short: {lengths}"
    return held


def main(side: str) -> None:
    """One of the two measurements; its numbers are the last line."""
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        found = measured(Path(folder), logprobs=side == "with")
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
