"""One tiny run, made once, and helpers to call the command line."""

import contextlib
import io
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from roll.cli import main

TEXT = """\
name: tiny
deterministic: true
threads: 1
steps: 4
model:
  shape: {alphabet: "0123456789+=", hidden: 32, layers: 1, heads: 2, kv_heads: 1, mlp: 900, max_seq_len: 64}
algorithm: grpo
tasks:
  - {name: sums, data: {kind: arithmetic, count: 200}, reward: exact}
rollout: {groups_per_step: 4, group_size: 4, max_seq_len: 32, max_new_tokens: 6, max_failed_groups: 2, max_retries: 1}
actor_train: {optimizer: {lr: 1e-3}}
actor_infer: {max_num_seqs: 16}
validation:
  every: 3
  tasks: [{name: held_out, data: {kind: arithmetic, split: held_out, count: 20}, reward: exact}]
checkpoint: {every: 1}
sft: {steps: 4, batch_size: 8, validate_every: 2}
"""


START = """
import faulthandler, os, resource, signal
os.chdir({folder!r})
for number, path in zip((1, 2), {said!r}):
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
faulthandler.register(signal.SIGUSR1, all_threads=True)
{before}
from roll.cli import main
"""
FRESH = multiprocessing.get_context("forkserver")
"""Processes with all imports of a run done, so that they start fast."""
FRESH.set_forkserver_preload(
    ["roll.commands.train", "roll.commands.evaluate", "roll.cli", "torch.utils.tensorboard.writer"]
)


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    def fault(self, code: int) -> str:
        """The only line of stderr; asserts the exit code."""
        assert self.code == code, self
        (line,) = self.err.splitlines()
        return line


def call(folder: Path, *arguments: str) -> Outcome:
    """`roll` in this process, as if it had been started in `folder`."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(arguments)
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0
    return Outcome(code, out.getvalue(), err.getvalue())


class Child:
    """`roll` in a separate process, to interrupt, kill or starve."""

    def __init__(self, folder: Path, *arguments: str, before: str = "") -> None:
        self.metrics = folder / "runs" / "tiny" / "metrics.jsonl"
        self._said = [folder / f"said-{len(list(folder.glob('said-*')))}-{name}" for name in ("out", "err")]
        code = START.format(folder=str(folder), said=[str(path) for path in self._said], before=before)
        self.process = FRESH.Process(target=exec, args=(f"{code}\nmain({arguments!r})",))
        self.process.start()

    def wait_for_step(self, step: int) -> None:
        """Wait until `step` is in the metrics; the process must still be running then."""
        self.wait_until(lambda: self.metrics.is_file() and f'"step": {step},' in self.metrics.read_text())

    def wait_for(self, path: Path) -> None:
        """Wait until this file exists."""
        self.wait_until(path.exists)

    def wait_until(self, reached: Callable[[], bool]) -> None:
        """Wait until the condition holds; the process must still be running then."""
        limit = time.monotonic() + 600  # a checkpoint is synced: beside gigabytes of other writes that takes long
        while not reached():
            assert self.process.is_alive(), self.end()
            assert time.monotonic() < limit, self._stacks()
            time.sleep(0.01)

    def _stacks(self) -> str:
        """What it has printed, with the stack of each of its threads."""
        self.send(signal.SIGUSR1)
        time.sleep(1)
        return "".join(path.read_text() for path in self._said)

    def send(self, number: signal.Signals) -> None:
        assert self.process.is_alive() and self.process.pid is not None, self.end()
        os.kill(self.process.pid, number)

    def wait(self, seconds: float) -> bool:
        """Whether it has ended by then."""
        self.process.join(seconds)
        return not self.process.is_alive()

    def end(self) -> Outcome:
        assert self.wait(600), self._stacks()
        assert self.process.exitcode is not None
        return Outcome(self.process.exitcode, *(path.read_text() for path in self._said))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file `run.yaml` and nothing else."""
    (tmp_path / "run.yaml").write_text(TEXT)
    return tmp_path


@pytest.fixture
def roll(folder: Path) -> Callable[..., Outcome]:
    return lambda *arguments: call(folder, *arguments)


@pytest.fixture
def child(folder: Path) -> Callable[..., Child]:
    return lambda *arguments, **how: Child(folder, *arguments, **how)


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Outcome]]:
    """A read-only folder with an SFT run and a run, and their outcomes."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "run.yaml").write_text(TEXT)
    outcomes = [call(folder, "sft", "run.yaml"), call(folder, "train", "run.yaml", "model={path: runs/tiny-sft/model}")]
    return folder, outcomes


@pytest.fixture
def made(folder: Path, whole: tuple[Path, list[Outcome]]) -> Path:
    """A finished run of four steps with checkpoints, in `folder/runs/tiny`."""
    shutil.copytree(whole[0] / "runs", folder / "runs")
    run = folder / "runs" / "tiny"
    (run / "origin").write_text(str(folder / "run.yaml"))
    return run
