"""Environments of peers: reused when complete; an error with a reason when they cannot be created."""

import sys
from pathlib import Path

import pytest

from benchmarks.environment import Unavailable, interpreter

pytestmark = pytest.mark.slow


def create_finished(directory: Path, requirements: str) -> None:
    (directory / "bin").mkdir(parents=True)
    (directory / "bin" / "python").symlink_to(sys.executable)
    (directory / "requirements.txt").write_text(requirements, encoding="utf-8")


def test_a_finished_environment_is_used_as_it_is(tmp_path: Path) -> None:
    create_finished(tmp_path / "peer", "one==1\ntwo==2\n")
    assert interpreter(tmp_path / "peer", ("one==1", "two==2")) == tmp_path / "peer" / "bin" / "python"


def test_an_environment_that_cannot_be_created_is_unavailable_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match=r"venv .* failed: .*file"):
        interpreter(tmp_path / "file" / "peer", ("one==1",))


@pytest.mark.sweep
def test_an_environment_with_other_requirements_is_recreated_and_unmarked_until_it_is_complete(
    tmp_path: Path,
) -> None:
    create_finished(tmp_path / "peer", "one==1\n")
    with pytest.raises(Unavailable, match=r"pip install` failed: ERROR: .*nowhere"):
        interpreter(tmp_path / "peer", (str(tmp_path / "nowhere.whl"),))
    assert not (tmp_path / "peer" / "requirements.txt").exists()
