"""Whole GRPO steps on the CPU, ours against TRL's, with the same model shape, prompts, siblings and response length.

Ours is the real loop with journal, metrics and verified weight syncs. TRL runs in a separate virtual environment, which
is created on first use. No response can end early on either side.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing, redirect_stdout
from itertools import pairwise
from pathlib import Path

import typer
import yaml

from benchmarks.environment import Unavailable, cache_directory, interpreter
from benchmarks.result import Result
from roll.allocator import foreign_environment, freeze_startup_objects
from roll.config.load import load
from roll.config.schema import Run
from roll.journal.store import Journal
from roll.pipelines.interrupt import Interrupt
from roll.tracking.directory import RunDirectory
from roll.tracking.sinks import read_lines
from roll.types import Message, Task
from roll.wiring.data import build_data
from roll.wiring.models import build_roles
from roll.wiring.run import RunServices, build_checkpointer, build_loop, build_reporter

REQUIREMENTS = ("torch==2.13.0", "transformers==5.19.0", "trl==1.16.0")
ROUNDS = 2
PROMPTS, SIBLINGS, NEW_TOKENS, STEPS, THREADS, LR = 16, 8, 32, 8, 2, 1e-3
VOCAB = 64
ALPHABET = "0123456789+=abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUV"
"""60 characters; with four special tokens the vocabulary has 64."""
SHAPE = {"hidden": 192, "layers": 4, "heads": 4, "kv_heads": 2, "mlp": 512, "max_seq_len": 64}


def run() -> Result:
    """Trajectories per second of each side: the median step of two alternating rounds, without their first steps."""
    try:
        python = _peer_python()
    except Unavailable as reason:
        return Result(name="trl_cpu", unit="trajectories/s", higher_is_better=True, skipped=str(reason))
    ours: list[float] = []
    peer: list[float] = []
    lean: list[float] = []
    tuned: list[float] = []
    default_env, tuned_env = foreign_environment(), dict(os.environ)
    sides = (
        ("ours", ours, _ours),
        ("TRL", peer, lambda: _peer(python, default_env, checkpointing=True)),
        ("TRL without gradient checkpointing", lean, lambda: _peer(python, default_env, checkpointing=False)),
        ("the same with our allocator setting", tuned, lambda: _peer(python, tuned_env, checkpointing=False)),
    )
    for number in range(1, ROUNDS + 1):
        for side, steps, measure in sides:
            steps += measure()
            typer.echo(f"round {number} of {ROUNDS}: {side} {statistics.median(steps):.3f} s per step")
    return Result(
        name="trl_cpu",
        unit="trajectories/s",
        higher_is_better=True,
        ours=_speed(ours),
        peer=_speed(peer),
        details={
            "ours_step_s": [round(seconds, 3) for seconds in ours],
            "peer_step_s": [round(seconds, 3) for seconds in peer],
            "peer_without_checkpointing_step_s": [round(seconds, 3) for seconds in lean],
            "peer_tuned_step_s": [round(seconds, 3) for seconds in tuned],
            "ratio_without_checkpointing": round(_speed(ours) / _speed(lean), 2),
            "ratio_tuned": round(_speed(ours) / _speed(tuned), 2),
        },
    )


def prompts(count: int) -> list[Task]:
    """Sums such as `12+34=`; the reward ignores their answers."""
    rng = random.Random(0)
    texts = [f"{rng.randrange(100)}+{rng.randrange(100)}=" for _ in range(count)]
    return [
        Task(id=str(index), domain="sums", messages=(Message("user", text),), answer="")
        for index, text in enumerate(texts)
    ]


def distinct_characters(task: Task, response: str) -> float:
    """Number of distinct characters in the response."""
    return float(len(set(response)))


def config(directory: Path) -> str:
    """The run's config, as a user would write it in YAML."""
    sums = {
        "name": "sums",
        "data": {"kind": "benchmarks.trl_cpu:prompts", "count": PROMPTS * STEPS},
        "reward": "benchmarks.trl_cpu:distinct_characters",
    }
    tree = {
        "name": "trl-cpu",
        "directory": str(directory),
        "threads": THREADS,
        "steps": STEPS,
        "model": {"shape": {"architecture": "qwen3", "alphabet": ALPHABET, **SHAPE}},
        "algorithm": "grpo",
        "tasks": [sums],
        "rollout": {
            "groups_per_step": PROMPTS,
            "group_size": SIBLINGS,
            "max_seq_len": SHAPE["max_seq_len"],
            "max_new_tokens": NEW_TOKENS,
        },
        "actor_train": {"devices": "cpu", "optimizer": {"lr": LR}},
        "actor_infer": {"max_num_seqs": PROMPTS * SIBLINGS},
        "checkpoint": {"every": 0},
    }
    return yaml.safe_dump(tree)


def _ours() -> list[float]:
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        path = Path(folder, "run.yaml")
        path.write_text(config(Path(folder)), encoding="utf-8")
        run = load(path).run
        with closing(RunDirectory.create(Path(folder, run.name), overwrite=False)) as directory:
            asyncio.run(_train(run, directory))
            return _step_seconds([line["time"] for line in read_lines(directory.metrics)])


async def _train(run: Run, directory: RunDirectory) -> None:
    """Run `roll train` without end-of-sequence tokens."""
    roles = build_roles(run, run.actor_train.optimizer, run.steps)
    roles.template.eos_ids = frozenset()
    data = build_data(run, run.tasks, roles.template)
    await roles.start()
    with ExitStack() as stack:
        stack.enter_context(freeze_startup_objects())
        interrupt = stack.enter_context(Interrupt())
        journal = stack.enter_context(closing(Journal(directory.journal)))
        checkpointer = build_checkpointer(run, directory, roles, journal)
        reporter = stack.enter_context(closing(build_reporter(run, directory)))
        await build_loop(run, roles, data, RunServices(journal, checkpointer, reporter, interrupt)).run()
    await roles.stop()
    lengths = {line["tokens/generated"] for line in read_lines(directory.metrics) if line["step"]}
    assert lengths == {float(PROMPTS * SIBLINGS * NEW_TOKENS)}, f"responses ended early: {lengths}"


def _step_seconds(reported: Sequence[float]) -> list[float]:
    """Step durations from report times, step 0 first; without step 1 and without the last, which saves the model."""
    assert len(reported) == STEPS + 1, "one report before the first step, and one after each"
    return [after - before for before, after in pairwise(reported)][1:-1]


def _peer_python() -> Path:
    directory = cache_directory() / "trl-1.16"
    typer.echo(f"TRL's environment: {directory} (created on first use, which takes minutes)")
    return interpreter(directory, REQUIREMENTS)


def _peer(python: Path, environment: dict[str, str], *, checkpointing: bool) -> list[float]:
    """TRL's seconds per step; `-P` keeps our modules out of its imports."""
    work = {
        "prompts": PROMPTS,
        "siblings": SIBLINGS,
        "new_tokens": NEW_TOKENS,
        "steps": STEPS,
        "threads": THREADS,
        "lr": LR,
        "gradient_checkpointing": checkpointing,
        "vocab": VOCAB,
        "alphabet": ALPHABET,
        "shape": SHAPE,
    }
    script = Path(__file__).with_name("trl_peer.py")
    process = subprocess.run(
        [str(python), "-P", str(script), json.dumps(work)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=environment,
    )
    step_s: list[float] = json.loads(process.stdout.splitlines()[-1])["step_s"]
    return step_s


def _speed(steps: Sequence[float]) -> float:
    return PROMPTS * SIBLINGS / statistics.median(steps)
