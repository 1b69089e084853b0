"""Ray on a busy machine: its start is repeated until `ray.start_timeout_s`."""

import os
import socket
import subprocess
import sys

import pytest

from roll.cluster.ray.environment import start_repeatedly

SLOW = "The current node timed out during startup. This could happen because some of the raylet failed to\nstart"


class BusyMachine:
    """A start of Ray that takes 60 seconds and fails as long as it has errors left."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.time_s, self.num_cleaned = list(errors), 0.0, 0

    def start(self) -> None:
        self.time_s += 60
        if self.errors:
            raise self.errors.pop(0)

    def clean_up(self) -> None:
        self.num_cleaned += 1

    def run(self, timeout_s: float) -> None:
        start_repeatedly(self.start, self.clean_up, timeout_s, clock=lambda: self.time_s)


def test_a_start_of_ray_that_is_too_slow_is_repeated_until_the_timeout(caplog: pytest.LogCaptureFixture) -> None:
    machine = BusyMachine(Exception(SLOW), RuntimeError("Failed to start GCS."))
    machine.run(300)
    assert caplog.messages[-1] == "Ray has not started (Failed to start GCS.); trying again"
    assert (machine.time_s, machine.num_cleaned) == (180, 2)
    slow = BusyMachine(*(Exception(SLOW) for _ in range(9)))
    with pytest.raises(TimeoutError, match=r"timed out during startup[^\n]*$"):
        slow.run(300)
    assert (slow.time_s, slow.num_cleaned) == (300, 5)


def test_a_start_of_ray_that_fails_for_another_reason_is_not_repeated() -> None:
    machine = BusyMachine(RuntimeError("Version mismatch: the cluster has Ray 1.0"))
    with pytest.raises(RuntimeError, match="Version mismatch"):
        machine.run(300)
    assert machine.num_cleaned == 1


MUTE = """
import sys
from roll.cluster.ray.environment import set_ray_environment
set_ray_environment()
from roll.cluster.ray.connection import wait_for_nodes
wait_for_nodes(sys.argv[1], lambda nodes: True, timeout_s=1.0)
"""


@pytest.mark.sweep
@pytest.mark.slow
def test_an_address_that_accepts_connections_and_never_replies_names_the_key() -> None:
    environment = {**os.environ, "RAY_gcs_server_port_wait_time_s": "1", "RAY_gcs_server_request_timeout_seconds": "1"}
    with socket.create_server(("", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        command = [sys.executable, "-c", MUTE, address]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert f"NoCluster: ray.start_timeout_s: Ray at {address} was not ready in 1 s" in done.stderr
