"""Whole GRPO steps on one GPU with the native generator, and a lower bound for each phase.

The model has the shape of Qwen3-0.6B and random weights; 32 prompts of 128 tokens, 8 responses of 512 tokens each, one
optimizer step. It is the real loop, with journal, metrics and verified weight syncs. No response can end early. The
native generator always returns the sampler's logprobs. vLLM as the generator, and TRL, do the same work where they are
installed, each in a process of its own.
"""

from __future__ import annotations

import asyncio
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
from roll.allocator import freeze_startup_objects
from roll.config.load import load
from roll.config.schema import Run
from roll.engines.native.decoder import Geometry, geometry
from roll.journal.events import WeightsPublished
from roll.journal.store import Journal
from roll.pipelines.interrupt import Interrupt
from roll.tracking.directory import RunDirectory
from roll.tracking.sinks import read_lines
from roll.types import Message, Task
from roll.wiring.data import build_data
from roll.wiring.models import build_roles
from roll.wiring.run import RunServices, build_checkpointer, build_loop, build_reporter

BOUND_S = 4.0
PROMPTS, SIBLINGS, PROMPT, NEW = 32, 8, 128, 512
WARM, COUNTED = 2, 5
STEPS = WARM + COUNTED + 1
"""The last step saves the model and is not counted."""
PHASES = ("wait", "score", "update", "publish")


def run() -> Result:
    """Seconds per step: the median of five after two warm-up steps, against 4 s."""
    if reason := missing(vllm=False):
        return Result(name="gpu_step", unit="s per step", higher_is_better=False, skipped=reason)
    peak = ceilings()
    typer.echo(f"device: {peak.bytes_per_s / 1e12:.2f} TB/s copied, {peak.flops / 1e12:.0f} TFLOP/s")
    bounds = phase_bounds(geometry(qwen3()), peak)
    backends = ["native", *(["vllm"] if importlib.util.find_spec("vllm") else [])]
    sides = {backend: _run_python("-m", "benchmarks.gpu_step", backend) for backend in backends}
    for backend, side in sides.items():
        typer.echo(f"generator {backend}: {statistics.median(side['step_s']):.3f} s per step")
        for phase, seconds in side["phases_s"].items():
            typer.echo(f"  {phase:<8} {seconds:6.3f} s; bound {bounds[phase]:.3f} s")
    ours = statistics.median(sides["native"]["step_s"])
    details: dict[str, Any] = {
        **sides,
        "bounds_s": {phase: round(seconds, 3) for phase, seconds in bounds.items()},
        "tokens_per_s": round(PROMPTS * SIBLINGS * NEW / ours),
        "device": torch.cuda.get_device_name(),
        "torch": str(torch.__version__),
        "trl": _peer(ours),
    }
    return Result(name="gpu_step", unit="s per step", higher_is_better=False, ours=ours, bound=BOUND_S, details=details)


def _peer(ours: float) -> dict[str, Any] | str:
    """TRL's numbers for the same work, or the reason why there are none."""
    if not importlib.util.find_spec("trl"):
        return "not installed"
    work = {"prompts": PROMPTS, "siblings": SIBLINGS, "prompt": PROMPT, "new_tokens": NEW, "steps": STEPS}
    with tempfile.TemporaryDirectory() as folder:
        write_qwen3(Path(folder, "model"))
        script = Path(__file__).with_name("trl_gpu_peer.py")
        try:
            numbers = _run_python("-P", str(script), json.dumps({**work, "model": f"{folder}/model"}))
        except subprocess.CalledProcessError as error:
            return f"installed, but failed with exit code {error.returncode}; see its output above"
    seconds = statistics.median(numbers["step_s"][WARM:])
    typer.echo(f"TRL {numbers['version']}: {seconds:.3f} s per step, {seconds / ours:.2f} times ours")
    return {**numbers, "median_s": round(seconds, 3), "of_ours": round(seconds / ours, 3)}


