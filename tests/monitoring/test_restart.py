"""A supervised run whose controller is killed serves its metrics on the same port again, and counters continue."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.monitoring.test_real_run import DEADLINE_S, RUN, fetch, value, wait_for

pytestmark = pytest.mark.slow


def controller(supervisor: int) -> int:
    """The child of the supervisor."""
    return int(Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()[0])


def test_metrics_return_on_the_same_port_after_the_controller_was_killed(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    (tmp_path / "run.yaml").write_text(RUN.replace("port: 0", f"port: {port}"))
    with (tmp_path / "out").open("w") as out:
        command = [sys.executable, "-m", "roll", "train", "run.yaml", "--supervise"]
        run = subprocess.Popen(command, cwd=tmp_path, stdout=out, stderr=out, start_new_session=True)
        try:

            def metric(name: str) -> float | None:
                assert run.poll() is None, (tmp_path / "out").read_text()
                try:
                    return value(url, name)
                except OSError:  # nothing listens yet, or the connection died with the controller
                    return None

            wait_for(lambda: metric("roll_checkpoint_step"), "a checkpoint")
            admitted = metric("roll_groups_admitted_total") or 0
            assert admitted > 0 and metric("roll_controller_restarts_total") == 0
            os.kill(controller(run.pid), signal.SIGKILL)
            wait_for(lambda: metric("roll_controller_restarts_total") or None, "the restart")
            wait_for(lambda: metric("roll_ready") or None, "the run is ready again")
            assert fetch(f"{url}/healthz")[0] == 200
            assert (metric("roll_groups_admitted_total") or 0) >= admitted and metric("roll_starts_total") == 2
            run.send_signal(signal.SIGINT)
            assert run.wait(DEADLINE_S) == 130, (tmp_path / "out").read_text()
        finally:
            os.killpg(run.pid, signal.SIGKILL) if run.poll() is None else None
            run.wait()
