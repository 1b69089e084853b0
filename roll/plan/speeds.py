"""Durations of a configuration on its devices: from the cost model, scaled by a recorded run if there is one."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

from roll.errors import ConfigError
from roll.placement.cost import StepTimes
from roll.placement.facts import RoleFacts, RunFacts
from roll.placement.machine import kind_of
from roll.placement.records import Placement
from roll.plan.calibration import RunCalibration

_TRANSPORTS = {"": 1e11, "disk": 1e9, "gloo": 2e9, "ipc": 1e11, "nccl": 2.5e10}
"""Bytes per second of a weight sync."""
_SYNC_S, _OTHER_S = 0.5, 0.5
"""Seconds per weight sync and per step that no byte explains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTimes:
    """Durations of one configuration, in seconds."""

    step_s: float
    sequence_s: float
    prefill_s: float
    update_s: float
    update_token_s: float
    publish_s: float
    other_s: float
    slots: int
    """Sequences that fit a generator."""
    num_generators: int
    num_devices: int
    """Devices of the actor."""
    shared: bool
    """Whether trainer and generators have devices in common."""


def modelled_times(facts: RunFacts, placement: Placement, workload: RunCalibration) -> DeviceTimes:
    """Durations from the cost model."""
    train, infer = facts.role("actor_train"), facts.role("actor_infer")
    placed_train, placed_infer = placement.role("actor_train"), placement.role("actor_infer")
    if train.model is None:
        raise ConfigError(
            "roll plan: the model's dimensions are unknown; give `model.path` a directory, or a known name"
        )
    infer = replace(infer, tp=placed_infer.tp)
    facts = replace(facts, roles=tuple(infer if role.role == infer.role else role for role in facts.roles))
    node = min(each.num_devices for each in placement.inventory.nodes)
    kind = kind_of(placement.inventory)
    times = StepTimes(facts=facts, model=train.model, kind=kind, tp=infer.tp, node=node)
    context = workload.contexts[-1] + statistics.fmean(workload.lengths[-1]) / 2
    step_s, sequence_s = times.decode_s(context)
    num = max(1, len(placed_train.devices))
    used = workload.contexts[0] + workload.tokens_per_attempt
    update_s = times.update_s(num) * used * facts.trajectories / times.num_tokens
    gather_s = _gather_s(facts, train, num, kind.link if num <= node else kind.network, used)
    per_token = max(update_s, gather_s) / (facts.trajectories * workload.tokens_per_attempt)
    shared = bool(set(placed_train.devices) & set(placed_infer.devices))
    weights = train.model.parameters * infer.weight_bytes
    return DeviceTimes(
        step_s=step_s,
        sequence_s=sequence_s,
        prefill_s=times.prefill_s,
        update_s=0.0,
        update_token_s=per_token,
        publish_s=_SYNC_S * (not facts.inline) + weights / _TRANSPORTS[facts.transport],
        other_s=_OTHER_S * placement.inventory.gpus + times.moved_s * shared,
        slots=_slots(infer, placement, context + statistics.fmean(workload.lengths[-1]) / 2),
        num_generators=max(1, len(placed_infer.workers)),
        num_devices=len({*placed_train.devices, *placed_infer.devices}) or 1,
        shared=shared,
    )


def _gather_s(facts: RunFacts, train: RoleFacts, num: int, bytes_per_s: float, used: float) -> float:
    """Seconds in which sharded trainers gather weights and sum gradients: three times per pass over the model."""
    assert train.model is not None
    if num == 1 or train.backend not in ("fsdp2", "deepspeed"):
        return 0.0
    passes = max(1.0, facts.trajectories * used * train.cp / num / max(1, train.tokens)) * facts.epochs
    return 3 * passes * train.model.parameters * train.weight_bytes / bytes_per_s


def _slots(infer: RoleFacts, placement: Placement, length: float) -> int:
    """Sequences that a generator decodes at once: its limit, or as many as fit the KV cache."""
    assert infer.model is not None
    cache = sum(each.bytes for each in placement.present("actor_infer", "rollout") if each.part == "kv")
    if infer.backend == "native" or not cache:
        return infer.max_num_seqs
    row = max(1.0, length) * infer.model.cache_row(infer.backend) * infer.weight_bytes
    return max(1, min(infer.max_num_seqs, int(cache * infer.tp / row)))


def scaled_times(modelled: DeviceTimes, recorded: DeviceTimes, calibration: RunCalibration) -> DeviceTimes:
    """Measured durations, times what the cost model says of this configuration relative to the recorded one."""

    def scale(measured: float, now: float, before: float) -> float:
        return measured * now / before if before > 0 else measured

    return replace(
        modelled,
        step_s=scale(calibration.step_s.value, modelled.step_s, recorded.step_s),
        sequence_s=scale(calibration.sequence_s.value, modelled.sequence_s, recorded.sequence_s),
        prefill_s=scale(calibration.prefill_s.value, modelled.prefill_s, recorded.prefill_s),
        update_s=calibration.update_s.value,
        update_token_s=scale(calibration.update_token_s.value, modelled.update_token_s, recorded.update_token_s),
        publish_s=scale(calibration.publish_s.value, modelled.publish_s, recorded.publish_s),
        other_s=calibration.other_s.value + max(0.0, modelled.other_s - recorded.other_s),
    )
