"""Memory of DeepSpeed's trainer by ZeRO stage, in bytes per rank."""

from pathlib import Path

import pytest

from tests.placement.runs import plan_of

PARAMETERS = 7_615_487_488  # of Qwen2.5-7B's matrices and norms


@pytest.mark.parametrize(
    ("settings", "weights", "gradients", "optimizer"),
    [
        ("zero_stage: 3, dtype: bfloat16", 2 / 8, 4 / 8, 12 / 8),
        ("zero_stage: 2, dtype: bfloat16", 2, 4 / 8, 12 / 8),
        ("zero_stage: 1, activation_checkpointing: true", 4, 4, 12 / 8),
        ("zero_stage: 2, dtype: bfloat16, offload_optimizer: true", 2, 4 / 8, 0),
        ("zero_stage: 3, dtype: bfloat16, offload_optimizer: true, offload_parameters: true", 0, 4 / 8, 0),
    ],
)
def test_a_rank_holds_what_its_stage_divides(
    settings: str, weights: float, gradients: float, optimizer: float, tmp_path: Path
) -> None:
    """Bytes per parameter; the optimizer's are two moments and the master weights."""
    train = f"actor_train={{backend: deepspeed, workers: 8, devices: 0-7, tokens_per_microbatch: 8192, {settings}}}"
    plan = plan_of(tmp_path, "2x8xH200", train, "actor_infer={backend: vllm, dtype: bfloat16, devices: 8-15}")
    sizes = {share.part: share.bytes for share in plan.shares if (share.role, share.phase) == ("actor_train", "update")}
    for part, size in (("weights", weights), ("gradients", gradients), ("optimizer", optimizer)):
        assert sizes.get(part, 0) == pytest.approx(size * PARAMETERS, rel=1e-4), part
