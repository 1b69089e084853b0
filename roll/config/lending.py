"""Check of the settings of a run that lends devices of the trainer to generators."""

from __future__ import annotations

from roll.config.backends import Infer
from roll.config.rollout import Rollout


def check_lending(executor: str, transport: str, infer: Infer, rollout: Rollout, num_policies: int) -> None:
    """Raise ValueError if devices cannot be lent, and `lend_factor` says that they are."""
    if infer.lend_factor is None:
        return
    key = f"actor_infer.lend_factor ({infer.lend_factor:g})"
    if executor == "inline":
        raise ValueError(f"{key}: with executor inline there is one device; set executor to ray, or leave it out")
    if transport != "disk":
        raise ValueError(f"{key}: none can join a {transport} broadcast; set weight_sync.transport to disk")
    if num_policies:
        raise ValueError(f"{key}: generators of several policies do not take turns; leave it out")
    if infer.max_workers is not None:
        raise ValueError(f"{key}: generators also join and leave by actor_infer.max_workers; leave one of the two out")
    if rollout.concurrency is None:
        raise ValueError(
            f"{key}: without rollout.concurrency no request waits for a device; set it, for example to "
            f"actor_infer.max_num_seqs ({infer.max_num_seqs})"
        )
