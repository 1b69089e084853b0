"""The runs on real models: their files load, and curves are read and shown as they were measured."""

import json
from pathlib import Path

import msgspec
import pytest
import torch

from benchmarks import gpu_results
from benchmarks.gpu_results import EXPERIMENTS, Curve, curve_of
from benchmarks.results_page import pages
from roll.config.load import load

LINES = [
    {"step": 0, "validation/accuracy": 0.5},
    *(
        {
            "step": step,
            "reward/mean": 0.1 * step,
            "length/mean": 9.0,
            "time/step": 2.0,
            "speed/tokens_per_s": 100.0 * step,
            "sampler_mismatch/mean": 0.001,
        }
        for step in range(1, 6)
    ),
    {"step": 5, "validation/accuracy": 0.75},
]


def curve() -> Curve:
    return curve_of(EXPERIMENTS["gsm8k"], LINES, 60.0, model="a model", host="a GPU")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_file_of_every_experiment_loads_with_its_overrides(name: str) -> None:
    experiment = EXPERIMENTS[name]
    run = load(Path(experiment.example), list(experiment.overrides)).run
    assert run.validation.tasks and run.steps % run.validation.every == 0
    assert (run.rollout.max_staleness == 1) == (name.startswith("gsm8k_async") or name == "gsm8k_partial")


def test_a_curve_has_its_gain_and_the_time_of_a_step() -> None:
    assert curve().gain == 0.25
    assert (curve().step_s, curve().rewards[-1], curve().validation) == (2.0, 0.5, {0: 0.5, 5: 0.75})
    assert curve().tokens_per_s == 450  # of the fourth and fifth step


def test_a_finished_run_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gsm8k.json").write_bytes(msgspec.json.encode(curve()))
    monkeypatch.setenv("ROLL_RESULTS", str(tmp_path))
    assert gpu_results.train("gsm8k") == curve()


def test_the_page_shows_measured_runs_and_names_the_others(tmp_path: Path) -> None:
    (tmp_path / "mbpp.json").write_bytes(msgspec.json.encode(curve()))
    shown = pages(tmp_path)
    assert set(shown) == {"results.md", "results/mbpp.svg"}
    assert "| `mbpp` | 0.500 | 0.750 | +0.250 | 5 | 2.0 s | 1.0 min |" in shown["results.md"]
    assert "- `frozen_lake` (`roll train examples/frozen_lake_chat.yaml`)" in shown["results.md"]


def test_the_recorded_gain_on_gsm8k_is_what_the_benchmark_page_says() -> None:
    recorded = json.loads(Path("docs/results/gsm8k.json").read_text())
    before, after = recorded["validation"]["0"], recorded["validation"]["36"]
    assert f"{before:.3f} before" in (text := Path("docs/benchmarks.md").read_text())
    assert f"a gain of {after - before:.3f} in {recorded['spent_s']:.0f} s" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_every_result_is_skipped_with_a_reason() -> None:
    results = (gpu_results.gsm8k, gpu_results.asynchronous, gpu_results.tail, gpu_results.code, gpu_results.agent)
    for run in (*results, gpu_results.recipes):
        assert run().skipped == "no GPU is visible"
