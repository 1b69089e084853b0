"""Who computes where, and what cannot be had."""

from pathlib import Path

import pytest

from roll.errors import ConfigError
from roll.placement.records import WorkerPlacement
from tests.placement.runs import SMALL, TRAIN, VLLM, devices, plan_of


def test_a_range_of_devices_is_split_into_groups_of_tp(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "8xH200", SMALL, f"{VLLM}, devices: 2-7, parallel: {{tp: 2}}}}", "actor_train.devices=[0]")
    assert devices(plan, "actor_infer") == [(2, 3), (4, 5), (6, 7)]
    assert devices(plan, "actor_train") == [(0,)]
    assert plan.shared("actor_train", "actor_infer") == ()


def test_a_worker_has_its_node_and_its_visible_devices(tmp_path: Path) -> None:
    changes = f"{VLLM}, devices: '4-7,12-13', parallel: {{tp: 2}}}}"
    plan = plan_of(tmp_path, "2x8xH200", SMALL, changes, "actor_train.devices=[8]")
    assert plan.workers_of("actor_infer")[2] == WorkerPlacement(rank=2, node=1, devices=(12, 13), visible=(4, 5))
    assert plan.workers_of("actor_train") == (WorkerPlacement(rank=0, node=1, devices=(8,), visible=(0,)),)


@pytest.mark.parametrize(
    ("named", "groups"),
    [
        ("[0, 2, 5]", [(0,), (2,), (5,)]),
        ("'0-1,6'", [(0,), (1,), (6,)]),
        ("2", [(1,), (2,)]),  # a count takes what nobody has named
        ("all", [(each,) for each in range(8)]),
    ],
)
def test_lists_counts_and_all_are_devices_too(tmp_path: Path, named: str, groups: list[tuple[int, ...]]) -> None:
    plan = plan_of(
        tmp_path, "8xH200", SMALL, f"{VLLM}, devices: {named}, gpu_memory_utilization: 0.5}}", "actor_train.devices=[0]"
    )
    assert devices(plan, "actor_infer") == groups


def test_a_count_that_exceeds_the_free_devices_shares_them(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path, "4xH200", SMALL, f"{VLLM}, devices: 4, gpu_memory_utilization: 0.5}}", "actor_train.devices=[0]"
    )
    assert plan.shared("actor_train", "actor_infer") == (0,)


def test_groups_of_uneven_nodes_do_not_span_nodes(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "1x4xH200+1x2xH200", SMALL, f"{VLLM}, devices: '2-5', parallel: {{tp: 2}}}}")
    assert devices(plan, "actor_infer") == [(2, 3), (4, 5)]


