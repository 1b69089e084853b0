"""Whole runs on Ray: equal to inline ones; a killed worker is replaced or ends the run in one line."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from roll.cluster.process_state import logged_process
from roll.commands import train as commands
from roll.config.load import load
from roll.journal.events import Event, GeneratorReplaced, WeightsPublished
from roll.journal.store import Reader
from roll.preflight import preflight
from roll.tracking.sinks import read_lines
from tests.cluster.test_ray import gone

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

E = TypeVar("E", bound=Event)
RUN = """\
name: run
threads: 1
steps: 10
model: {shape: {alphabet: "0123456789+=", hidden: 16, layers: 1, heads: 2, kv_heads: 1, mlp: 32, max_seq_len: 64}}
algorithm: {recipe: grpo, loss: "beside:loss"}
tasks: [{name: sums, data: {kind: arithmetic, count: 50}, reward: "beside:even"}]
rollout: {groups_per_step: 2, group_size: 3, max_seq_len: 32, max_new_tokens: 6}
actor_train: {tokens_per_microbatch: 50, optimizer: {lr: 0.01}}
actor_infer: {max_num_seqs: 3}
validation: {every: 5, tasks: [{name: held_out, data: {kind: arithmetic, split: held_out, count: 3}, reward: exact}]}
tracking: {tensorboard: false}
"""
BESIDE = """\
def even(task, reply):
    return sum(letter in "02468" for letter in reply) / 6


def loss(tokens):
    return -tokens.logprobs * tokens.advantages, {}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A run whose loss, which the trainer computes, lies beside it."""
    (tmp_path / "beside.py").write_text(BESIDE)
    (tmp_path / "run.yaml").write_text(RUN)
    return tmp_path / "run.yaml"


@pytest.fixture
def _settings_of_torch() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


def untimed(directory: Path) -> list[dict[str, Any]]:
    """Everything reported that is not about time."""
    lines = read_lines(directory / "metrics.jsonl")
    return [{name: line[name] for name in line if not name.startswith(("time", "speed/"))} for line in lines]


@pytest.mark.sweep
@pytest.mark.usefixtures("_settings_of_torch")
def test_a_deterministic_run_on_ray_equals_the_inline_one_to_the_last_digit(ray_address: str, file: Path) -> None:
    for name, where in (
        ("inline", []),
        ("apart", ["executor=ray", "actor_infer.workers=2", "weight_sync.transport=gloo"]),
    ):
        loaded = load(file, [f"directory={file.parent}", f"name={name}", "deterministic=true", *where])
        preflight(loaded)
        commands.train(loaded, overwrite=False)
    inline, apart = (untimed(file.parent / name) for name in ("inline", "apart"))
    assert len(inline) == 11 and len({line["loss/grad_norm"] for line in inline[1:]}) == 10, "it really learns"
    assert inline == apart
    weights = [(file.parent / name / "model/model.safetensors").read_bytes() for name in ("inline", "apart")]
    assert weights[0] == weights[1]
    logs = {path.name for path in (file.parent / "apart/logs").iterdir()}
    assert logs == {"actor_train-0.log", "actor_infer-0.log", "actor_infer-1.log"}
    assert not list((file.parent / "apart").glob("weights*"))


@pytest.mark.usefixtures("_settings_of_torch")
def test_the_demo_runs_on_ray_and_its_weights_travel_over_gloo(ray_address: str, tmp_path: Path) -> None:
    small = [
        "steps=2",
        "rollout.groups_per_step=8",
        "validation.tasks.0.limit=8",
        "threads=1",
        "tracking.tensorboard=false",
    ]
    there = ["executor=ray", "weight_sync.transport=gloo", "actor_infer.workers=2", f"directory={tmp_path}"]
    loaded = load(Path(__file__).parents[2] / "examples/arithmetic.yaml", [*small, *there])
    preflight(loaded)
    commands.train(loaded, overwrite=False)
    with closing(Reader(tmp_path / "arithmetic/journal.db")) as reader:
        published = [entry.event for entry in reader.events(WeightsPublished)]
    assert [event.version for event in published] == [0, 1, 2]
    assert all({"move", "canary"} <= event.seconds.keys() for event in published), "broadcast, and tried"


@pytest.mark.usefixtures("_settings_of_torch")
def test_the_log_of_each_worker_is_json_on_request_and_chaos_still_finds_the_workers(
    ray_address: str, file: Path
) -> None:
    loaded = load(file, [f"directory={file.parent}", "executor=ray", "steps=1", "logging.format=json"])
    preflight(loaded)
    commands.train(loaded, overwrite=False)
    for role in ("actor_train", "actor_infer"):
        path = file.parent / f"run/logs/{role}-0.log"
        entries = [json.loads(line) for line in path.read_text().splitlines()]
        assert {(each["run"], each["role"], each["rank"]) for each in entries} == {("run", role, 0)}
        assert re.fullmatch(rf"{role} 0: process \d+ on \S+", entries[0]["message"])
        assert (found := logged_process(path)) is not None and found.worker == f"{role} 0"


class Process:
    """A run of the command line, in a session of its own."""

    def __init__(self, file: Path, name: str, *changes: str) -> None:
        self.directory = file.parent / name
        command = [sys.executable, "-m", "roll.cli", "train", file.name, f"name={name}", "directory=."]
        environment = dict(os.environ)
        if not any("address" in change for change in changes):
            environment.pop("RAY_AUTH_MODE", None)  # a local cluster has a token, as at a user
        self.process = subprocess.Popen(
            [*command, "executor=ray", "steps=100000", *changes],
            cwd=file.parent,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def trained(self) -> bool:
        metrics = self.directory / "metrics.jsonl"
        return metrics.is_file() and len(read_lines(metrics)) > 2

    def worker(self, name: str) -> int:
        """The process of that name: the last that its log speaks of."""
        lines = (self.directory / f"logs/{name}.log").read_text().splitlines()
        return [int(line.split()[3]) for line in lines if line.startswith(f"{name.replace('-', ' ')}: process ")][-1]

    def events(self, kind: type[E]) -> list[E]:
        with closing(Reader(self.directory / "journal.db")) as reader:
            return [entry.event for entry in reader.events(kind)]

    def log(self) -> str:
        return (self.directory / "controller.log").read_text()

    def left(self) -> list[str]:
        """What runs of it, Ray's processes included."""
        listed = subprocess.run(["ps", "-eo", "sid=,args="], capture_output=True, text=True).stdout
        return [line for line in listed.splitlines() if line.split()[0] == str(self.process.pid)]

    def ended(self) -> tuple[int, list[str]]:
        """Exit code and what was said, once everything is gone."""
        _, said = self.process.communicate(timeout=120)
        for _ in range(100):
            if not self.left():
                break
            time.sleep(0.05)
        assert not self.left()
        return self.process.returncode, said.splitlines()


