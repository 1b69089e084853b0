"""Models that are spread over the processes of their role, which are then one worker to all others."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from roll.cluster.handle import Cluster, Executor
from roll.cluster.rank_group import Gang
from roll.config.fsdp import FsdpTrain
from roll.config.parallel import Parallel
from roll.config.roles import Placed
from roll.engines.fsdp.ranks import Spread
from roll.types import Call


def spread_out(call: Call, section: Placed, *, role: str, executor: Executor, scratch: Path) -> Cluster[Any]:
    """The ranks of a role, each made as `call` says; they meet in a file whose name begins like `scratch`."""
    parallel, offload = (section.parallel, section.offload) if isinstance(section, FsdpTrain) else (Parallel(), False)
    spread = Spread(
        url=meeting(scratch, role),
        size=section.num_workers,
        tp=parallel.tp,
        cp=parallel.cp,
        offload=offload,
        role=role,
    )
    each = Call(call.name, {**call.arguments, "spread": spread})
    return Gang[Any](executor.cluster(each, spread.size, role=role, python=section.python))


def meeting(scratch: Path, who: str) -> str:
    """Where processes find each other; always another place, as what an earlier meeting left there is of no use."""
    return f"file://{scratch.absolute()}-{who}-{uuid.uuid4().hex[:8]}"