@pytest.mark.parametrize(
    ("cluster", "changes", "fault"),
    [
        (
            "8xH200",
            ["actor_infer.devices=6-9"],
            r"actor_infer.devices: there is no device 8 \(got 6-9\); .*H200s 0 to 7",
        ),
        ("8xH200", ["actor_infer.devices=9"], "9 devices are more than there are"),
        ("2xcpu", ["actor_infer.devices=[2]"], "CPU slots 0 to 1: name those, or set ray.cpu_slots"),
        ("2xcpu", ["actor_infer.devices=cuda"], r"actor_infer.devices: .* has no GPU \(got 'cuda'\); choose 'cpu'"),
        ("8xH200", ["actor_train.devices=cuda:8"], r"has 8 GPUs \(got 'cuda:8'\); name one up to cuda:7"),
        ("8xH200", ["actor_train.devices=all"], "backend native trains on one device"),
        (
            "8xH200",
            [f"{VLLM}, devices: 0-5, parallel: {{tp: 3}}}}"],
            r"actor_infer.parallel.tp: the model's 16 attention heads do not divide by it \(got 3\); choose one",
        ),
        (
            "8xH200",
            ["model={path: models/Qwen2.5-7B}", f"{VLLM}, devices: 0-6, parallel: {{tp: 7}}}}"],
            "4 KV heads do not divide by it .got 7.; choose one of 1, 2, 4",
        ),
        (
            "2x3xH200",
            [f"{VLLM}, devices: 0-5, parallel: {{tp: 2}}}}"],
            r"node 0 has 3 of them \(0, 1, 2\), no multiple of parallel.tp x cp \(2\); a group cannot span nodes",
        ),
        ("2x3xH200", [f"{VLLM}, devices: 6, parallel: {{tp: 2}}}}"], "6 devices in groups of 2 do not fit the nodes"),
        (
            "2xcpu",
            ["weight_sync.transport=ipc"],
            r"weight_sync.transport: there are no GPUs \(got 'ipc'\); choose 'gloo'",
        ),
        (
            "8xH200",
            ["weight_sync.transport=ipc", "actor_train.devices=[0]", "actor_infer.devices=[1]"],
            r"ipc is for one GPU, and actor_train is on \[0\], actor_infer on \[1\]; choose 'nccl'",
        ),
        (
            "8xH200",
            ["weight_sync.transport=ipc", f"{TRAIN}, devices: all}}", f"{VLLM}, devices: all}}"],
            r"ipc is for one GPU, and actor_train is on \[0, 1, 2, 3, 4, 5, 6, 7\], actor_infer on",
        ),
        (
            "8xH200",
            ["weight_sync.transport=ipc", f"{TRAIN}, devices: '0-1'}}", f"{VLLM}, devices: '0-1'}}"],
            r"weight_sync.transport \(ipc\): is for one GPU, and actor_train.devices is 0-1; choose nccl",
        ),
        (
            "8xH200",
            [
                "weight_sync.transport=nccl",
                "actor_train.devices=[0]",
                f"{VLLM}, devices: '0-1', gpu_memory_utilization: 0.4}}",
            ],
            r"nccl needs a GPU for each member, and actor_train and actor_infer share \[0\]; choose 'gloo'",
        ),
        ("8xH200", [f"{VLLM}, devices: all, workers: 3}}"], r"make 8 processes \(got 3\); leave it out"),
    ],
)
def test_an_impossible_placement_is_an_error_with_a_remedy(
    tmp_path: Path, cluster: str, changes: list[str], fault: str
) -> None:
    with pytest.raises(ConfigError, match=fault) as raised:
        plan_of(tmp_path, cluster, SMALL, *changes)
    assert "\n" not in str(raised.value) and ";" in str(raised.value)


def test_without_gpus_devices_are_slots_and_more_workers_than_slots_share_them(tmp_path: Path) -> None:
    tiny = "model={shape: {max_seq_len: 4096}}"
    plan = plan_of(tmp_path, "2xcpu", tiny, "actor_infer.workers=3", "actor_infer.max_num_seqs=4")
    assert devices(plan, "actor_train") == [(0,)]
    assert devices(plan, "actor_infer") == [(1,), (0,), (1,)]
    assert all(worker.visible is None and not worker.pinned for worker in plan.workers_of("actor_infer"))


def test_a_word_leaves_devices_visible_and_cpu_hides_the_gpus(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "8xH200", SMALL, "actor_train.devices=cuda:3", "actor_infer.devices=cpu")
    assert plan.workers_of("actor_train") == (WorkerPlacement(rank=0, node=0, devices=(3,), visible=None),)
    assert plan.workers_of("actor_infer") == (WorkerPlacement(rank=0, node=0, devices=(), visible=(), pinned=False),)


def test_auxiliary_models_are_with_the_trainer_by_default(tmp_path: Path) -> None:
    kl = "algorithm={recipe: grpo, kl: {coefficient: 0.1}}"
    changes = [SMALL, kl, "actor_train.devices=[2]", "actor_infer.devices=[3]"]
    assert devices(plan_of(tmp_path, "8xH200", *changes), "reference") == [(2,)]
    own = plan_of(tmp_path, "8xH200", *changes, "reference.devices=5-6")
    assert devices(own, "reference") == [(5,), (6,)]