def wait_for(run: Process, reached: Callable[[], bool], seconds: float = 600.0) -> None:
    """Wait for a condition while the run goes on. Workers of a run alone may take `ray.start_timeout_s` to start."""
    deadline = time.monotonic() + seconds
    while not reached():
        assert run.process.poll() is None, run.process.stderr and run.process.stderr.read()
        assert time.monotonic() < deadline, run.log()
        time.sleep(0.05)


def steps_of(run: Process) -> int:
    return len(read_lines(run.directory / "metrics.jsonl"))


def test_a_run_over_gloo_replaces_killed_generators_in_a_new_group(ray_address: str, file: Path) -> None:
    run = Process(file, "gloo", "actor_infer.workers=2", "weight_sync.transport=gloo", f"ray.address={ray_address}")
    try:
        wait_for(run, run.trained)
        for number, name in enumerate(("actor_infer-0", "actor_infer-1"), 1):
            killed = run.worker(name)
            os.kill(killed, signal.SIGKILL)
            wait_for(run, lambda number=number: len(run.events(GeneratorReplaced)) == number)
            steps = steps_of(run)
            wait_for(run, lambda steps=steps: steps_of(run) > steps + 1)
            assert run.worker(name) != killed
        os.killpg(run.process.pid, signal.SIGINT)
        code, said = run.ended()
        assert code == 130 and not any("Traceback" in line for line in said), said
        versions = [event.version for event in run.events(WeightsPublished)]
        steps_published = [event.step for event in run.events(WeightsPublished)]
        assert versions == sorted(set(versions)) and steps_published == sorted(steps_published)
        gaps = [after - before for before, after in pairwise(versions)]
        assert sum(gap > 1 for gap in gaps) == 2, "one new group for each replacement"
    finally:
        run.process.kill()
        run.process.communicate()


@pytest.mark.parametrize("transport", ["disk", pytest.param("gloo", marks=pytest.mark.faults)])
def test_a_stopped_generator_is_killed_and_replaced(transport: str, ray_address: str, file: Path) -> None:
    settings = ("actor_infer.workers=2", f"weight_sync.transport={transport}", "rollout.request_timeout_s=10")
    run = Process(file, "stopped", *settings, f"ray.address={ray_address}")
    try:
        wait_for(run, run.trained)
        stopped = run.worker("actor_infer-0")
        os.kill(stopped, signal.SIGSTOP)
        wait_for(run, lambda: bool(run.events(GeneratorReplaced)))
        reason = run.events(GeneratorReplaced)[0].reason
        assert reason.startswith(f"actor_infer 0: its process (pid {stopped}) was stopped by a signal or a debugger, ")
        assert "(rollout.request_timeout_s) and was killed" in reason and "\n" not in reason
        assert f"generator 0 is being replaced, its requests go to others or wait: {reason}" in run.log()
        assert gone(stopped), "the process does not remain"
        steps = steps_of(run)
        wait_for(run, lambda: steps_of(run) > steps + 1)
        os.killpg(run.process.pid, signal.SIGINT)
        code, said = run.ended()
        assert code == 130 and not any("Traceback" in line for line in said), said
    finally:
        run.process.kill()
        run.process.communicate()


