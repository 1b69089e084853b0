"""Pipeline stages of trainers of backend megatron in a plan: bytes per rank, and estimated seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from roll.explain.records import RolePlan
from roll.placement.facts import RoleFacts, RunFacts
from roll.placement.machine import GIB, kind_of
from roll.placement.pipeline import PipelineTimes
from roll.placement.records import Placement
from roll.placement.stages import stage_bytes


def pipeline_fields(facts: RunFacts, placement: Placement, role: RoleFacts) -> dict[str, Any]:
    """The fields of a `RolePlan` that only backend megatron has; empty for others and without counted memory."""
    if role.backend != "megatron" or not placement.shares:
        return {}
    placed = placement.role(role.role)
    sized = replace(role, tp=placed.tp, pp=placed.pp, cp=placed.cp, ep=placed.ep)
    num, node = len(placed.workers), min(node.num_devices for node in placement.inventory.nodes)
    times = PipelineTimes(facts=facts, role=sized, kind=kind_of(placement.inventory), num=num, node=node)
    return {"stages": tuple(stage_bytes(facts, sized, num)), "times": times.step()}


def pipeline_lines(role: RolePlan) -> Iterator[str]:
    """One line each about the first, the fullest and the last stage, and one with the seconds of a step."""
    fullest = max((each.total for each in role.stages), default=0)
    for each in role.stages:
        if each.stage in (0, role.pp - 1) or each.total == fullest:
            parts = [f"{part} {size / GIB:.1f}" for part, size in each.bytes.items() if size]
            where = f"stage {each.stage} of {role.pp}" if role.pp > 1 else "one stage"
            yield f"{role.role}, {where}: {each.total / GIB:.1f} GiB per rank: {', '.join(parts)}"
    if role.times is not None:
        parts = [f"{part} {seconds:.1f}" for part, seconds in role.times.parts.items() if seconds]
        yield f"{role.role}: about {role.times.total:.1f} s per step: {', '.join(parts)}"
