"""What `roll explain` prints of a placement."""

from pathlib import Path

import pytest

from roll.errors import ConfigError
from roll.explain.placement import ids, plan_in_words, size
from tests.placement.runs import SMALL, VLLM, run_of


def test_a_plan_is_a_table_with_bytes_by_phase_and_reasons(tmp_path: Path) -> None:
    text = plan_in_words(run_of(tmp_path, SMALL, f"{VLLM}}}", "rollout.max_staleness=1"), "4xH200")
    lines = [line.split() for line in text.splitlines()]
    assert lines[0] == ["Placement"] and lines[1] == ["on", "node", "0:", "4", "H200", "(139.0", "GiB", "each)"]
    assert lines[2] == ["role", "workers", "devices", "node", "tp", "cp", "rollout", "update", "publication"]
    assert lines[3][:6] == ["actor_train", "1", "0", "0", "1", "1"]
    assert lines[4][:6] == ["actor_infer", "3", "1-3", "0", "1", "1"]
    assert lines[5][:2] == ["fullest", "device"]
    assert "offloaded: nothing" in text
    assert "overlap: generation goes on while a batch is trained on; the two share no device" in text
    assert "auto: actor_train and actor_infer: 1 of 4 devices for training, the others for generation" in text


def test_staleness_that_hides_nothing_is_said_to(tmp_path: Path) -> None:
    stale = "rollout.max_staleness=2"
    shared = run_of(tmp_path, SMALL, f"{VLLM}, devices: [0], memory: 0.4}}", "actor_train.devices=[0]", stale)
    assert "share devices 0; rollout.max_staleness 2 hides no computing there" in plan_in_words(shared, "1xH200")
    moved = run_of(tmp_path, SMALL, f"{VLLM}, devices: [0], offload: true}}", "actor_train.devices=[0]", stale)
    text = plan_in_words(moved, "1xH200")
    assert "offloaded: actor_train's optimizer" in text and "actor_infer's kv during update" in text
    assert "overlap: none, devices 0 are given up and taken back; rollout.max_staleness 2 hides no computing" in text


def test_what_is_impossible_here_is_said_and_elsewhere_refused(tmp_path: Path) -> None:
    run = run_of(tmp_path, SMALL, "actor_infer.devices=[999]")
    assert "not on this machine: actor_infer.devices: there is no device 999" in plan_in_words(run)
    with pytest.raises(ConfigError, match="there is no device 999"):
        plan_in_words(run, "8xH200")


def test_a_model_nobody_knows_is_placed_and_said_not_to_be_counted(tmp_path: Path) -> None:
    text = plan_in_words(run_of(tmp_path, "model={path: models/own}", "actor_infer.devices=1-3"), "4xH200")
    assert "memory: not counted, as the model of actor_train is not here" in text and " ? " in text


def test_numbers_are_short() -> None:
    assert ids([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8" and ids([]) == "the CPU"
    assert [size(number) for number in (0, 1023, 2048, 3 * 2**29)] == ["0 B", "1023 B", "2.0 KiB", "1.5 GiB"]
