"""`checkpoint.best_metric` names a metric that is there when a checkpoint is saved."""

from pathlib import Path

import pytest

from roll.config.load import load
from roll.preflight import best_fault
from roll.tracking.glossary import GLOSSARY

TEXT = """\
model: {shape: {hidden: 64}}
algorithm: grpo
tasks: [{name: sums, data: arithmetic, reward: exact}]
validation:
  tasks: [{name: held, data: {kind: arithmetic, split: held_out}, reward: exact}]
rollout: {max_seq_len: 512}
"""
LATER = (
    "adapt/",
    "filtered/",
    "stale/",
    "failed/",
    "speed/",
    "envs/",
    "segments/",
    "proxy/",
    "sft/",
    "preference/",
    "distillation/",
    "reward_model/",
)
"""Counted or measured only after a step's checkpoint, or in another command."""


def fault(folder: Path, best: str, *overrides: str) -> str:
    path = folder / "run.yaml"
    path.write_text(TEXT)
    return best_fault(load(path, [f"checkpoint.best_metric='{best}'", *overrides]).run)


def test_metrics_of_a_step_or_its_validation_can_select_the_best_checkpoint(tmp_path: Path) -> None:
    sampled = ("validation.samples=6", "validation.temperature=1")
    for best in (
        "reward/format",
        "domain/sums/reward",
        "env/sums/success",
        "loss/surprise",
        "validation/held/accuracy",
    ):
        assert fault(tmp_path, best) == ""
    for best in ("validation/pass@4", "validation/held/pass@6", "validation/majority"):
        assert fault(tmp_path, best, *sampled) == "" and fault(tmp_path, best) != ""
    assert fault(tmp_path, "validation/pass@3", *sampled) != ""


@pytest.mark.parametrize(
    ("best", "near"),
    [
        ("validation/rewards", "validation/reward"),
        ("validation/hold/reward", "validation/held/reward"),
        ("validation/held/length", "validation/length"),
        ("validation_accuracy", "validation/accuracy"),
        ("domain/summs/reward", "domain/sums/reward"),
        ("reward/meen", "reward/mean"),
    ],
)
def test_an_unknown_metric_is_an_error_with_the_most_similar_name(tmp_path: Path, best: str, near: str) -> None:
    fault_text = fault(tmp_path, best)
    assert fault_text == f"no step and no validation of this run measures {best!r}; did you mean {near!r}?"


def test_a_run_without_held_out_tasks_keeps_the_default_and_refuses_others(tmp_path: Path) -> None:
    assert fault(tmp_path, "validation/reward", "validation.tasks=[]") == ""
    assert fault(tmp_path, "validation/accuracy", "validation.tasks=[]") == (
        "there are no held-out tasks to measure 'validation/accuracy' on; add validation.tasks, or take reward/mean"
    )


@pytest.mark.parametrize("pattern", GLOSSARY)
def test_every_metric_of_the_glossary_is_known_or_measured_too_late(tmp_path: Path, pattern: str) -> None:
    domain = "held" if pattern.startswith("validation/") else "sums"
    name = pattern.replace("pass@*", "pass@2").replace("policy/*", "policy/x/reward/mean").replace("*", domain)
    policies = "policies=[{name: x, agents: [x]}, {name: o, agents: [o]}]" if name.startswith("policy/") else "seed=0"
    reuse = ("rollout.reuse=2", "rollout.max_staleness=1", "algorithm.correction=truncate")
    reuse = (*reuse, "rollout.stop_quantile=0.9")
    fault_text = fault(tmp_path, name, "validation.samples=2", "validation.temperature=1", policies, *reuse)
    late = pattern.startswith(LATER) or pattern in ("time/checkpoint", "time/step", "time/*")
    assert bool(fault_text) == late, fault_text
