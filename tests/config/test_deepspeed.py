"""The section of the DeepSpeed trainer."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from roll.config.deepspeed import DeepspeedTrain, release_fault
from roll.config.load import load
from roll.errors import ConfigError
from roll.preflight import preflight

TEXT = """\
executor: ray
model: {path: somewhere}
algorithm: grpo
tasks: [{name: sums, data: arithmetic, reward: exact}]
actor_train: {backend: deepspeed, workers: 2}
"""


def loaded(folder: Path, *changes: str) -> DeepspeedTrain:
    (folder / "run.yaml").write_text(TEXT)
    section = load(folder / "run.yaml", changes).run.actor_train
    assert isinstance(section, DeepspeedTrain)
    return section


def test_everything_is_divided_by_default(tmp_path: Path) -> None:
    section = loaded(tmp_path)
    assert (section.zero_stage, section.num_workers) == (3, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("executor=inline", r"actor_train.backend \(deepspeed\): every rank is a process; set executor to ray"),
        ("actor_train.parallel.tp=2", r"parallel.tp \(2\): deepspeed divides rows only"),
        ("actor_train.parallel.cp=2", r"parallel.cp \(2\): deepspeed divides rows only"),
        ("actor_train.zero_stage=4", "actor_train.zero_stage"),
        ("actor_train={backend: deepspeed, zero_stage: 2, offload_parameters: true}", "every rank holds all weights"),
        ("actor_train.lora={rank: 4}", "lora: deepspeed trains whole models"),
        ("actor_train.optimizer.kind=my:Lion", "deepspeed saves the state of adamw and sgd alone"),
        ("actor_train.zero_stag=2", "did you mean 'zero_stage'"),
    ],
)
def test_invalid_settings_are_one_line(change: str, message: str, tmp_path: Path) -> None:
    changes = [change, "actor_train={backend: deepspeed}"] if change == "executor=inline" else [change]
    with pytest.raises(ConfigError, match=message) as raised:
        loaded(tmp_path, *changes)
    assert "\n" not in str(raised.value)


def test_only_one_series_of_releases_is_supported() -> None:
    assert release_fault(None).startswith("needs a package that is not installed; install deepspeed 0.19")
    assert "(got 0.16.4)" in release_fault("0.16.4") and "(got 0.2)" in release_fault("0.2")
    assert release_fault("0.19.8") == ""


@pytest.mark.skipif(find_spec("deepspeed") is not None, reason="DeepSpeed is installed")
def test_a_missing_package_is_one_line_before_the_run_starts(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(TEXT.replace("{path: somewhere}", "{shape: {hidden: 64, max_seq_len: 2048}}"))
    match = r"run.yaml:5: actor_train.backend: deepspeed needs a package that is not installed"
    with pytest.raises(ConfigError, match=match) as raised:
        preflight(load(tmp_path / "run.yaml"))
    assert "\n" not in str(raised.value)
    preflight(load(tmp_path / "run.yaml", ["actor_train.python=elsewhere/bin/python"]))
    preflight(load(tmp_path / "run.yaml"), files=False)
