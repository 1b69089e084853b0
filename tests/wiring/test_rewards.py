"""What a run says of its sandboxes, against what the machine has, before anything starts."""

from pathlib import Path

import pytest

from roll.config.load import LoadedRun, load
from roll.errors import ConfigError
from roll.sandbox.level import TRUSTED_CODE
from roll.wiring.services import check_sandboxes

TEXT = """\
model: {shape: {hidden: 64}}
algorithm: grpo
rollout: {max_seq_len: 512}
tasks:
  - {name: sums, data: arithmetic, reward: exact}
  - name: programs
    data: arithmetic
    reward: [exact, {kind: code, weight: 0.5}]
validation:
  tasks:
    - {name: held, data: arithmetic, reward: {kind: "roll.rewards.code.reward:score", sandbox: bubblewrap}}
"""


def loaded(tmp_path: Path, *overrides: str) -> LoadedRun:
    path = tmp_path / "run.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return load(path, overrides)


def bare(option: str) -> None:
    """A machine without a sandbox."""
    if option != TRUSTED_CODE:
        raise ConfigError(f"sandbox: none here (got {option!r}); install one")


def test_code_is_refused_at_its_place_where_there_is_no_sandbox(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        check_sandboxes(loaded(tmp_path), choose=bare)
    told = "run.yaml:8: tasks.1.reward: sandbox: none here (got 'auto'); install one"
    assert str(caught.value).removeprefix(f"{tmp_path}/") == told


def test_without_training_only_held_out_tasks_need_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"validation.tasks.0.reward: .*got 'bubblewrap'"):
        check_sandboxes(loaded(tmp_path), training=False, choose=bare)


def test_who_says_in_words_that_code_is_trusted_needs_none(tmp_path: Path) -> None:
    trusting = f'sandbox="{TRUSTED_CODE}"'
    check_sandboxes(
        loaded(tmp_path, f"tasks.1.reward.1.{trusting}", f"validation.tasks.0.reward.{trusting}"), choose=bare
    )


def test_where_there_is_a_sandbox_nothing_is_said(tmp_path: Path) -> None:
    asked: list[str] = []
    check_sandboxes(loaded(tmp_path), choose=asked.append)
    assert asked == ["auto", "bubblewrap"]
