"""Where the roles of a run live, settled before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from roll.cluster.handle import Cluster
from roll.cluster.ray.environment import settle_ray
from roll.config.schema import Run
from roll.explain.placement import inventory_here
from roll.placement.facts import facts_of
from roll.placement.machine import of_ray
from roll.placement.planner import num_needed, plan_devices
from roll.placement.records import Inventory, Node, Placement
from roll.serving.device_sharing import Turns
from roll.serving.router import Router


def devices_here(run: Run) -> Inventory:
    """Of this machine, GPUs that torch alone can see among them."""
    found, num = inventory_here(run), torch.cuda.device_count()
    if found.gpus or not num:
        return found
    return Inventory(nodes=(Node(name="this machine", kind="GPU", num_devices=num, memory=0),))


def devices_of_ray(run: Run) -> Inventory:
    """Of the Ray cluster that the run names, once it has the devices that the run names."""
    assert run.ray.address is not None, "else the cluster is this machine"
    settle_ray()
    from roll.cluster.ray.cluster import nodes_at

    needed, slots = num_needed(facts_of(run)), run.ray.cpu_slots
    found = nodes_at(
        run.ray.address,
        lambda nodes: of_ray(nodes, slots).num_devices >= needed,
        limit_s=run.ray.start_timeout_s,
    )
    return of_ray(found, slots)


def find_devices(run: Run) -> Inventory:
    """Where the run will be."""
    return devices_here(run) if run.ray.address is None else devices_of_ray(run)


def placed(run: Run, find: Callable[[Run], Inventory] = find_devices, *, supervised: bool = False) -> Placement:
    """Who computes where, on what `find` finds; raises `ConfigError` where that is not enough."""
    return plan_devices(facts_of(run, alone=supervised), find(run))


def settled(run: Run, placement: Placement) -> Run:
    """The run with as many workers, and groups of as many devices, as its placement has."""
    changed: dict[str, Any] = {}
    for place in placement.roles:
        section: Any = getattr(run, place.role)
        given: dict[str, Any] = {"workers": len(place.workers)}
        if (parallel := getattr(section, "parallel", None)) is not None:
            given["parallel"] = parallel.model_copy(update={"tp": place.tp, "cp": place.cp})
        changed[place.role] = section.model_copy(update=given)
    return run.model_copy(update=changed)


def build_turns(placement: Placement, clusters: Mapping[str, Cluster[Any]], router: Router) -> Turns | None:
    """Who makes room from phase to phase; None where everything fits."""
    if not placement.offloads:
        return None
    moving = {each.role for each in placement.offloads}
    found = {role: cluster for role, cluster in clusters.items() if role in moving}
    return Turns(placement=placement, clusters=found, router=router)
