"""Memory of the trainer of backend megatron by its layout, in bytes per rank."""

from pathlib import Path

import pytest

from tests.placement.runs import plan_of

PARAMETERS = 7_615_487_488  # of Qwen2.5-7B's matrices and norms


@pytest.mark.parametrize(
    ("layout", "weights", "optimizer"),
    [("tp: 4", 4 / 4, 8 / 8), ("tp: 2", 4 / 2, 8 / 8), ("tp: 2, cp: 2", 4 / 2, 8 / 8)],
)
def test_weights_are_divided_by_the_layout_and_the_optimizer_by_all_ranks(
    layout: str, weights: float, optimizer: float, tmp_path: Path
) -> None:
    """Bytes per parameter; gradients are divided as weights are."""
    train = (
        f"actor_train={{backend: megatron, parallel: {{{layout}}}, workers: 8, devices: 0-7, "
        "tokens_per_microbatch: 8192, activation_checkpointing: true}"
    )
    plan = plan_of(tmp_path, "2x8xH200", train, "actor_infer={backend: vllm, devices: 8-15}")
    sizes = {share.part: share.bytes for share in plan.shares if (share.role, share.phase) == ("actor_train", "update")}
    for part, size in (("weights", weights), ("gradients", weights), ("optimizer", optimizer)):
        assert sizes[part] == pytest.approx(size * PARAMETERS, rel=1e-4), part
