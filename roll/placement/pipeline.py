"""Estimated seconds per step of a trainer of backend megatron, by what takes them.

| part | seconds |
|---|---|
| compute | floating point operations of the slowest stage, of all its micro-batches |
| tp, cp, ep | hidden states that ranks exchange within that stage, one after the other |
| pp | hidden states that a stage sends to the next one |
| bubble | the stage waits for `pp - 1` micro-batches of all that |
| dp | gradients summed and new weights gathered, once per optimizer step |

Nothing overlaps: the blocks are used without the options that hide communication. Groups are numbered as Megatron-Core
does: tp, then cp, then dp, then pp; experts are divided among neighbours of a stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from roll.placement.blocks import StageSize
from roll.placement.facts import RoleFacts, RunFacts
from roll.placement.machine import Kind
from roll.placement.stages import blocks_of, copies, num_weights

PRODUCTS, STREAMS = 0.4, 0.6
"""Fractions of a device's nominal operations and bandwidths that are reached."""
_FORWARD, _BACKWARD = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainTimes:
    """Seconds per step."""

    compute: float = 0.0
    bubble: float = 0.0
    tp: float = 0.0
    cp: float = 0.0
    ep: float = 0.0
    pp: float = 0.0
    dp: float = 0.0

    @property
    def parts(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in self.__slots__}

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    def scaled(self, factor: float) -> TrainTimes:
        return TrainTimes(**{name: factor * seconds for name, seconds in self.parts.items()})

    def plus(self, other: TrainTimes) -> TrainTimes:
        return TrainTimes(**{name: seconds + getattr(other, name) for name, seconds in self.parts.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTimes:
    """Times of a role on `num` devices, in nodes of `node` each."""

    facts: RunFacts
    role: RoleFacts
    kind: Kind
    num: int
    node: int

    def step(self) -> TrainTimes:
        """All updates of a step, and the forward passes that score its batch."""
        facts = self.facts
        updates = facts.epochs * facts.minibatches
        trained = self._passes(facts.minibatches, _FORWARD + _BACKWARD + self.role.checkpointed)
        scored = self._passes(1, _FORWARD)
        once = TrainTimes(dp=self._gradients())
        return trained.plus(once).scaled(updates).plus(scored.scaled(facts.passes))

    def _passes(self, minibatches: int, passes: int) -> TrainTimes:
        """Seconds for a part of the batch: one of `minibatches`, with `passes` times the work of a forward pass."""
        role, facts = self.role, self.facts
        replicas = self.num // (role.tp * role.cp * role.pp)
        length = facts.max_seq_len / 2
        tokens = ceil(facts.trajectories / minibatches / replicas) * length
        num = max(1, ceil(tokens / max(1, role.tokens)))
        kinds = blocks_of(role).stage_kinds(role.pp)
        slowest = max(
            (self._micro(stage, tokens / num, length, passes) for _, stage in kinds), key=lambda each: each.total
        )
        return slowest.scaled(num).plus(TrainTimes(bubble=(role.pp - 1) * slowest.total))

    def _micro(self, stage: StageSize, tokens: float, length: float, passes: int) -> TrainTimes:
        """Seconds of a stage per micro-batch."""
        role, layers, blocks = self.role, stage.layers, blocks_of(self.role)
        each = tokens / (role.tp * role.cp)
        head = blocks.vocab * blocks.hidden * stage.last
        products = 2 * (layers.divided + layers.whole + layers.active_experts + head) + layers.attended * length
        hidden = blocks.hidden * role.weight_bytes * each
        moved = layers.heads_row * role.weight_bytes * each
        routed = layers.copies * role.weight_bytes * each
        gathered = 2 * (2 * stage.num_layers - stage.num_sparse) * hidden * (role.tp - 1)
        gathered += routed * (role.expert_tp - 1)
        return TrainTimes(
            compute=products * each * passes / (self.kind.flops * PRODUCTS),
            tp=self._collective_s(gathered * passes, role.tp, role.tp),
            cp=self._exchange_s(moved * passes, role.cp, role.tp * role.cp),
            ep=self._exchange_s(routed * passes, role.ep, role.ep * role.expert_tp),
            pp=hidden * min(passes, 2) / self._neighbour if role.pp > 1 else 0.0,
        )

    def _gradients(self) -> float:
        """Seconds to sum the gradients of one update over ranks, and to gather the weights."""
        role = self.role
        shared, shared_experts = copies(role, self.num)
        seconds = 0.0
        for _, stage in blocks_of(role).stage_kinds(role.pp):
            dense, experts = num_weights(role, stage)
            size = 4 + role.weight_bytes
            dense_s = self._collective_s(dense * size * (shared - 1) / shared, shared, role.tp * shared)
            span = role.ep * role.expert_tp
            experts_s = self._collective_s(
                experts * size * (shared_experts - 1) / shared_experts, shared_experts, span * shared_experts
            )
            seconds = max(seconds, dense_s + experts_s)
        return seconds

    @property
    def _neighbour(self) -> float:
        """Bytes per second between two stages."""
        return (self.kind.link if self.num <= self.node else self.kind.network) * STREAMS

    def _local(self, size: int, span: int) -> int:
        """Members of a group of `size` on one node, if its ranks lie within `span` neighbours."""
        return size if span <= self.node else max(1, self.node * size // span)

    def _collective_s(self, sent: float, size: int, span: int) -> float:
        """Seconds for a gather or reduction in rings, of which each member sends so many bytes."""
        local = self._local(size, span)
        speed = self.kind.link if local >= size else min(self.kind.link, self.kind.network * local)
        return sent / (speed * STREAMS)

    def _exchange_s(self, sent: float, size: int, span: int) -> float:
        """Seconds for an exchange of all with all; of `sent` bytes per member an equal part is for each."""
        local = self._local(size, span)
        near = sent * (local - 1) / size / self.kind.link
        far = sent * (size - local) / size / self.kind.network
        return max(near, far) / STREAMS
