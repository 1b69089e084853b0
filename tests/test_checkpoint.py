import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from roll.checkpoint import Checkpoints, read_state, write_state
from roll.errors import ConfigError, RunStopped

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
WRITE = """
import asyncio
def write(checkpoints, step, fill, **options):
    async def filling(directory):
        fill(directory)
    return asyncio.run(checkpoints.write(step, filling, **options))
"""
"""For another process, which cannot see ours."""


def write(checkpoints: Checkpoints, step: int, fill: Callable[[Path], None], **options: float | None) -> Path:
    async def filling(directory: Path) -> None:
        fill(directory)

    return asyncio.run(checkpoints.write(step, filling, **options))


def holding(text: str) -> Callable[[Path], None]:
    def fill(directory: Path) -> None:
        (directory / "model").mkdir()
        (directory / "model" / "weights").write_text(text)

    return fill


def text_of(path: Path | None) -> str:
    assert path is not None
    return (path / "model" / "weights").read_text()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def run_python(code: str, directory: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", WRITE + code],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_the_latest_is_the_highest_step_and_not_the_last_by_name(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=3)
    assert checkpoints.latest() is None and checkpoints.best() is None
    for step in (9, 10):
        write(checkpoints, step, holding(str(step)))
    assert text_of(checkpoints.latest()) == "10"


def test_the_newest_and_the_best_are_kept(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step, score in ((1, 0.2), (2, 0.9), (3, 0.5), (4, None), (5, 0.8)):
        write(checkpoints, step, holding(str(step)), score=score)
    assert names(tmp_path) == ["best.json", "step-2", "step-4", "step-5"]
    assert text_of(checkpoints.best()) == "2"
    assert json.loads((tmp_path / "best.json").read_text()) == {"step": 2, "score": 0.9}
    write(checkpoints, 6, holding("6"), score=0.95)
    assert names(tmp_path) == ["best.json", "step-5", "step-6"]


def test_a_checkpoint_that_a_run_was_resumed_from_is_kept_until_another_one_is(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    for step in (1, 2, 3):
        checkpoints.pinned = 1
        write(checkpoints, step, holding(str(step)))
    assert checkpoints.steps() == [1, 3]
    checkpoints.pinned = 3
    write(checkpoints, 4, holding("4"))
    assert checkpoints.steps() == [3, 4]


def test_an_old_checkpoint_is_removed_only_after_the_new_one_exists(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    write(checkpoints, 1, holding("1"))

    def look(directory: Path) -> None:
        assert text_of(tmp_path / "step-1") == "1"
        holding("2")(directory)

    write(checkpoints, 2, look)
    assert names(tmp_path) == ["step-2"]


def test_a_step_can_be_written_again_and_its_score_with_it(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    write(checkpoints, 1, holding("before"), score=0.9)
    write(checkpoints, 1, holding("after"), score=0.4)
    assert text_of(checkpoints.best()) == "after"
    assert json.loads((tmp_path / "best.json").read_text())["score"] == 0.4
    assert names(tmp_path) == ["best.json", "step-1"]


@pytest.mark.parametrize("error", [KeyError("bug"), KeyboardInterrupt()])
def test_a_fill_that_raises_leaves_no_trace_and_keeps_its_error(error: BaseException, tmp_path: Path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    write(checkpoints, 1, holding("1"), score=0.1)

    def break_off(directory: Path) -> None:
        holding("half")(directory)
        raise error

    for step in (1, 2):
        with pytest.raises(type(error)):
            write(checkpoints, step, break_off, score=0.9)
    assert names(tmp_path) == ["best.json", "step-1"]
    assert text_of(checkpoints.latest()) == text_of(checkpoints.best()) == "1"


def test_a_write_cancelled_while_a_thread_completes_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    entered, released = threading.Event(), threading.Event()

    async def cancelled(checkpoints: Checkpoints) -> None:
        async def filling(directory: Path) -> None:
            (directory / "weights").write_text("1")

        writing = asyncio.create_task(checkpoints.write(1, filling))
        await asyncio.to_thread(entered.wait)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        released.set()

    checkpoints = Checkpoints(tmp_path, keep=1)
    complete = checkpoints._add_checksums

    def slow(directory: Path) -> None:
        entered.set()
        released.wait()
        complete(directory)

    monkeypatch.setattr(checkpoints, "_add_checksums", slow)
    asyncio.run(cancelled(checkpoints))  # waits for the thread
    assert checkpoints.steps() == [1]
    assert (tmp_path / "step-1" / "weights").read_text() == "1"


def test_a_full_disk_stops_the_run_and_says_what_to_do(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    write(checkpoints, 1, holding("1"))

    def fill(directory: Path) -> None:
        (directory / "begun").write_text("x")
        with open("/dev/full", "w") as file:
            file.write("x")

    with pytest.raises(RunStopped, match=r"step-2: .*No space left on device.*the previous one is intact"):
        write(checkpoints, 2, fill)
    assert names(tmp_path) == ["step-1"]


@pytest.mark.parametrize(
    "save",
    [
        "(directory / 'weights').write_bytes(bytes(100_000))",
        "safetensors.numpy.save_file({'w': numpy.zeros(100_000, 'f4')}, directory / 'weights')",
        "import torch; torch.save(torch.zeros(100_000), directory / 'weights')",
    ],
    ids=["plain file", "safetensors", "torch.save"],
)
def test_a_write_the_system_refuses_midway_stops_the_run(save: str, tmp_path: Path):
    code = f"""
import resource
from pathlib import Path
import numpy, safetensors.numpy
from roll.checkpoint import Checkpoints
from roll.errors import RunStopped
checkpoints = Checkpoints(Path("."), keep=1)
write(checkpoints, 1, lambda directory: (directory / "model").mkdir() or (directory / "model/weights").write_text("1"))
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
def fill(directory):
    {save}
try:
    write(checkpoints, 2, fill)
except RunStopped as error:
    print(error)
"""
    done = run_python(code, tmp_path)
    assert "step-2: could not be written" in done.stdout, done.stderr
    assert names(tmp_path) == ["step-1"] and text_of(tmp_path / "step-1") == "1"


def test_a_process_killed_midway_leaves_the_old_checkpoint_and_its_leftovers_go_at_the_next_start(tmp_path: Path):
    code = """
import os, signal
from pathlib import Path
from roll.checkpoint import Checkpoints
def fill(directory):
    (directory / "half").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
write(Checkpoints(Path("."), keep=1), 2, fill)
"""
    checkpoints = Checkpoints(tmp_path, keep=1)
    write(checkpoints, 1, holding("1"))
    assert run_python(code, tmp_path).returncode == -signal.SIGKILL
    assert len(names(tmp_path)) == 2  # the witness: something was left behind
    assert text_of(checkpoints.latest()) == "1"
    checkpoints.recover()
    assert names(tmp_path) == ["step-1"]


def test_a_rewrite_cut_between_its_two_renames_gets_the_old_one_back(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    write(checkpoints, 3, holding("old"))
    (tmp_path / "step-3").rename(tmp_path / ".old-step-3-99")
    (tmp_path / ".tmp-step-3-99").mkdir()
    checkpoints.recover()
    assert names(tmp_path) == ["step-3"] and text_of(checkpoints.latest()) == "old"


def test_a_rewrite_cut_after_its_second_rename_keeps_the_new_one(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    write(checkpoints, 3, holding("old"))
    (tmp_path / "step-3").rename(tmp_path / ".old-step-3-99")
    (tmp_path / "step-3").mkdir()
    holding("new")(tmp_path / "step-3")
    checkpoints.recover()
    assert names(tmp_path) == ["step-3"] and text_of(checkpoints.latest()) == "new"


def test_reading_removes_nothing(tmp_path: Path):
    (tmp_path / ".tmp-step-1-99").mkdir()
    checkpoints = Checkpoints(tmp_path, keep=1)
    assert checkpoints.latest() is None
    assert names(tmp_path) == [".tmp-step-1-99"]


def test_state_is_read_as_written(tmp_path: Path):
    state = {"step": 3, "rng": 2**127 + 1, "cursor": {"math": [1, 2]}, "none": None}
    write_state(tmp_path, state)
    assert read_state(tmp_path) == state


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[]", "a JSON object expected"),
        ('{"format": 99, "state": {}}', r"format 4 expected \(got 99\)"),
        ('{"format": 4}', "has no state"),
        (None, "no such file"),
    ],
)
def test_broken_state_is_one_line_that_names_the_file(text: str | None, said: str, tmp_path: Path):
    if text is not None:
        (tmp_path / "state.json").write_text(text)
    with pytest.raises(ConfigError, match=rf"state\.json: .*{said}") as caught:
        read_state(tmp_path)
    assert "\n" not in str(caught.value)
