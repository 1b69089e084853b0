"""Models sharded over the processes of a role, which act as one worker."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from roll.cluster.handle import Cluster, Executor
from roll.cluster.rank_group import RankGroup
from roll.config.fsdp import FsdpTrain
from roll.config.roles import Parallel, RoleConfig
from roll.engines.fsdp.ranks import ParallelLayout
from roll.types import Spec


def build_rank_group(spec: Spec, section: RoleConfig, *, role: str, executor: Executor, scratch: Path) -> Cluster[Any]:
    """The ranks of a role, each built from `spec`; they rendezvous in a file with the prefix `scratch`."""
    parallel, offload = (section.parallel, section.offload) if isinstance(section, FsdpTrain) else (Parallel(), False)
    layout = ParallelLayout(
        url=rendezvous_url(scratch, role),
        size=section.num_workers,
        tp=parallel.tp,
        cp=parallel.cp,
        offload=offload,
        role=role,
    )
    each = Spec(spec.name, {**spec.kwargs, "layout": layout})
    return RankGroup[Any](executor.cluster(each, layout.size, role=role, python=section.python))


def rendezvous_url(scratch: Path, name: str) -> str:
    """A file in which processes rendezvous; a new one each time, since a used file cannot be reused."""
    return f"file://{scratch.absolute()}-{name}-{uuid.uuid4().hex[:8]}"
