"""Runs on a file system of a few megabytes that is full or read-only for a while."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SCRIPT = """
set -eu
mkdir runs
mount -t tmpfs -o size=64m none runs
python -m roll train run.yaml steps=100000 validation.every=5 > out-1 2> err-1 & pid=$!
wait_for() { for _ in $(seq 6000); do if eval "$1"; then return; fi; kill -0 $pid || break; sleep 0.05; done
    echo "no: $1"; cat out-1 err-1; kill -9 $pid; exit 9; }
wait_for '[ -d runs/tiny/checkpoints/step-3 ]'
"""
RESUME = """
ls -a runs/tiny/checkpoints > left
newest=$(ls runs/tiny/checkpoints | sed -n 's/^step-//p' | sort -n | tail -1)
python -m roll resume runs/tiny steps=$((newest + 2)) checkpoint.every=1 > out-2 2> err-2
"""
FULL = """
dd if=/dev/zero of=runs/large bs=64k 2> /dev/null || true
wait $pid && code=0 || code=$?
echo $code > code
rm runs/large
"""
READ_ONLY = """
mount --bind runs runs
until mount -o remount,ro,bind runs; do sleep 0.1; done  # busy while a file is being written
wait_for 'grep -q "step-.*could not be written" out-1 && grep -q "held_out: .*not written" out-1'
umount runs
first=$(ls runs/tiny/checkpoints | sed -n 's/^step-//p' | sort -n | tail -1)
wait_for '[ "$(ls runs/tiny/checkpoints | sed -n "s/^step-//p" | sort -n | tail -1)" -gt $((first + 1)) ]'
kill -TERM $pid
wait $pid && code=0 || code=$?
echo $code > code
"""


def run_script(folder: Path, script: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    options = {"cwd": folder, "env": environment, "capture_output": True, "text": True}
    if subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"], **options).returncode:
        pytest.skip("no file system can be mounted in a user namespace here")
    done = subprocess.run(["unshare", "-rm", "bash", "-c", SCRIPT + script + RESUME], timeout=900, **options)
    texts = {path.name: path.read_text() for path in folder.glob("*-[12]")}
    assert done.returncode == 0, (done.stdout, done.stderr, texts)


def test_a_full_disk_stops_the_run_in_one_line_and_it_resumes_once_there_is_space(folder: Path) -> None:
    run_script(folder, FULL)
    assert (folder / "code").read_text() == "3\n"
    (line,) = (folder / "err-1").read_text().splitlines()
    assert line.startswith("runs/tiny/") and "could not be written" in line and "free some space" in line
    assert ".tmp" not in (folder / "left").read_text()
    assert "Traceback" not in (folder / "err-2").read_text()


def test_a_run_continues_while_its_checkpoints_cannot_be_written(folder: Path) -> None:
    run_script(folder, READ_ONLY)
    assert (folder / "code").read_text() == "130\n"
    lines = (folder / "out-1").read_text().splitlines()
    failed = [line for line in lines if "could not be written" in line]
    assert failed and all("Read-only file system" in line and "the run continues" in line for line in failed)
    assert "Traceback" not in (folder / "err-1").read_text()
    assert ".tmp" not in (folder / "left").read_text()
