"""`roll dpo` from the file to the model: resumption, references, dropped rows, refusals."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from roll.commands import dpo as commands
from roll.config.load import load
from roll.errors import ConfigError
from roll.tracking.sinks import read_lines


def run_of(folder: Path, **changed: Any) -> dict[str, Any]:
    """A tiny run on sums of one digit."""
    shape = {"architecture": "qwen3", "alphabet": "0123456789+=", "hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1}
    section = {
        "data": {"kind": "arithmetic", "digits": 1},
        "held_out": {"kind": "arithmetic", "digits": 1, "seed": 1},
        "steps": 4,
        "batch_size": 8,
        "validate_every": 2,
        "optimizer": {"lr": 1e-2},
        **changed.pop("dpo", {}),
    }
    return {
        "name": "tiny",
        "directory": str(folder),
        "deterministic": True,
        "model": {"shape": {**shape, "mlp": 32, "max_seq_len": 32}},
        "algorithm": {"recipe": "grpo"},
        "tasks": [{"name": "sums", "data": {"kind": "arithmetic", "digits": 1}, "reward": "exact"}],
        "rollout": {"max_seq_len": 16, "max_new_tokens": 4},
        "checkpoint": {"every": 2},
        "tracking": {"tensorboard": False},
        "dpo": {key: value for key, value in section.items() if value is not None},
        **changed,
    }


def train(run: dict[str, Any], **options: Any) -> bool:
    return commands.dpo(load(run), overwrite=False, **options)


def weights(folder: Path) -> dict[str, Any]:
    return load_file(folder / "tiny-dpo" / "model" / "model.safetensors")


def metrics(folder: Path, name: str) -> list[float]:
    return [line[name] for line in read_lines(folder / "tiny-dpo" / "metrics.jsonl") if name in line]


def equal(first: Path, second: Path) -> bool:
    rows, others = weights(first), weights(second)
    return all(np.array_equal(rows[name], others[name]) for name in rows)


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path):
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    assert train(run_of(whole))
    assert train(run_of(halves, dpo={"steps": 2}))
    assert commands.resume(halves / "tiny-dpo", ["dpo.steps=4"])
    assert equal(whole, halves)
    assert metrics(whole, "preference/loss") == metrics(halves, "preference/loss")


def test_a_finished_run_is_not_trained_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = run_of(tmp_path, dpo={"steps": 2})
    train(run)
    assert train(run, resume=True)
    assert "all 2 steps are done already; to train more, add dpo.steps=" in capsys.readouterr().out


def test_a_copy_and_saved_logprobs_are_the_same_reference(tmp_path: Path):
    saved, copy = tmp_path / "saved", tmp_path / "copy"
    train(run_of(saved))
    train(run_of(copy, dpo={"reference": "copy"}))
    assert (saved / "tiny-dpo" / "reference_logprobs.npz").is_file()
    assert metrics(copy, "preference/loss") == pytest.approx(metrics(saved, "preference/loss"), rel=1e-5)
    assert metrics(saved, "preference/loss")[0] == pytest.approx(0.6931472)  # policy and reference are equal


def test_a_copy_stays_the_initial_model_after_a_restart(tmp_path: Path):
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    train(run_of(whole, dpo={"reference": "copy"}))
    train(run_of(halves, dpo={"reference": "copy", "steps": 2}))
    commands.resume(halves / "tiny-dpo", ["dpo.steps=4"])
    assert equal(whole, halves)


def test_adapters_switched_off_are_the_reference(tmp_path: Path):
    adapters = {"lora": {"rank": 4}}
    off, saved = tmp_path / "off", tmp_path / "saved"
    train(run_of(off, actor_train=adapters, dpo={"reference": "adapters_off"}))
    train(run_of(saved, actor_train=adapters))
    assert metrics(off, "preference/loss") == pytest.approx(metrics(saved, "preference/loss"), rel=1e-5)


def test_other_data_than_the_saved_reference_is_refused(tmp_path: Path):
    train(run_of(tmp_path, dpo={"steps": 2}))
    with pytest.raises(ConfigError, match=r"reference_logprobs\.npz: was computed for other data"):
        commands.resume(tmp_path / "tiny-dpo", ["dpo.steps=4", "dpo.data.seed=5"])


@pytest.mark.parametrize("loss", ["kto", "orpo", "simpo", "ipo", "apo_down", "cdpo"])
def test_every_kind_of_loss_trains(tmp_path: Path, loss: str):
    assert train(run_of(tmp_path, dpo={"loss": loss, "steps": 1}))
    assert len(metrics(tmp_path, "preference/held_out_accuracy")) == 2
    assert (tmp_path / "tiny-dpo" / "reference_logprobs.npz").exists() == (loss not in ("orpo", "simpo"))


def test_dropped_rows_are_counted_and_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    data = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": str(n + 1 if n == 3 else 0)} for n in range(9)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    section = {"data": str(data), "held_out": None, "steps": 1}
    with pytest.raises(ConfigError, match=r"pairs\.jsonl:4: the chosen and the rejected response are equal"):
        train(run_of(tmp_path, dpo=section))
    assert train(run_of(tmp_path, dpo={**section, "faulty_rows": "drop"}))
    assert "8 examples; 1 of 9 rows dropped, listed in dropped.jsonl" in capsys.readouterr().out
    listed = (tmp_path / "tiny-dpo" / "dropped.jsonl").read_text(encoding="utf-8")
    assert json.loads(listed) == {"where": f"{data}:4", "reason": "the chosen and the rejected response are equal"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"reference": "adapters_off"}, r"dpo\.reference: adapters_off, and the run has no actor_train\.lora"),
        ({"loss": "kto", "batch_size": 1}, "kto compares a response with others of its step"),
        ({"ratings": {"lowest": 1.0, "highest": 5.0, "desirable": 6.0}}, r"desirable \(6\) must be above lowest"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(tmp_path: Path, changed: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        load(run_of(tmp_path, dpo=changed))


def test_a_file_without_the_section_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="dpo: no such section; add one"):
        train({key: value for key, value in run_of(tmp_path).items() if key != "dpo"})
