"""Generators on the trainer's devices, as a placement whose parts take time to move."""

from __future__ import annotations

from dataclasses import dataclass

from roll.placement.records import CPU, Inventory, Node, Offload, Placement, RolePlacement, WorkerPlacement


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSharing:
    """The first generators share devices with the trainer, one each; the others have separate devices."""

    num_generators: int
    move_s: float
    """Seconds to move the parts of one role to the host or back."""
    lend_factor: float | None = None
    """As `actor_infer.lend_factor`; None: no generator serves while the trainer works."""

    def placement(self, num_generators: int) -> Placement:
        """The placement of a run with this number of generators."""
        trainer = _worker(0, tuple(range(self.num_generators)))
        generators = tuple(_worker(rank, (rank,)) for rank in range(num_generators))
        return Placement(
            inventory=Inventory(nodes=(Node(name="simulated", kind=CPU, num_devices=num_generators, memory=0),)),
            roles=(
                RolePlacement(role="actor_train", backend="simulated", workers=(trainer,)),
                RolePlacement(role="actor_infer", backend="simulated", workers=generators),
            ),
            offloads=(
                Offload(role="actor_train", phase="rollout", parts=("optimizer", "weights")),
                Offload(role="actor_infer", phase="update", parts=("kv", "weights")),
            ),
        )


def _worker(rank: int, devices: tuple[int, ...]) -> WorkerPlacement:
    return WorkerPlacement(rank=rank, node=0, devices=devices, visible=None)