DYING = """
import os, signal
from pathlib import Path
import torch.distributed as dist


def loss(tokens):
    if dist.get_rank() == 1 and Path("die").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return -tokens.logprobs * tokens.advantages, {}
"""


def test_if_a_rank_of_a_trainer_dies_and_is_not_replaced_the_only_line_names_it(ray_address: str, file: Path) -> None:
    (file.parent / "beside.py").write_text(BESIDE + DYING)
    ranks = ("actor_train.backend=fsdp2", "actor_train.workers=2", "actor_train.tokens_per_microbatch=1000")
    run = Process(file, "ranks", *ranks, "ray.max_replacements=0", f"ray.address={ray_address}")
    try:
        wait_for(run, run.trained)
        pids = [run.worker("actor_train-0"), run.worker("actor_train-1")]
        (file.parent / "die").touch()
        code, said = run.ended()
        assert code == 3 and len(said) == 1, said
        assert said[0].startswith(f"actor_train 1: its process (pid {pids[1]}) ended during update; "), said
        assert said[0].endswith("then `roll resume` the run") and "gloo" not in said[0]
        assert all(map(gone, pids)), "no orphans"
    finally:
        run.process.kill()
        run.process.communicate()


@pytest.mark.sweep
def test_of_two_concurrent_runs_one_loses_its_trainer_and_the_other_a_generator(ray_address: str, file: Path) -> None:
    lost, asked = (
        Process(file, "lost", "ray.max_replacements=0"),
        Process(file, "asked", *("actor_infer.workers=2", "tracking.slow_phase_s=1", f"ray.address={ray_address}")),
    )
    try:
        deadline = time.monotonic() + 300

        def wait_for(reached: Callable[[], bool], *running: Process) -> None:
            while not reached():
                assert time.monotonic() < deadline and all(each.process.poll() is None for each in running)
                time.sleep(0.05)

        wait_for(lambda: lost.trained() and asked.trained(), lost, asked)
        trainer, generator = lost.worker("actor_train-0"), asked.worker("actor_infer-0")
        os.kill(trainer, signal.SIGKILL)
        os.kill(generator, signal.SIGKILL)
        code, said = lost.ended()
        assert code == 3 and len(said) == 1, said
        assert said[0].startswith(f"actor_train 0: its process (pid {trainer}) ended during "), said
        assert said[0].endswith("; see there, then `roll resume` the run")
        assert str(lost.directory.relative_to(file.parent) / "logs/actor_train-0.log") in said[0]
        wait_for(lambda: bool(asked.events(GeneratorReplaced)), asked)
        (event,) = asked.events(GeneratorReplaced)
        assert event.generator == 0 and event.reason.startswith(f"actor_infer 0: its process (pid {generator}) ended")
        assert event.version in {each.version for each in asked.events(WeightsPublished)}
        num = len(read_lines(asked.directory / "metrics.jsonl"))
        wait_for(lambda: len(read_lines(asked.directory / "metrics.jsonl")) > num + 1, asked)
        assert asked.worker("actor_infer-0") != generator, "another process has its rank and its log"
        stopped = asked.worker("actor_train-0")
        os.kill(stopped, signal.SIGSTOP)
        line = f"waiting for actor_train 0 (pid {stopped}) for "
        wait_for(lambda: line in asked.log() and "the process is stopped (state T)" in asked.log(), asked)
        os.kill(stopped, signal.SIGCONT)
        num = len(read_lines(asked.directory / "metrics.jsonl"))
        wait_for(lambda: len(read_lines(asked.directory / "metrics.jsonl")) > num + 1, asked)
        assert "processes of actor_infer: 2 of 2 are ready" in asked.log(), "the start is in the log"
        os.killpg(asked.process.pid, signal.SIGINT)
        code, said = asked.ended()
        assert code == 130 and said[-1] == "finishing this step, then exiting; press Ctrl-C again to exit at once"
        assert all(gone(asked.worker(name)) for name in ("actor_train-0", "actor_infer-0", "actor_infer-1"))
    finally:
        for each in (lost, asked):
            each.process.kill()
            each.process.communicate()
