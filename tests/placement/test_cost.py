"""The choices of `auto`."""

from dataclasses import replace
from pathlib import Path

from roll.placement.cost import choices
from roll.placement.facts import facts_of
from roll.placement.machine import parse_cluster
from tests.placement.runs import SMALL, VLLM, devices, plan_of, run_of


def test_a_synchronous_run_shares_all_devices(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "4xH200", SMALL, f"{VLLM}, gpu_memory_utilization: 0.4}}")
    assert devices(plan, "actor_infer") == [(0,), (1,), (2,), (3,)]
    assert devices(plan, "actor_train") == [(0,)]
    assert any("alternate" in reason for reason in plan.reasons)


def test_an_asynchronous_run_with_enough_devices_gives_each_side_its_own(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "4xH200", SMALL, f"{VLLM}}}", "rollout.max_staleness=1")
    assert plan.shared("actor_train", "actor_infer") == ()
    assert devices(plan, "actor_train") == [(0,)] and len(devices(plan, "actor_infer")) == 3
    assert any("1 of 4 devices for training, the others for generation" in reason for reason in plan.reasons)


def test_a_generator_gets_the_fewest_devices_that_hold_it(tmp_path: Path) -> None:
    inventory = parse_cluster("8xA100")
    sizes = {
        name: choices(facts_of(run_of(tmp_path, f"model={{path: models/{name}}}", f"{VLLM}}}")), inventory)[0].tp
        for name in ("Qwen2.5-7B", "Qwen2.5-32B", "Qwen2.5-72B")
    }
    # 15, 66 and 145 GB of weights, and some KV cache, into 0.9 x 79 GiB each with a margin
    assert sizes == {"Qwen2.5-7B": 1, "Qwen2.5-32B": 2, "Qwen2.5-72B": 4}


def test_named_devices_of_one_role_determine_those_of_the_other(tmp_path: Path) -> None:
    named = "actor_train.devices=[0]"
    apart = plan_of(tmp_path, "4xH200", SMALL, f"{VLLM}}}", named, "rollout.max_staleness=1")
    assert devices(apart, "actor_infer") == [(1,), (2,), (3,)]
    shared = plan_of(tmp_path, "4xH200", SMALL, f"{VLLM}, gpu_memory_utilization: 0.4}}", named)
    assert devices(shared, "actor_infer") == [(0,), (1,), (2,), (3,)]


def test_the_number_of_workers_bounds_the_devices_of_auto(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "8xH200", SMALL, f"{VLLM}, workers: 2, gpu_memory_utilization: 0.4, parallel: {{tp: 2}}}}")
    assert devices(plan, "actor_infer") == [(0, 1), (2, 3)]


def test_more_training_moves_devices_to_the_trainers_side(tmp_path: Path) -> None:
    facts = facts_of(run_of(tmp_path, SMALL, f"{VLLM}}}", "rollout.max_staleness=1"))
    sharded = replace(facts, roles=(replace(facts.roles[0], backend="fsdp2"), *facts.roles[1:]))
    once = choices(sharded, parse_cluster("8xH200"))[0]
    often = choices(replace(sharded, epochs=8), parse_cluster("8xH200"))[0]
    assert len(once.train) < len(often.train)
    assert set(once.train).isdisjoint(once.infer)


def test_auto_takes_the_fastest_split_that_fits(tmp_path: Path) -> None:
    # sharing would be fastest, but vLLM takes nine tenths of each GPU and cannot free them
    greedy = plan_of(tmp_path, "2xH200", SMALL, f"{VLLM}, gpu_memory_utilization: 0.9}}")
    assert greedy.shared("actor_train", "actor_infer") == ()
    assert any("sharing does not fit" in reason for reason in greedy.reasons)
