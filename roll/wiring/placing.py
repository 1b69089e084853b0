"""Plans the placement of roles on devices before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from roll.cluster.handle import Cluster
from roll.cluster.ray.environment import set_ray_environment
from roll.config.schema import Run
from roll.explain.placement import count_modules, local_inventory
from roll.journal.store import Journal
from roll.placement.facts import facts_of
from roll.placement.machine import ray_inventory
from roll.placement.planner import num_needed, plan_devices
from roll.placement.records import Inventory, Node, Placement
from roll.serving.device_sharing import DeviceSharing
from roll.serving.lending_rule import LendingRule
from roll.serving.lent_devices import LentDevices
from roll.serving.router import Router


def devices_here(run: Run) -> Inventory:
    """The devices of this machine, including GPUs that only torch sees."""
    inventory, num = local_inventory(run), torch.cuda.device_count()
    if inventory.gpus or not num:
        return inventory
    return Inventory(nodes=(Node(name="this machine", kind="GPU", num_devices=num, memory=0),))


def devices_of_ray(run: Run) -> Inventory:
    """The devices of the run's Ray cluster; waits until it has as many as the run needs."""
    assert run.ray.address is not None, "else the cluster is this machine"
    set_ray_environment(run.ray.start_timeout_s)
    from roll.cluster.ray.connection import wait_for_nodes

    needed, slots = num_needed(facts_of(run, count=count_modules)), run.ray.cpu_slots
    nodes = wait_for_nodes(
        run.ray.address,
        lambda nodes: ray_inventory(nodes, slots).num_devices >= needed,
        timeout_s=run.ray.start_timeout_s,
    )
    return ray_inventory(nodes, slots)


def plan_placement(run: Run, *, supervised: bool = False) -> Placement:
    """The placement of all roles on the devices of the run; raises `ConfigError` if they do not suffice."""
    devices = devices_here(run) if run.ray.address is None else devices_of_ray(run)
    return plan_devices(facts_of(run, alone=supervised, count=count_modules), devices)


def apply_placement(run: Run, placement: Placement) -> Run:
    """The run with the numbers of workers and the parallel sizes of its placement."""
    changed: dict[str, Any] = {}
    for role in placement.roles:
        section: Any = getattr(run, role.role)
        update: dict[str, Any] = {"workers": len(role.workers)}
        if (parallel := getattr(section, "parallel", None)) is not None:
            sizes = {name: getattr(role, name) for name in ("tp", "cp", "pp", "ep") if hasattr(parallel, name)}
            update["parallel"] = parallel.model_copy(update=sizes)
        if role.offload and hasattr(section, "offload"):
            update["offload"] = True
        changed[role.role] = section.model_copy(update=update)
    return run.model_copy(update=changed)


def build_device_sharing(
    placement: Placement,
    clusters: Mapping[str, Cluster[Any]],
    router: Router,
    journal: Journal,
    lend_factor: float | None,
) -> DeviceSharing | None:
    """Offloading between phases, or lending; None if everything fits and nothing is lent."""
    offloaded = {each.role for each in placement.offloads}
    clusters = {role: cluster for role, cluster in clusters.items() if role in offloaded}
    if lend_factor is not None:
        ranks, rule = placement.sharing("actor_infer"), LendingRule(lend_factor)
        router.lent |= set(ranks)
        return LentDevices(
            placement=placement, clusters=clusters, router=router, journal=journal, rule=rule, ranks=ranks
        )
    return DeviceSharing(placement=placement, clusters=clusters, router=router) if offloaded else None
