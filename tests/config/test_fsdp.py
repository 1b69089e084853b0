"""The section of the FSDP2 trainer."""

from pathlib import Path

import pytest

from roll.config.backends import FsdpTrain
from roll.config.load import load
from roll.errors import ConfigError

TEXT = """\
executor: ray
model: {path: somewhere}
algorithm: grpo
tasks: [{name: sums, data: arithmetic, reward: exact}]
actor_train: {backend: fsdp2, workers: 4, parallel: {tp: 2}}
"""


def loaded(folder: Path, *changes: str) -> FsdpTrain:
    (folder / "run.yaml").write_text(TEXT)
    section = load(folder / "run.yaml", changes).run.actor_train
    assert isinstance(section, FsdpTrain)
    return section


def test_the_number_of_ranks_follows_from_workers_or_devices(tmp_path: Path) -> None:
    assert loaded(tmp_path).num_workers == 4
    assert loaded(tmp_path, "actor_train={backend: fsdp2, devices: 0-7, parallel: {tp: 2, cp: 4}}").num_workers == 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("actor_train.workers=3", r"workers \(3\) do not divide into groups of parallel.tp \(2\) times"),
        ("actor_train.parallel.cp=4", r"workers \(4\) do not divide into groups of parallel.tp \(2\) times"),
        ("actor_train.backend=fsdp", "actor_train"),
        ("actor_train.ofload=true", "did you mean 'offload'"),
    ],
)
def test_invalid_settings_of_fsdp_are_errors(change: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        loaded(tmp_path, change)


def test_ranks_need_processes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"actor_train.backend \(fsdp2\): every rank is a process"):
        loaded(tmp_path, "executor=inline", "actor_train={backend: fsdp2}")


def test_an_auxiliary_model_is_sharded_only_over_several_processes(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(TEXT)
    run = load(tmp_path / "run.yaml", ["critic={sharded: true, workers: 2}"]).run
    assert run.critic.sharded and not run.reference.sharded
    with pytest.raises(ConfigError, match=r"critic.workers \(2\): backend native trains in one process"):
        load(tmp_path / "run.yaml", ["critic={workers: 2}"])
    with pytest.raises(ConfigError, match=r"reference.sharded: with executor inline every role is in this process"):
        load(tmp_path / "run.yaml", ["executor=inline", "actor_train={}", "reference.sharded=true"])
