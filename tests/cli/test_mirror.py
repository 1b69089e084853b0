"""Copies of checkpoints in a store: complete or not counted, and enough to continue a run on another machine."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import s3fs

from roll.journal.events import RunStarted
from roll.journal.store import Reader

pytestmark = pytest.mark.slow


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def weights(run: Path, step: int) -> bytes:
    return (run / "checkpoints" / f"step-{step}" / "model.safetensors").read_bytes()


def starts(run: Path) -> list[int | None]:
    with closing(Reader(run / "journal.db")) as reader:
        return [entry.event.resumed_from for entry in reader.events(RunStarted)]


@pytest.fixture
def store(folder: Path) -> Path:
    return folder / "store" / "tiny"


@pytest.fixture
def setting(folder: Path) -> str:
    return f"checkpoint.mirror='file://{folder / 'store'}'"


@pytest.fixture
def run(roll: Callable, folder: Path, setting: str) -> Path:
    """A run of four steps, with a copy of its checkpoints."""
    outcome = roll("train", "run.yaml", setting)
    assert outcome.code == 0, outcome
    return folder / "runs" / "tiny"


def test_the_store_has_the_checkpoints_of_the_run_with_checksums(run: Path, store: Path) -> None:
    newest = store / "step-4"
    assert {path.name for path in newest.iterdir()} == {"checkpoint", "run", "checksums.json"}
    assert (newest / "checkpoint" / "model.safetensors").read_bytes() == weights(run, 4)
    listed = json.loads((newest / "checksums.json").read_text())["files"]
    files = {"checkpoint/state.json", "checkpoint/optimizer/state.json", "run/journal.db", "run/config.yaml"}
    assert files <= set(listed)
    assert {path.name for path in store.iterdir()} <= {path.name for path in (run / "checkpoints").glob("step-*")}
    assert not (run / ".mirror").exists()


def test_a_run_continues_on_an_empty_machine_with_the_same_weights(
    roll: Callable, run: Path, store: Path, folder: Path
) -> None:
    assert roll("resume", "runs/tiny", "steps=6").code == 0
    expected = weights(run, 6)
    shutil.rmtree(store / "step-6")
    shutil.rmtree(folder / "runs")
    outcome = roll("resume", "runs/again", "--from", f"file://{store}", "steps=6")
    assert outcome.code == 0, outcome
    assert starts(folder / "runs" / "again")[-1] in (4, 5)
    assert weights(folder / "runs" / "again", 6) == expected


def test_train_resume_takes_the_checkpoint_of_the_store_where_there_is_no_run(
    roll: Callable, run: Path, store: Path, folder: Path, setting: str
) -> None:
    shutil.rmtree(folder / "runs")
    outcome = roll("train", "run.yaml", setting, "--resume")
    assert outcome.code == 0, outcome
    assert starts(folder / "runs" / "tiny")[-1] == 4


def test_a_damaged_checkpoint_is_replaced_by_its_copy(roll: Callable, run: Path) -> None:
    intact = weights(run, 4)
    flip(run / "checkpoints" / "step-4" / "model.safetensors")
    flip(run / "checkpoints" / "step-3" / "model.safetensors")
    outcome = roll("resume", "runs/tiny", "steps=5")
    assert outcome.code == 0, outcome
    assert starts(run)[-1] == 4 and weights(run, 4) == intact
    assert (run / "checkpoints" / "damaged-step-4").is_dir()


def test_a_damaged_copy_is_named_and_an_older_one_is_taken(
    roll: Callable, run: Path, store: Path, folder: Path
) -> None:
    shutil.copytree(store / "step-4", store / "step-7")
    flip(store / "step-7" / "checkpoint" / "model.safetensors")
    outcome = roll("resume", "runs/again", "--from", f"file://{store}", "steps=5")
    assert outcome.code == 0, outcome
    assert "checkpoint/model.safetensors: its content has changed" in outcome.err
    assert starts(folder / "runs" / "again")[-1] == 4


def test_a_copy_that_was_cut_off_does_not_count(
    child: Callable, roll: Callable, folder: Path, store: Path, setting: str
) -> None:
    kill = """
def die(os=os):
    from fsspec.implementations.local import LocalFileSystem
    real = LocalFileSystem.put_file
    def put_file(self, source, target, *args, **options):
        if "step-3" in target and "optimizer" in target:
            os.kill(os.getpid(), 9)
        return real(self, source, target, *args, **options)
    LocalFileSystem.put_file = put_file
