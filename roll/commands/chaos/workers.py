"""How the worker processes of a run are found: by the titles of Ray actors and the names of child processes."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from roll.cluster.process_tree import TrackedProcess, command_of, track
from roll.commands.chaos.outcome import ChaosPlan, InjectedFault
from roll.config.schema import Run
from roll.errors import ConfigError
from roll.journal.events import Event, GeneratorReplaced, RunStarted, WorkerReplaced

CONTROLLER = "controller"
_KIND_OF_ROLE = {"actor_infer": "generator", "actor_train": "trainer", "envs": "environment"}
"""By the role of a Ray actor; the kind of other roles is their name."""
_KIND_OF_PROCESS = {"reward worker": "reward", "environment worker": "environment"}
_RAY_KINDS = ("generator", "trainer", "reference", "critic", "teacher", "reward_model")
KINDS = (CONTROLLER, *_RAY_KINDS, "reward", "environment")
_RAY_TITLE = re.compile(r"ray::([\w+-]+) (\d+) \(")
_LOGGED = re.compile(r"^([\w+-]+ \d+): process (\d+) on (\S+)$", re.MULTILINE)
RECOVERIES = (RunStarted, GeneratorReplaced, WorkerReplaced)
"""Events that record the replacement of a worker, or the next process of the run."""


@dataclass(frozen=True, slots=True)
class Target:
    """A process that may be signalled."""

    kind: str
    worker: str
    process: TrackedProcess


def check_kinds(run: Run, plan: ChaosPlan) -> None:
    """Refuse kinds that the run has no processes of."""
    for kind in plan.kinds:
        if kind in _RAY_KINDS and run.executor != "ray":
            raise ConfigError(f"--kill {kind}: executor {run.executor} runs it in the controller; add executor=ray")
        if kind == "reward" and not run.rewards.workers:
            raise ConfigError("--kill reward: rewards run in the controller; add rewards.workers=2")
        if kind == "environment" and not run.envs.workers:
            raise ConfigError("--kill environment: environments run in the controller; add envs.workers=2")
    if CONTROLLER in plan.kinds and "STOP" in plan.signals:
        raise ConfigError("--signal STOP: nothing continues a stopped controller; use KILL, or other kinds")


def logged_workers(directory: Path) -> Iterator[TrackedProcess]:
    """Ray workers on this machine that the logs of a run name, and whose titles agree."""
    for log in (directory / "logs").glob("*.log"):
        text = log.read_text(encoding="utf-8", errors="replace")
        for name, pid, host in _LOGGED.findall(text)[-1:]:
            local = host == socket.gethostname()
            if local and command_of(int(pid)).startswith(f"ray::{name} (") and (process := track(int(pid))):
                yield process


def kind_of_role(role: str) -> str:
    """The kind of a role's workers; the role may end with the name of a policy."""
    section = role.partition("-")[0]
    return _KIND_OF_ROLE.get(section, section)


def name_of(pid: int) -> tuple[str, str] | None:
    """Kind and name of a worker's process; None for other processes."""
    command = command_of(pid)
    if title := _RAY_TITLE.match(command):
        return kind_of_role(title[1]), f"{title[1]} {title[2]}"
    words = command.rstrip("\0").split("\0")
    name, _, rank = words[-1].rpartition(" ")
    return (_KIND_OF_PROCESS[name], words[-1]) if name in _KIND_OF_PROCESS and rank.isdigit() else None


def recovers(event: Event, fault: InjectedFault) -> bool:
    """Whether an event of `RECOVERIES` may record the recovery from this fault."""
    match event:
        case GeneratorReplaced(generator=rank):
            return fault.kind == "generator" and fault.worker.endswith(f" {rank}")
        case WorkerReplaced(worker=worker):
            name, _, rank = worker.rpartition(" ")
            kind = _KIND_OF_PROCESS.get(name) or kind_of_role(name)
            # All ranks of a sharded model are replaced together.
            alone = kind in _KIND_OF_PROCESS.values()
            return kind == fault.kind and (not alone or fault.worker.endswith(f" {rank}"))
        case _:
            return fault.kind == CONTROLLER
