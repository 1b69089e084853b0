"""The placement in `roll explain`."""

from pathlib import Path

import pytest

from roll.errors import ConfigError
from roll.explain.placement import format_bytes, format_ids, placement_report
from tests.placement.runs import SMALL, TRAIN, VLLM, run_of


def test_a_plan_is_a_table_with_bytes_by_phase_and_reasons(tmp_path: Path) -> None:
    text = placement_report(run_of(tmp_path, SMALL, f"{VLLM}}}", "rollout.max_staleness=1"), "4xH200")
    lines = [line.split() for line in text.splitlines()]
    assert lines[0] == ["Placement"] and lines[1] == ["on", "node", "0:", "4", "H200", "(139.0", "GiB", "each)"]
    assert lines[2] == ["role", "workers", "devices", "node", "tp", "cp", "rollout", "update", "weight_sync"]
    assert lines[3][:6] == ["actor_train", "1", "0", "0", "1", "1"]
    assert lines[4][:6] == ["actor_infer", "3", "1-3", "0", "1", "1"]
    assert lines[5][:2] == ["fullest", "device"]
    assert "offloaded: nothing" in text
    assert "overlap: generation continues during training; the two share no device" in text
    assert "auto: actor_train and actor_infer: 1 of 4 devices for training, the others for generation" in text


def test_a_trainer_in_host_memory_is_listed_as_offloaded(tmp_path: Path) -> None:
    run = run_of(tmp_path, SMALL, f"{TRAIN}, devices: [0], offload: true}}", f"{VLLM}, devices: [1]}}")
    assert "offloaded: actor_train's weights and optimizer always" in placement_report(run, "2xH200")


@pytest.mark.parametrize("name", ["Qwen3-8B-A1B", "Qwen2.5-7B-MoE-Instruct", "Llama-3.2-1B-a0.5b"])
def test_a_mixture_of_experts_is_not_counted_as_the_dense_model_of_that_name(tmp_path: Path, name: str) -> None:
    text = placement_report(run_of(tmp_path, f"model={{path: models/{name}}}", "actor_infer.devices=1-3"), "4xH200")
    assert "memory: not counted" in text


def test_staleness_without_effect_is_pointed_out(tmp_path: Path) -> None:
    stale = "rollout.max_staleness=2"
    shared = run_of(
        tmp_path, SMALL, f"{VLLM}, devices: [0], gpu_memory_utilization: 0.4}}", "actor_train.devices=[0]", stale
    )
    assert "share devices 0; rollout.max_staleness 2 hides no computation there" in placement_report(shared, "1xH200")
    moved = run_of(tmp_path, SMALL, f"{VLLM}, devices: [0], offload: true}}", "actor_train.devices=[0]", stale)
    text = placement_report(moved, "1xH200")
    assert "offloaded: actor_train's optimizer" in text and "actor_infer's kv during update" in text
    overlap = (
        "overlap: none, trainer and generator alternate on devices 0; rollout.max_staleness 2 hides no computation"
    )
    assert overlap in text


def test_a_plan_that_does_not_fit_this_machine_is_a_note_and_on_a_named_cluster_an_error(tmp_path: Path) -> None:
    run = run_of(tmp_path, SMALL, "actor_infer.devices=[999]")
    assert "not on this machine: actor_infer.devices: there is no device 999" in placement_report(run)
    with pytest.raises(ConfigError, match="there is no device 999"):
        placement_report(run, "8xH200")


def test_an_unknown_model_is_placed_without_counting_its_memory(tmp_path: Path) -> None:
    text = placement_report(run_of(tmp_path, "model={path: models/own}", "actor_infer.devices=1-3"), "4xH200")
    assert "memory: not counted, as the model of actor_train is not here" in text and " ? " in text


def test_numbers_are_short() -> None:
    assert format_ids([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8" and format_ids([]) == "the CPU"
    assert [format_bytes(number) for number in (0, 1023, 2048, 3 * 2**29)] == ["0 B", "1023 B", "2.0 KiB", "1.5 GiB"]
