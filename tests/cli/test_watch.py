"""`roll watch` as a command."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Generator
from pathlib import Path

import pytest


@contextlib.contextmanager
def watching(directory: Path, *options: str) -> Generator[tuple[subprocess.Popen[str], str]]:
    """The command and the line it prints."""
    command = [sys.executable, "-m", "roll", "watch", str(directory), "--no-open", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def test_a_place_without_a_run_is_one_line(folder: Path, roll: Callable) -> None:
    assert roll("watch", "nowhere", "--no-open").fault(2).startswith("nowhere: no such directory")
    (folder / "empty").mkdir()
    assert roll("watch", "empty", "--no-open").fault(2).startswith("empty: no run here")


def test_an_address_that_other_machines_can_reach_is_refused(folder: Path, roll: Callable) -> None:
    (folder / "runs" / "x").mkdir(parents=True)
    (folder / "runs" / "x" / "config.yaml").write_text("steps: 1\n")
    assert "ssh -L" in roll("watch", "runs", "--no-open", "--host", "0.0.0.0").fault(2)


def test_a_port_that_is_taken_is_one_line(folder: Path, roll: Callable) -> None:
    (folder / "config.yaml").write_text("steps: 1\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = roll("watch", ".", "--no-open", "--port", port).fault(2)
    assert line.startswith(f"--port {port}: cannot listen on 127.0.0.1") and "choose another" in line


def test_no_module_of_torch_is_imported() -> None:
    code = "import sys, roll.cli, roll.watch.command; sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


@pytest.mark.slow
def test_a_real_run_is_served_until_an_interrupt(whole: tuple[Path, list]) -> None:
    folder, _ = whole
    with watching(folder / "runs") as (process, link):
        base, _, token = link.partition("/?token=")
        assert base.startswith("http://127.0.0.1:") and len(token) > 30
        pages = ["", "/api/runs", "/plain", "/plain/tiny", *(f"/api/runs/tiny/{name}" for name in VIEWS)]
        for page in [*pages, "/api/runs/tiny-sft/overview", "/api/compare?runs=tiny,tiny-sft"]:
            request = urllib.request.Request(base + page, headers={"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(request, timeout=120) as response:
                assert response.status == 200 and response.read(), page
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
        assert process.communicate()[1] == ""


VIEWS = ("state", "overview", "metrics", "samples", "facets", "scheduler", "versions", "faults", "notices", "config")


def test_the_server_has_a_low_priority(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("steps: 1\n")
    with watching(tmp_path) as (process, _):
        assert os.getpriority(os.PRIO_PROCESS, process.pid) >= 10
