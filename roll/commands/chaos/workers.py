"""How the processes of a run are found: by titles of Ray actors, names of child processes, programs of Ray."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from roll.cluster.process_state import logged_process
from roll.cluster.process_tree import TrackedProcess, command_of, environment_of, find_children, track
from roll.commands.chaos.outcome import ChaosPlan, InjectedFault
from roll.config.schema import Run
from roll.errors import ConfigError
from roll.journal.events import (
    AttemptRetried,
    ControllerRestarted,
    Event,
    GeneratorReplaced,
    WeightsPublished,
    WorkerReplaced,
)

CONTROLLER, AGENT, RAYLET, TRANSFER = "controller", "agent", "raylet", "transfer"
_KIND_OF_ROLE = {"actor_infer": "generator", "actor_train": "trainer", "envs": "environment"}
"""By the role of a Ray actor; the kind of other roles is their name."""
_KIND_OF_PROCESS = {"reward worker": "reward", "environment worker": "environment"}
_RAY_KINDS = ("generator", "trainer", "reference", "critic", "teacher", "reward_model", RAYLET, TRANSFER)
KINDS = (CONTROLLER, *_RAY_KINDS, "reward", "environment", AGENT)
_RAY_TITLE = re.compile(r"ray::([\w+-]+) (\d+) \(")
_ADDRESS = "OPENAI_BASE_URL"
IMPOSSIBLE = {(RAYLET, "exception"): "a raylet runs no Python"}
"""Faults that a kind cannot have, with the reason."""
RECOVERIES = (ControllerRestarted, GeneratorReplaced, WorkerReplaced, AttemptRetried, WeightsPublished)
"""Events that may record a recovery."""


@dataclass(frozen=True, slots=True)
class Target:
    """A process that may be hit."""

    kind: str
    worker: str
    process: TrackedProcess
    sends: bool = False
    """Of a transfer of weights: whether it is the sender, else a receiver."""


def check_kinds(run: Run, plan: ChaosPlan) -> None:
    """Refuse kinds that the run has no processes of, and faults that they cannot have."""
    for kind in plan.kinds:
        if kind in _RAY_KINDS and run.executor != "ray":
            raise ConfigError(f"--kill {kind}: executor {run.executor} runs it in the controller; add executor=ray")
        if kind == "reward" and not run.rewards.workers:
            raise ConfigError("--kill reward: rewards run in the controller; add rewards.workers=2")
        if kind == "environment" and not run.envs.workers:
            raise ConfigError("--kill environment: environments run in the controller; add envs.workers=2")
        if kind == AGENT and not any(task.agent is not None and not task.agent.preload for task in run.tasks):
            raise ConfigError("--kill agent: no task has an agent without preload, which forks its processes; add one")
        reasons = [IMPOSSIBLE.get((kind, fault), "") for fault in plan.faults]
        if all(reasons):
            raise ConfigError(
                f"--kill {kind} --fault {','.join(plan.faults)}: {reasons[0]}; give other faults or kinds"
            )
        if kind in _RAY_KINDS and run.ray.address is not None and (kind == TRANSFER or "exception" in plan.faults):
            raise ConfigError(f"--kill {kind}: processes of {run.ray.address} meet no planted fault; drop ray.address")


def find_targets(supervisor: int, members: list[TrackedProcess]) -> Iterator[Target]:
    """Processes of the run that may be hit, without transfers."""
    command = command_of(supervisor)
    for process in find_children(supervisor):
        if command_of(process.pid) == command:
            yield Target(CONTROLLER, CONTROLLER, process)
    for process in members:
        if (name := name_of(process.pid)) is not None:
            yield Target(*name, process)


def transfer_targets(targets: list[Target], *, sends: bool) -> list[Target]:
    """The sender of weights, or their receivers."""
    kind = "trainer" if sends else "generator"
    senders = [target for target in targets if target.kind == kind and (not sends or target.worker.endswith(" 0"))]
    return [Target(TRANSFER, target.worker, target.process, sends) for target in senders]


def logged_workers(directory: Path) -> Iterator[TrackedProcess]:
    """Ray workers on this machine that the logs of a run name, and whose titles agree."""
    for log in (directory / "logs").glob("*.log"):
        found = logged_process(log)
        if found is None or found.machine != socket.gethostname():
            continue
        if command_of(found.pid).startswith(f"ray::{found.worker} (") and (process := track(found.pid)):
            yield process


def kind_of_role(role: str) -> str:
    """The kind of a role's workers; the role may end with the name of a policy."""
    section = role.partition("-")[0]
    return _KIND_OF_ROLE.get(section, section)


def name_of(pid: int) -> tuple[str, str] | None:
    """Kind and name of a process that may be hit; None for other processes."""
    command = command_of(pid)
    if title := _RAY_TITLE.match(command):
        return kind_of_role(title[1]), f"{title[1]} {title[2]}"
    words = command.rstrip("\0").split("\0")
    if Path(words[0]).name == RAYLET:
        return RAYLET, RAYLET
    name, _, rank = words[-1].rpartition(" ")
    if name in _KIND_OF_PROCESS and rank.isdigit():
        return _KIND_OF_PROCESS[name], words[-1]
    address = environment_of(pid).get(_ADDRESS)
    return (
        (AGENT, f"{AGENT} {pid}") if address not in (None, os.environ.get(_ADDRESS)) and _leads_session(pid) else None
    )


def _leads_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def recovers(event: Event, fault: InjectedFault, *, after_s: float = 0.0) -> bool:
    """Whether an event of `RECOVERIES`, so many seconds after a fault, may record the recovery from it."""
    role, _, rank = fault.worker.rpartition(" ")
    match event:
        case ControllerRestarted():
            return True
        case GeneratorReplaced(generator=generator):
            return kind_of_role(role) == "generator" and rank == str(generator)
        case WorkerReplaced(worker=worker):
            name, _, of = worker.rpartition(" ")
            kind = _KIND_OF_PROCESS.get(name) or kind_of_role(name)
            # All ranks of a sharded model are replaced together.
            alone = kind in _KIND_OF_PROCESS.values()
            return kind == (_KIND_OF_PROCESS.get(role) or kind_of_role(role)) and (not alone or rank == of)
        case AttemptRetried(reason=reason):
            return fault.text in reason if fault.text else fault.kind == AGENT and "agent of task" in reason
        case WeightsPublished():
            return fault.fault == "slow" and after_s > fault.slow_s
        case _:
            return False
