"""A key under its old name is an error that tells the new name."""

from pathlib import Path

import pytest

from roll.commands.train import resume
from roll.config.faults import RENAMED
from roll.config.knobs import knobs, sections_at
from roll.config.load import dump, load
from roll.errors import ConfigError

TEXT = """\
name: demo
model: {shape: {hidden: 64}}
algorithm: grpo
tasks: [{name: sums, data: arithmetic, reward: exact}]
rollout: {max_seq_len: 512}
"""

PATHS = {
    "Run": "",
    "Shape": "model.shape",
    "Rollout": "rollout",
    "Ray": "ray",
    "NativeTrain": "actor_train",
    "FsdpTrain": "actor_train",
    "Optimizer": "actor_train.optimizer",
    "Lora": "actor_train.lora",
    "NativeInfer": "actor_infer",
    "VllmInfer": "actor_infer",
    "Algorithm": "algorithm",
    "DomainAlgorithm": "tasks.0.algorithm",
    "Kl": "algorithm.kl",
    "TaskSourceConfig": "tasks.0",
    "Policy": "policies.0",
    "Envs": "envs",
    "ProxyConfig": "proxy",
    "Checkpoint": "checkpoint",
    "Sft": "sft",
}
NEEDED = {
    "FsdpTrain": ["actor_train.backend=fsdp2"],
    "VllmInfer": ["actor_infer.backend=vllm"],
    "Policy": ["policies=[{name: x}]"],
}
"""Overrides that select the section; a policy lacks `agents`, which then must not be reported as missing too."""
CASES = [(section.__name__, old, new) for section, names in RENAMED.items() for old, new in names.items()]


@pytest.mark.parametrize(("section", "old", "new"), CASES)
def test_an_old_key_is_an_error_with_the_new_name(tmp_path: Path, section: str, old: str, new: str) -> None:
    path, above = tmp_path / "run.yaml", PATHS[section]
    path.write_text(TEXT)
    key, renamed = (f"{above}.{old}", f"{above}.{new}") if above else (old, new)
    with pytest.raises(ConfigError) as raised:
        load(path, [*NEEDED.get(section, []), f"{key}=1"])
    assert str(raised.value) == f"command line: unknown key {key!r}; it is now {renamed!r}"


def test_every_new_name_is_a_key_and_no_old_name_is() -> None:
    known = {knob.key for knob in knobs()}
    for section, names in RENAMED.items():
        assert section in sections_at(PATHS[section.__name__].split(".") if PATHS[section.__name__] else [])
        assert set(names.values()) <= set(section.model_fields) and not set(names) & set(section.model_fields)
    assert "rollout.max_seq_len" in known


def test_an_old_key_of_a_file_is_reported_at_its_line(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(TEXT.replace("max_seq_len: 512", "\n  context: 512"))
    with pytest.raises(ConfigError) as raised:
        load(tmp_path / "run.yaml")
    assert str(raised.value) == f"{tmp_path}/run.yaml:6: unknown key 'rollout.context'; it is now 'rollout.max_seq_len'"


def test_an_old_section_is_reported_with_the_command_line_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(TEXT)
    with pytest.raises(ConfigError) as raised:
        load(tmp_path / "run.yaml", ["publication.transport=gloo"])
    assert str(raised.value) == "command line: unknown key 'publication'; it is now 'weight_sync'"


def test_a_saved_config_with_an_old_key_cannot_be_resumed_and_tells_the_new_name(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(TEXT)
    saved = dump(load(tmp_path / "run.yaml").run).replace(
        "  max_seq_len: 512\n  context_policy", "  context: 512\n  context_policy"
    )
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "config.yaml").write_text(saved)
    with pytest.raises(ConfigError) as raised:
        resume(tmp_path / "runs", [])
    line = next(number for number, text in enumerate(saved.splitlines(), start=1) if text == "  context: 512")
    where = f"{tmp_path}/runs/config.yaml:{line}"
    assert str(raised.value) == f"{where}: unknown key 'rollout.context'; it is now 'rollout.max_seq_len'"