die()
"""
    process = child("train", "run.yaml", setting, "steps=3", "checkpoint.keep=9", before=kill)
    assert process.end().code == -9
    assert (store / "step-3" / "checkpoint").is_dir() and not (store / "step-3" / "checksums.json").exists()
    shutil.rmtree(folder / "runs")
    outcome = roll("resume", "runs/again", "--from", f"file://{store}", "steps=4")
    if not list(store.glob("step-*/checksums.json")):  # no earlier copy was complete: only the newest ones are copied
        assert outcome.fault(2).startswith(f"file://{store}: has no complete checkpoint")
        return
    assert outcome.code == 0, outcome
    assert starts(folder / "runs" / "again")[-1] in (1, 2)


def test_a_store_that_cannot_be_reached_does_not_stop_the_run(
    roll: Callable, child: Callable, folder: Path, setting: str
) -> None:
    fail = """
def fail():
    from fsspec.implementations.local import LocalFileSystem
    def put_file(self, *args, **options):
        raise ConnectionRefusedError("nobody is there")
    LocalFileSystem.put_file = put_file
fail()
"""
    outcome = child("train", "run.yaml", setting, before=fail).end()
    assert outcome.code == 0, outcome
    assert "the run continues, and the copy is tried again" in outcome.out
    assert "step-4: given up copying it" in outcome.out and "Traceback" not in outcome.err
    assert roll("resume", "runs/tiny", "steps=5").code == 0
    assert (folder / "store" / "tiny" / "step-5" / "checksums.json").is_file()


def test_a_fresh_run_does_not_replace_the_checkpoints_of_an_earlier_one(
    roll: Callable, run: Path, store: Path, folder: Path, setting: str
) -> None:
    shutil.rmtree(folder / "runs")
    before = sorted(path for path in store.rglob("*"))
    line = roll("train", "run.yaml", setting).fault(2)
    assert line.startswith(f"file://{store}: has checkpoints of a run already")
    assert sorted(path for path in store.rglob("*")) == before and not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("ftp://127.0.0.1:1/runs", "could not be read (ConnectionRefusedError"),
        ("nowhere://runs", "cannot be used (Protocol not known: nowhere)"),
        ("runs/elsewhere", "checkpoint.mirror: must match"),
    ],
)
def test_a_wrong_address_is_one_line_before_the_start(roll: Callable, folder: Path, url: str, text: str) -> None:
    assert text in roll("train", "run.yaml", f"checkpoint.mirror='{url}'").fault(2)
    assert not (folder / "runs").exists()


def test_resume_from_a_store_refuses_an_existing_directory_and_an_empty_store(
    roll: Callable, run: Path, store: Path, folder: Path
) -> None:
    assert "exists already; give a new directory" in roll("resume", "runs/tiny", "--from", f"file://{store}").fault(2)
    line = roll("resume", "runs/new", "--from", f"file://{folder / 'empty'}").fault(2)
    assert "has no complete checkpoint" in line and not (folder / "runs" / "new").exists()


class S3Server:
    """A local server with the interface of S3; its content is lost when it ends."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_MAX_ATTEMPTS": "1",
        }
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        limit = time.monotonic() + 120
        while not self._answers():
            assert self._process.poll() is None and time.monotonic() < limit
            time.sleep(0.1)

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(60)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with closing_by_kill(S3Server()) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        s3fs.S3FileSystem(skip_instance_cache=True).mkdir("bucket")
        yield server


@contextmanager
def closing_by_kill(server: S3Server) -> Iterator[S3Server]:
    try:
        yield server
    finally:
        server.kill()


S3 = "checkpoint.mirror='s3://bucket/runs'"


def test_a_run_continues_from_object_storage_on_an_empty_machine(
    roll: Callable, folder: Path, server: S3Server
) -> None:
    outcome = roll("train", "run.yaml", S3)
    assert outcome.code == 0, outcome
    expected = weights(folder / "runs" / "tiny", 4)
    assert "has checkpoints of a run already" in roll("train", "run.yaml", S3, "directory=elsewhere").fault(2)
    shutil.rmtree(folder / "runs")
    outcome = roll("resume", "runs/again", "--from", "s3://bucket/runs/tiny", "steps=5")
    assert outcome.code == 0, outcome
    assert weights(folder / "runs" / "again", 4) == expected and starts(folder / "runs" / "again")[-1] == 4


def test_a_run_outlives_its_object_storage(child: Callable, folder: Path, server: S3Server) -> None:
    before = f"import os; os.environ.update({server.environment})"
    process = child("train", "run.yaml", S3, "steps=100000", "validation.tasks=[]", before=before)
    process.wait_for_step(3)
    server.kill()
    newest = max(int(json.loads(line)["step"]) for line in process.metrics.read_text().splitlines())
    process.wait_for_step(newest + 30)
    process.send(signal.SIGTERM)
    outcome = process.end()
    assert outcome.code == 130 and "the run continues, and the copy is tried again" in outcome.out, outcome
    assert "Traceback" not in outcome.err