def _run_python(*arguments: str) -> dict[str, Any]:
    """Run Python in a separate process and parse the last line of its stdout as JSON; stderr is shared with ours."""
    process = subprocess.run([sys.executable, *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(process.stdout.splitlines()[-1])


def prompts(count: int) -> list[Task]:
    """Prompts of 128 characters drawn from the whole vocabulary."""
    rng, letters = random.Random(0), alphabet()
    return [
        Task(
            id=str(index),
            domain="letters",
            messages=(Message("user", "".join(rng.choice(letters) for _ in range(PROMPT))),),
        )
        for index in range(count)
    ]


def remainder(task: Task, response: str) -> float:
    """A reward that varies between responses."""
    return float(sum(map(ord, response)) % 7)


def config(model: Path, directory: Path, *, backend: str = "native") -> str:
    """The run's config, as a user would write it in YAML."""
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
            "max_seq_len": PROMPT + NEW,
            "max_new_tokens": NEW,
        },
        "actor_train": {"devices": "cuda", "dtype": "bfloat16", "tokens_per_microbatch": 32 * (PROMPT + NEW)},
        "actor_infer": {
            "backend": backend,
            "max_num_seqs": PROMPTS * SIBLINGS,
            "max_num_batched_tokens": 16_384,
            "kv_cache_gib": 16.5,
            **({"per_request_seed": False} if backend == "vllm" else {}),
        },
        "checkpoint": {"every": 0},
        "tracking": {"tensorboard": False},
    }
    return yaml.safe_dump(tree)


def phase_bounds(shape: Geometry, peak: Ceilings) -> dict[str, float]:
    """Lower bound of each phase in seconds, from the bytes it must move or the operations it must do.

    Generation reads all weights and the keys and values of all sequences for every token. The update has three matrix
    products, forward and backward, per weight and token, with siblings' prompts counted once, plus attention. A weight
    sync reads 32-bit weights, and writes and reads 16-bit ones on both sides. Scoring has no other model to run.
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
        "wait": read / peak.bytes_per_s,
        "score": 0.0,
        "update": flops / peak.flops,
        "publish": (body + head) * (4 + 2 + 2 + 2 + 2 + 2) / peak.bytes_per_s,
    }


def measure(folder: Path, *, backend: str) -> dict[str, Any]:
    """Seconds of the counted steps, by phase, and their memory."""
    write_qwen3(folder / "model")
    (folder / "run.yaml").write_text(config(folder / "model", folder, backend=backend), encoding="utf-8")
    loaded = load(folder / "run.yaml").run
    with closing(RunDirectory.create(folder / loaded.name, overwrite=False)) as directory:
        generator_bytes = asyncio.run(train(loaded, directory))
        lines = [line for line in read_lines(directory.metrics) if WARM < line["step"] <= WARM + COUNTED]
        with closing(Journal(directory.journal)) as journal:
            sync_s = median_parts([entry.event for entry in journal.events(WeightsPublished)][WARM:-1])
    mismatches = [round(line["sampler_mismatch/mean"], 4) for line in lines if "sampler_mismatch/mean" in line]
    return {
        "step_s": [round(line["time/step"], 3) for line in lines],
        "phases_s": {
            phase: round(statistics.median(line.get(f"time/{phase}", 0.0) for line in lines), 3) for phase in PHASES
        },
        "publication_s": sync_s,
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1),
        "generator_gib": round(generator_bytes / 2**30, 1),
        **({"gap_mean": max(mismatches)} if mismatches else {}),
    }


def median_parts(events: Sequence[WeightsPublished]) -> dict[str, float]:
    """Median seconds of each part of a weight sync."""
    parts = {name for event in events for name in event.seconds}
    return {
        name: round(statistics.median(event.seconds.get(name, 0.0) for event in events), 4) for name in sorted(parts)
    }


async def train(run: Run, directory: RunDirectory) -> int:
    """Run `roll train` without end-of-sequence tokens; returns the bytes allocated before the first step."""
    roles = build_roles(run, run.actor_train.optimizer, run.steps)
    roles.template.eos_ids = frozenset()
    data = build_data(run, run.tasks, roles.template)
    await roles.start()
    allocated = torch.cuda.memory_allocated()
    with ExitStack() as stack:
        interrupt = stack.enter_context(Interrupt())
        journal = stack.enter_context(closing(Journal(directory.journal)))
        checkpointer = build_checkpointer(run, directory, roles, journal)
        reporter = stack.enter_context(closing(build_reporter(run, directory)))
        stack.enter_context(freeze_startup_objects())
        await build_loop(run, roles, data, RunServices(journal, checkpointer, reporter, interrupt)).run()
    await roles.stop()
    lengths = {line["tokens/generated"] for line in read_lines(directory.metrics) if line["step"]}
    assert lengths == {float(PROMPTS * SIBLINGS * NEW)}, f"responses ended early: {lengths}"
    return allocated


def main(backend: str) -> None:
    """Measure with one generator, and print the numbers as the last line."""
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        numbers = measure(Path(folder), backend=backend)
    sys.stdout.write(json.dumps(numbers) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
