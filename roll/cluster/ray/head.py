"""A local Ray cluster that outlives the controllers of a supervised run.

It is the child of a process that runs this module and ends when no process holds the other end of its pipe any more:
neither the supervisor nor a controller.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from roll.cluster.process_state import is_stopped
from roll.cluster.process_tree import TrackedProcess, command_of, end_processes, find_process_tree
from roll.cluster.ray.environment import accepts_connections, new_ray_folder, set_ray_environment
from roll.cluster.ray.keeping import KeptWorkers
from roll.errors import ConfigError

_ADDRESS = "roll-address"
"""File in the folder of a cluster that controllers may use: its address and its number of CPUs."""
_CONNECT_S = 10.0
_GRACE_S = 3.0


async def find_or_start_head(note: Path, num_cpus: int, kept: KeptWorkers, timeout_s: float) -> tuple[str, Path]:
    """Address and folder of the living cluster that `note` names, or of a new one; see `mark_ready`."""
    folder = Path(note.read_text(encoding="utf-8")) if note.is_file() else Path()
    if kept.take_up and (folder / _ADDRESS).is_file():
        address, num = (folder / _ADDRESS).read_text(encoding="utf-8").split()
        (folder / _ADDRESS).unlink()
        if int(num) == num_cpus and _has_raylet(folder) and await accepts_connections(address, _CONNECT_S):
            return address, folder
    return await _start_head(note, num_cpus, kept.holders, timeout_s)


def mark_ready(folder: Path, address: str, num_cpus: int) -> None:
    """The next controller may use this cluster. One that cannot connect to it dies, and the next starts another."""
    part = folder / f"{_ADDRESS}.part"
    part.write_text(f"{address} {num_cpus}", encoding="utf-8")
    part.rename(folder / _ADDRESS)


def _has_raylet(folder: Path) -> bool:
    """Whether the cluster can run workers; its address alone may still reply."""
    raylets = (each.pid for each in find_process_tree(str(folder)) if _is_raylet(each.pid))
    return any(not is_stopped(pid) for pid in raylets)


def _is_raylet(pid: int) -> bool:
    return "raylet" in command_of(pid).partition("\0")[0]


async def _start_head(note: Path, num_cpus: int, holders: int, timeout_s: float) -> tuple[str, Path]:
    """Address and folder of a new cluster; an earlier one that `note` names ends."""
    folder = new_ray_folder(note)
    command = [sys.executable, "-m", "roll.cluster.ray.head", folder, num_cpus, holders, timeout_s]
    process = subprocess.Popen(
        list(map(str, command)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=(holders,),
        process_group=0,  # Ctrl-C reaches the supervisor alone
    )
    assert process.stdout is not None
    with process.stdout as replies:
        reply, _, text = (await asyncio.to_thread(replies.readline)).strip().partition(" ")
    if reply != "ready":
        raise ConfigError(text or f"ray: the process of a local cluster ended early (code {process.wait()}); try again")
    return text, folder


def head_processes(note: Path) -> list[TrackedProcess]:
    """The processes of the cluster that `note` names, including its workers."""
    return find_process_tree(note.read_text(encoding="utf-8")) if note.is_file() else []


def main(folder: str, num_cpus: str, holders: str, timeout_s: str) -> None:
    """Start the cluster, report it to the controller, and end it when its holders are gone."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _ignore)  # the controller still needs the cluster, to end in order
    set_ray_environment(float(timeout_s), local=True)
    from roll.cluster.ray.connection import init_ray, ray

    options: dict[str, Any] = {"address": "local", "num_cpus": int(num_cpus), "include_dashboard": False}
    try:
        init_ray({**options, "_temp_dir": folder}, ray.shutdown, float(timeout_s))
    except ConfigError as error:
        _reply(f"refused {error}")
        return
    address = ray.get_runtime_context().gcs_address
    mark_ready(Path(folder), address, int(num_cpus))
    _reply(f"ready {address}")
    os.read(int(holders), 1)  # nothing is written: returns at the end of the last holder
    processes = find_process_tree(folder)
    ray.shutdown()
    end_processes(processes, grace_s=_GRACE_S)
    shutil.rmtree(folder, ignore_errors=True)


def _ignore(number: int, frame: FrameType | None) -> None:
    """A handler: children would inherit that a signal is ignored."""


def _reply(line: str) -> None:
    """One line to the controller; later output goes nowhere."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
