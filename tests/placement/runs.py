"""Runs to be placed, as files would describe them."""

from pathlib import Path

from roll.config.load import load
from roll.config.schema import Run
from roll.placement.facts import facts_of
from roll.placement.machine import parse_cluster
from roll.placement.planner import plan_devices
from roll.placement.records import Placement

TEXT = """\
model: {path: models/Qwen2.5-7B}
algorithm: grpo
tasks: [{name: sums, data: arithmetic, reward: exact}]
rollout: {max_seq_len: 4096, max_new_tokens: 2048, groups_per_step: 64}
executor: ray
actor_train: {tokens_per_microbatch: 8192}
"""
SMALL = "model={path: models/Qwen3-0.6B}"
TRAIN = "actor_train={backend: fsdp2, tokens_per_microbatch: 8192"
VLLM = "actor_infer={backend: vllm, dtype: bfloat16"


def run_of(folder: Path, *changes: str) -> Run:
    (folder / "run.yaml").write_text(TEXT)
    return load(folder / "run.yaml", changes).run


def plan_of(folder: Path, cluster: str, *changes: str) -> Placement:
    return plan_devices(facts_of(run_of(folder, *changes)), parse_cluster(cluster))


def devices(placement: Placement, role: str) -> list[tuple[int, ...]]:
    """Of each worker of a role."""
    return [worker.devices for worker in placement.workers_of(role)]
