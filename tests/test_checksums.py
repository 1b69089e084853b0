"""Damage of any kind in a checkpoint is detected and named."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from roll.checkpoint import Checkpoints
from roll.checksums import CHECKSUMS, check_model, find_damage, write_checksums
from roll.errors import ConfigError


def flip(path: Path, position: int = -5) -> None:
    """Invert one bit of a file."""
    content = bytearray(path.read_bytes())
    content[position] ^= 4
    path.write_bytes(content)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name in ("model.safetensors", "policies/white/optimizer.pt", "critic/model.safetensors", "state.json"):
        (tmp_path / "step-1" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "step-1" / name).write_bytes(bytes(range(256)) * 8192)  # two reads
    write_checksums(tmp_path / "step-1")
    return tmp_path / "step-1"


def test_files_as_they_were_written_are_intact(directory: Path) -> None:
    assert find_damage(directory) == ""
    (directory / "notes.txt").write_text("a file of the user")
    assert find_damage(directory) == ""


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (flip, "its content has changed (CRC-32 "),
        (lambda path: flip(path, 0), "its content has changed"),
        (lambda path: os.truncate(path, 1000), "1,000 bytes long (written: 2,097,152)"),
        (Path.unlink, "missing"),
    ],
    ids=["last bytes", "first byte", "truncated", "missing"],
)
@pytest.mark.parametrize("name", ["state.json", "critic/model.safetensors", "policies/white/optimizer.pt"])
def test_a_damaged_file_is_named_with_the_difference(
    directory: Path, name: str, damage: Callable[[Path], None], text: str
) -> None:
    damage(directory / name)
    assert (find_damage(directory) or "").startswith(f"{name}: {text}")


@pytest.mark.parametrize("position", [20, 60, -10])
def test_damage_of_the_checksums_is_damage(directory: Path, position: int) -> None:
    flip(directory / CHECKSUMS, position)
    assert find_damage(directory)


def test_only_the_files_of_a_model_in_a_checkpoint_are_checked(directory: Path) -> None:
    flip(directory / "state.json")
    check_model(directory / "policies" / "white", "run.yaml")
    with pytest.raises(ConfigError, match=r"run\.yaml: .*step-1 is damaged: state\.json"):
        check_model(directory, "run.yaml")
    flip(directory / "policies" / "white" / "optimizer.pt")
    with pytest.raises(ConfigError, match=r"damaged: policies/white/optimizer\.pt"):
        check_model(directory / "policies" / "white", "run.yaml")


def write(checkpoints: Checkpoints, step: int) -> Path:
    async def fill(directory: Path) -> None:
        (directory / "weights").write_text(str(step))

    return asyncio.run(checkpoints.write(step, fill))


def test_the_newest_intact_checkpoint_is_taken_and_the_damage_named(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (1, 2, 3):
        write(checkpoints, step)
    flip(tmp_path / "step-3" / "weights", 0)
    intact = checkpoints.newest_intact()
    assert intact is not None and intact.path == tmp_path / "step-2" and intact.damaged == (tmp_path / "step-3",)
    (note,) = intact.notes
    assert note.startswith(f"{tmp_path / 'step-3'}: damaged: weights: its content has changed")


def test_a_damaged_checkpoint_that_is_set_aside_takes_no_place(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    write(checkpoints, 9)
    checkpoints.set_aside(tmp_path / "step-9")
    write(checkpoints, 5)
    assert checkpoints.steps() == [5]
    assert (tmp_path / "damaged-step-9" / "weights").read_text() == "9"


def test_a_checkpoint_without_checksums_is_taken_with_a_note(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    (write(checkpoints, 1) / CHECKSUMS).unlink()
    intact = checkpoints.newest_intact()
    assert intact is not None and intact.path == tmp_path / "step-1"
    assert "cannot be checked" in intact.notes[0]


def test_no_intact_checkpoint_is_one_line_and_changes_nothing(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (1, 2):
        flip(write(checkpoints, step) / "weights", 0)
    with pytest.raises(ConfigError, match=r"step-2: damaged: weights: .*none of the 2 checkpoints is intact") as caught:
        checkpoints.newest_intact()
    assert "\n" not in str(caught.value)
    assert checkpoints.steps() == [1, 2]
    assert Checkpoints(tmp_path / "none", keep=1).newest_intact() is None
