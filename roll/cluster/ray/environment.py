"""Surroundings of Ray: environment variables, reachable hosts, suitable interpreters. Does not import Ray."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from roll.cluster.process_state import is_stopped
from roll.cluster.process_tree import command_of, end_processes, find_process_tree
from roll.errors import ConfigError
from roll.tracking.log import announce

_DEFAULTS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no usage reports
    "RAY_ENABLE_AUTO_CONNECT": "0",  # a call after the end starts no second cluster
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a worker sees the GPUs that its configuration names
    "RAY_prestart_worker_first_driver": "0",  # workers start on demand, none in advance
    "RAY_DEDUP_LOGS_SKIP_REGEX": "(?s).*",  # `WorkerDied` reports a worker's end instead
}
_PROBE = "import sys, ray, roll; print('%d.%d' % sys.version_info[:2], ray.__version__)"
_TIMEOUT_S = 120.0
NOTE = ".ray"
"""File in a run directory with the path of its local cluster's folder."""
_PREFIX = "roll-ray-"
"""First characters of the name of a local cluster's folder."""
_TOO_SLOW = re.compile(r"timed out|timeout|node info|Failed to (start|connect to)", re.IGNORECASE)
"""Messages of Ray about a part of it that was not ready in time."""
_SERVER_WAIT, _SERVER_WAIT_S = "RAY_gcs_server_port_wait_time_s", 30
"""The time that Ray waits for its own server, and its default."""
_WORKER_WAIT, _WORKER_WAIT_S = "RAY_worker_register_timeout_seconds", 60
"""The time after which Ray kills a new worker that has not reported, and its default."""
_ATTEMPTS = 3
"""Starts of Ray within a timeout, if its server never answers: Ray does not notice that the server has ended."""


def set_ray_environment(start_timeout_s: float = 0.0, *, local: bool = False) -> None:
    """Set variables that configure Ray in this process and its children, before Ray is imported.

    Values that the user has set are kept. `local`: for a cluster that roll starts. Ray secures it by a token, which a
    process that connects to its address sends only in this mode.
    """
    if local:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    if (wait_s := math.ceil(start_timeout_s / _ATTEMPTS)) > _SERVER_WAIT_S:
        os.environ.setdefault(_SERVER_WAIT, str(wait_s))
    if start_timeout_s > _WORKER_WAIT_S:
        os.environ.setdefault(_WORKER_WAIT, str(math.ceil(start_timeout_s)))


def extra_paths() -> tuple[str, ...]:
    """Entries of `sys.path` outside this interpreter's installation; a worker has an installation for itself."""
    entries = [Path(entry).absolute() for entry in sys.path]
    installation = {Path(sys.prefix), Path(sys.base_prefix), Path(sys.exec_prefix)}
    return tuple(str(entry) for entry in entries if not any(entry.is_relative_to(prefix) for prefix in installation))


def new_ray_folder(note: Path) -> Path:
    """A temporary folder for a local cluster, whose path is written to `note`.

    Ends the cluster of the folder that `note` names, and deletes that folder: its controller was killed.
    """
    note.parent.mkdir(parents=True, exist_ok=True)
    end_noted_cluster(note)
    # Not below the run's directory: the name of a socket is limited to 107 characters.
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp"))
    note.write_text(str(folder), encoding="utf-8")
    return folder


def end_noted_cluster(note: Path) -> None:
    """End the local cluster whose folder `note` names, if there is one, and delete both."""
    folder = Path(note.read_text(encoding="utf-8")) if note.is_file() else Path()
    if folder.name.startswith(_PREFIX):
        end_processes(find_process_tree(str(folder)), grace_s=0.0)
        shutil.rmtree(folder, ignore_errors=True)
    note.unlink(missing_ok=True)


def start_repeatedly(
    start: Callable[[], object],
    clean_up: Callable[[], object],
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Call `start` until it succeeds; TimeoutError with the last reason if it was too slow for `timeout_s`.

    Ray gives up after a fixed time, which is short on a busy machine. Errors that another attempt does not change, such
    as another version of Ray, are raised at once. `clean_up` runs after each failure.
    """
    end = clock() + timeout_s
    while True:
        try:
            start()
        except Exception as error:
            clean_up()
            if not _TOO_SLOW.search(str(error)):
                raise
            reason = str(error).partition("\n")[0]
            if clock() >= end:
                raise TimeoutError(reason) from None
            announce(f"Ray has not started ({reason}); trying again", logging.WARNING)
        else:
            return


async def check_interpreter(python: str, where: str, ray_version: str) -> None:
    """Raise `ConfigError` if `python` is missing, lacks roll, or has another version of Python or Ray than this one."""
    program = shutil.which(python)
    if program is None:
        raise ConfigError(f"{where}: no program {python}; give the path of a virtual environment's python")
    process = await asyncio.create_subprocess_exec(
        program, "-c", _PROBE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            output, errors = await process.communicate()
    except TimeoutError:
        raise ConfigError(f"{where}: {python} did not reply within {_TIMEOUT_S:g} s; try it by hand") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        reason = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise ConfigError(f"{where}: {python} cannot import roll and ray ({reason}); install roll there")
    theirs, ours = output.decode().split(), [f"{sys.version_info[0]}.{sys.version_info[1]}", ray_version]
    if theirs != ours:
        raise ConfigError(
            f"{where}: {python} has Python {theirs[0]} and Ray {theirs[1]}, this process {ours[0]} and {ours[1]}; "
            "install the same there"
        )


async def wait_until_unreachable(address: str, every_s: float, misses: int, folder: Path | None = None) -> None:
    """Return once connecting to `host:port` has failed `misses` times in a row.

    The same if the raylet of the local cluster in `folder`, its only node, has ended or is stopped.
    """
    processes = [] if folder is None else find_process_tree(str(folder))
    raylets = [process for process in processes if Path(command_of(process.pid).partition("\0")[0]).name == "raylet"]
    missed = 0
    while missed < misses:
        await asyncio.sleep(every_s)
        runs = all(process.alive and not is_stopped(process.pid) for process in raylets)
        missed = 0 if runs and await accepts_connections(address, every_s) else missed + 1


async def accepts_connections(address: str, timeout_s: float) -> bool:
    """Whether a connection to `host:port` succeeds."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except (OSError, TimeoutError, ValueError, OverflowError):
        return False
    writer.transport.abort()
    return True
