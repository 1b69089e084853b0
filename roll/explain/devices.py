"""What runs where, in words."""

from __future__ import annotations

from typing import Any

from roll.config.devices import device_text, one_device
from roll.config.schema import Run
from roll.placement.facts import roles_of


def placement(run: Run) -> str:
    """What runs where, in one line."""
    roles = roles_of(run)
    if run.executor == "inline":
        return f"inline: {', '.join(roles)} in one process"
    told = [f"{role} in {_workers(section)}" for role, section in roles.items()]
    return f"ray ({_cluster(run)}): {', '.join(told)}"


def places_in_words(run: Run) -> list[tuple[str, str]]:
    """A row for each role, and for what they share."""
    train, infer = run.actor_train, run.actor_infer
    rows = {
        "actor_train": f"{train.backend} on {_device(train.devices, run.executor)}",
        "actor_infer": f"{infer.backend} on {_device(infer.devices, run.executor)}, {infer.slots} slots",
    }
    if run.executor == "inline":
        return [
            ("executor", "inline: all roles in one process and one thread"),
            *rows.items(),
            ("parameters", _parameters(run)),
            ("rewards", _judges(run)),
            *_worlds(run),
            ("overlap", "no computing overlaps; only waiting for environments and judges is hidden"),
        ]
    return [
        ("executor", f"ray: {_cluster(run)}; this process schedules and holds no weights"),
        *((role, _placed(rows.get(role) or _beside(at), at)) for role, at in roles_of(run).items()),
        ("arithmetic", f"{run.threads or 'as many as torch takes'} CPU threads in each process"),
        ("parameters", f"each process has its own; versions {_way(run)}"),
        ("rewards", _judges(run)),
        *_worlds(run),
        ("overlap", _overlap(run)),
        ("logs", f"{run.directory}/{run.name}/logs/<role>-<rank>.log"),
    ]


def _beside(section: Any) -> str:
    """Where a model beside the actor is."""
    where = "the trainer's device" if section.devices == "auto" else _device(section.devices, "ray")
    return f"{'fsdp2' if section.sharded else 'native'} on {where}"


def _placed(what: str, section: Any) -> str:
    interpreter = f" of {section.python}" if section.python else ""
    return f"{what}, in {_workers(section)}{interpreter}"


def _workers(section: Any) -> str:
    if section.workers is None and section.devices == "all":
        return "a process for each device" if section.group == 1 else f"a process for each {section.group} devices"
    return _processes(section.num_workers)


def _processes(number: int) -> str:
    return "1 process" if number == 1 else f"{number} processes"


def _cluster(run: Run) -> str:
    address = run.ray.address
    return "a cluster of this run's own, on this machine" if address is None else f"the cluster at {address}"


def _parameters(run: Run) -> str:
    if run.rollout.max_staleness == 0 and run.actor_infer.backend == "native":
        return "trainer and generator share one module; the optimizer step is the publication"
    if run.actor_train.lora is not None:
        return "the generator owns a second copy of the model, and is given adapters between two decode steps"
    return "the generator owns a second copy of the parameters, written between two decode steps"


def _way(run: Run) -> str:
    if run.publication.transport == "disk":
        return f"pass through {run.directory}/{run.name}/weights"
    return "are broadcast by the trainer"


def _overlap(run: Run) -> str:
    if run.rollout.max_staleness == 0:
        return "generation and training take turns; several generators work side by side"
    return "generation goes on while a batch is trained on"


def _judges(run: Run) -> str:
    rewards = run.rewards
    if not rewards.workers:
        return "scored in the controller's thread, without a limit of time"
    return (
        f"scored in {_processes(rewards.workers)} of their own; one that takes over {rewards.timeout_s:g} s is killed"
    )


def _worlds(run: Run) -> list[tuple[str, str]]:
    """Where environments live, if there are any that have turns."""
    envs, limit_s = run.envs, run.rollout.env_timeout_s
    if all(source.env.kind == "single_turn" for source in (*run.tasks, *run.validation.tasks)):
        return []
    whose = "Ray's" if envs.executor == "ray" else "their own"
    where = f"in {_processes(envs.workers)} of {whose}" if envs.workers else "in the controller's thread"
    starts = f", {envs.start_limit} starting at once" if envs.start_limit else ""
    late = "without a limit of time" if limit_s is None else f"one that takes over {limit_s:g} s has failed"
    killed = f"; a process that does not give way within {envs.grace_s:g} s then is killed" if envs.workers else ""
    return [("environments", f"{where}{starts}; {late}{killed if limit_s else ''}")]


def _device(devices: str | int | tuple[int, ...], executor: str) -> str:
    if devices == "auto" and executor == "ray":
        return "devices that are chosen"
    if devices == "auto":
        return "the first GPU, or the CPU where there is none"
    if one_device(devices):
        return str(devices)
    if isinstance(devices, int):
        return _counted(devices)
    return "all devices" if devices == "all" else f"devices {device_text(devices)}"


def _counted(number: int) -> str:
    return "1 device" if number == 1 else f"{number} devices"
