"""The README is true: its commands run, its code is the example's, its links lead somewhere."""

import contextlib
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from roll.cli import main
from roll.config.load import load

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
SMALL = {
    "sft": ["sft.steps=2", "model.shape.hidden=32", "validation.tasks.0.limit=8", "threads=1"],
    "train": [
        "steps=2",
        "rollout.groups_per_step=4",
        "rollout.group_size=2",
        "validation.tasks.0.limit=8",
        "threads=1",
    ],
}
"""What makes a command of the README a matter of seconds."""


MAX_FILES = 32
"""Files from prompt to gradient."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def commands(program: str) -> list[list[str]]:
    """What the README gives to one program, in order."""
    lines = [shlex.split(line) for block in blocks("sh") for line in block.splitlines()]
    return [line[1:] for line in lines if line[0] == program]


def targets() -> Iterator[str]:
    for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines():
        yield from re.findall(r"^(\w+):", line)


def demo() -> list[list[str]]:
    """The commands of `make demo`, which those of the README come after."""
    target = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\ndemo:")[2].partition("\n\n")[0]
    return [shlex.split(line)[1:] for line in target.splitlines() if line.startswith("\t$(BIN)/roll ")]


def test_the_readme_uses_no_program_that_is_not_tested_here() -> None:
    used = {shlex.split(line)[0] for block in blocks("sh") for line in block.splitlines()}
    assert used == {"make", "roll", ".venv/bin/python"}


def test_every_make_target_of_the_readme_exists() -> None:
    named = [*commands("make"), *([target] for target in re.findall(r"`make (\w+)", README))]
    assert {"demo", "test"} <= {target for (target,) in named} <= set(targets())


def test_the_environment_to_activate_is_the_one_that_make_makes() -> None:
    assert "\nsource .venv/bin/activate\n" in (ROOT / "docs/start/laptop.md").read_text(encoding="utf-8")
    assert "VENV := .venv\n" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_the_script_of_the_readme_exists_and_its_overrides_are_keys() -> None:
    (arguments,) = commands(".venv/bin/python")
    script, *overrides = arguments
    assert (ROOT / script).is_file()
    assert load(ROOT / "examples/arithmetic.yaml", overrides).run.steps == 20


def test_every_roll_command_of_the_readme_runs_in_its_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    ran: list[str] = []
    for arguments in (*demo(), *commands("roll")):
        with contextlib.chdir(tmp_path), pytest.raises(SystemExit) as ended:
            main([*arguments, *SMALL.get(arguments[0], [])])
        assert not ended.value.code, (arguments, capsys.readouterr())
        ran.append(arguments[0])
    assert set(ran) == {"sft", "train", "bench"}


def test_the_code_of_the_readme_is_that_of_the_example() -> None:
    written = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "examples" / "custom").glob("*.py"))
    assert len(blocks("python")) == 3
    assert [block for block in blocks("python") if block not in written] == []
    (configured,) = blocks("yaml")
    assert configured in (ROOT / "examples" / "custom" / "run.yaml").read_text(encoding="utf-8")


def test_every_stop_on_the_way_of_a_sample_is_there() -> None:
    stops = README.partition("## Follow one sample")[2].partition("\n## ")[0]
    files = set(re.findall(r"`(roll/[\w/]+\.py)`", stops))
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "roll").rglob("*.py"))
    names = {part for name in re.findall(r"`([A-Za-z_.]+)`", stops) for part in name.split(".")}
    names -= {"tasks", "backward", "examples", "arithmetic", "yaml"}
    assert 10 < len(files) <= MAX_FILES and len(names) > 15
    assert {name for name in names if not re.search(rf"(class|def) {name}\b", code)} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_and_every_file_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    linked = [page.parent / target for target in re.findall(r"\]\(([^)#:\s]+)\)", text)]
    named = [ROOT / target for target in re.findall(r"`((?:roll|tests|docs|examples)/[\w./-]+)`", text)]
    assert [path for path in (*linked, *named) if not path.exists()] == []
