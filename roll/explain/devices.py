"""The section `Devices` of `roll explain`: processes and devices of every role."""

from __future__ import annotations

from typing import Any

from roll.config.backends import RANKED, SglangInfer, VllmInfer, sharded_section
from roll.config.devices import device_text, one_device
from roll.config.schema import NativeInfer, Run
from roll.explain.calls import count
from roll.placement.facts import roles_of

_SEVERAL = (*RANKED, NativeInfer, VllmInfer, SglangInfer)
"""Roles of which the planner may start several processes."""


def device_summary(run: Run) -> str:
    """The executor and the processes of all roles, in one line."""
    roles = roles_of(run)
    if run.executor == "inline":
        return f"inline: {', '.join(roles)} in one process"
    return f"ray ({_cluster(run)}): {', '.join(f'{role} in {_workers(section)}' for role, section in roles.items())}"


def device_rows(run: Run, cluster: str | None = None) -> list[tuple[str, str]]:
    """One row per role, and one for each resource that they share; on a cluster such as `8xH200` if one is named."""
    train, infer = run.actor_train, run.actor_infer
    rows = {
        "actor_train": f"{train.backend} on {_device(train.devices, run.executor)}",
        "actor_infer": f"{infer.backend} on {_device(infer.devices, run.executor)}, {infer.max_num_seqs} sequences"
        f"{_quantisation(infer)}",
    }
    if run.executor == "inline":
        return [
            ("executor", "inline: all roles in one process and one thread"),
            *rows.items(),
            ("parameters", _parameters(run)),
            ("rewards", _rewards(run)),
            *_environments(run),
            ("overlap", "no computation overlaps; only the time spent waiting for environments and judges is hidden"),
        ]
    disk = run.weight_sync.transport == "disk"
    transport = f"pass through {run.directory}/{run.name}/weights" if disk else "are broadcast by the trainer"
    return [
        ("executor", f"ray: {_cluster(run, cluster)}; the controller schedules and has no weights"),
        *((role, _in_workers(rows.get(role) or _auxiliary(run, each), each)) for role, each in roles_of(run).items()),
        ("threads", f"{run.threads} CPU threads per process" if run.threads else "torch's default per process"),
        ("parameters", f"every process has its own copy; new versions {transport}"),
        ("rewards", _rewards(run)),
        *_environments(run),
        ("overlap", _overlap(run)),
        ("logs", f"{run.directory}/{run.name}/logs/<role>-<rank>.log"),
    ]


def _overlap(run: Run) -> str:
    """What runs during an update."""
    if not run.rollout.max_staleness:
        return "generation and training alternate; several generators run in parallel"
    factor = run.actor_infer.lend_factor
    lent = "" if factor is None else f"; the trainer lends its devices in waits over {factor:g} times the moves"
    return f"generation continues during training{lent}"


def _auxiliary(run: Run, section: Any) -> str:
    """Backend and device of an auxiliary model."""
    backend = getattr(sharded_section(section, run.actor_train), "backend", "fsdp2" if section.sharded else "native")
    device = "the trainer's device" if section.devices == "auto" else _device(section.devices, "ray")
    return f"{backend} on {device}"


def _in_workers(text: str, section: Any) -> str:
    interpreter = f" with {section.python}" if section.python else ""
    return f"{text}, in {_workers(section)}{interpreter}"


def _workers(section: Any) -> str:
    if section.workers is None and section.devices == "all":
        number = "one process per device" if section.group == 1 else f"one process per {section.group} devices"
        return f"{number}{_joining(section)}"
    if section.workers is None and section.devices == "auto" and isinstance(section, _SEVERAL):
        return f"processes of the planner's choice{_joining(section)}"
    return f"{count(section.num_workers, 'process')}{_joining(section)}"


def _joining(section: Any) -> str:
    most = getattr(section, "max_workers", None)
    return (
        "" if most is None else f" (others join and leave; at most {most}, at least {section.min_workers or 'these'})"
    )


def _cluster(run: Run, cluster: str | None = None) -> str:
    address = run.ray.address
    if cluster is not None:
        return f"a cluster of {cluster}" if address is None else f"the cluster at {address}, as {cluster}"
    return "a new cluster on this machine" if address is None else f"the cluster at {address}"


def _parameters(run: Run) -> str:
    if run.shares_module:
        return "trainer and generator share one module; an optimizer step updates both"
    if run.actor_train.lora is not None:
        return "the generator has its own copy of the model, and gets new adapters between two decode steps"
    return "the generator has its own copy of the parameters, updated between two decode steps"


def _quantisation(infer: Any) -> str:
    """What is quantised; empty if nothing is."""
    kind = getattr(infer, "quantization", None)
    return f"; weights of the layers in {kind}, quantised and attested at every publication" if kind else ""


def _rewards(run: Run) -> str:
    rewards = run.rewards
    audit = f"; audited at the start on {count(rewards.audit, 'task')} per source" if rewards.audit else ""
    if not rewards.workers:
        return f"scored in the controller's thread, without a timeout{audit}"
    processes = count(rewards.workers, "separate process")
    return f"scored in {processes}; one that takes over {rewards.timeout_s:g} s is killed{audit}"


def _environments(run: Run) -> list[tuple[str, str]]:
    """Processes and timeouts of environments; no row if all tasks have a single turn."""
    envs, timeout_s = run.envs, run.rollout.env_timeout_s
    if all(source.env.kind == "single_turn" for source in (*run.tasks, *run.validation.tasks)):
        return []
    kind = "Ray process" if envs.executor == "ray" else "separate process"
    where = f"in {count(envs.workers, kind)}" if envs.workers else "in the controller's thread"
    starts = f", {envs.max_concurrent_starts} starting at once" if envs.max_concurrent_starts else ""
    if timeout_s is None:
        return [("environments", f"{where}{starts}; without a timeout")]
    killed = f"; a process that does not stop it within {envs.grace_s:g} s is killed" if envs.workers else ""
    return [("environments", f"{where}{starts}; a call over {timeout_s:g} s has failed{killed}")]


def _device(devices: str | int | tuple[int, ...], executor: str) -> str:
    if devices == "auto" and executor == "ray":
        return "devices of the planner's choice"
    if devices == "auto":
        return "the first GPU, or the CPU without a GPU"
    if one_device(devices):
        return str(devices)
    if isinstance(devices, int):
        return count(devices, "device")
    return "all devices" if devices == "all" else f"devices {device_text(devices)}"
