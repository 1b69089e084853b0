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


def test_a_sharded_reference_and_critic_are_divided_as_the_trainer_is(tmp_path: Path) -> None:
    """Bytes per parameter of 32-bit weights: a quarter of 4, and an eighth of AdamW's 8."""
    plan = plan_of(
        tmp_path,
        "4x8xH200",
        "algorithm={recipe: ppo, kl: {coefficient: 0.1}}",
        "actor_train={backend: megatron, parallel: {tp: 2, pp: 2}, workers: 8, devices: 0-7, "
        "tokens_per_microbatch: 8192, activation_checkpointing: true}",
        "critic={sharded: true, devices: 8-15}",
        "reference={sharded: true, devices: 16-19}",
        "actor_infer={backend: vllm, devices: 24-31}",
    )
    assert [len(plan.workers_of(role)) for role in ("critic", "reference")] == [8, 4]
    sizes = {(share.role, share.part): share.bytes for share in plan.shares if share.phase == "update"}
    for key, size in ((("critic", "weights"), 1), (("critic", "optimizer"), 1), (("reference", "weights"), 1)):
        assert sizes[key] == pytest.approx(size * PARAMETERS, rel=1e-4), key
    assert ("reference", "gradients") not in sizes


def test_weights_of_16_bits_have_master_weights_in_the_optimizer(tmp_path: Path) -> None:
    train = (
        "actor_train={backend: megatron, dtype: bfloat16, parallel: {tp: 2}, workers: 8, devices: 0-7, "
        "tokens_per_microbatch: 8192, activation_checkpointing: true}"
    )
    plan = plan_of(tmp_path, "2x8xH200", train, "actor_infer={backend: vllm, devices: 8-15}")
    sizes = {share.part: share.bytes for share in plan.shares if (share.role, share.phase) == ("actor_train", "update")}
    for part, size in (("weights", 2 / 2), ("gradients", 4 / 2), ("optimizer", (4 + 8) / 8)):
        assert sizes[part] == pytest.approx(size * PARAMETERS, rel=1e-4), part
    assert "rounded" not in sizes
