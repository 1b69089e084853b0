"""Every command of the quick starts and tutorials runs, in the order of its page and on the files of its page.

A block with a title is a file. Commands of `sh` blocks run, with two steps in place of all; those of `bash` blocks
need more than a CPU, so that only their files are explained. A `text` block is output of the `sh` block above it.
"""

import contextlib
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from typing import Any

import pytest

import roll
from roll.cli import main

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PAGES = sorted(path for folder in ("start", "tutorials") for path in (ROOT / "docs" / folder).glob("*.md"))
PAGES.append(ROOT / "docs" / "planning.md")
SMALL = {
    "sft": ["sft.steps=2", "model.shape.hidden=32", "validation.tasks.0.limit=8", "threads=1"],
    "train": ["steps=2", "rollout.groups_per_step=4", "rollout.group_size=2", "threads=1"],
    "eval": ["validation.tasks.0.limit=8", "threads=1"],
    "resume": ["steps=3"],
    "plan": ["rollout.groups_per_step=4", "rollout.group_size=2"],
}
"""Overrides that make a command a matter of seconds."""
HELD_OUT = {"laptop.md": ["validation.tasks.0.limit=8"]}
"""More overrides of `train`, by page."""
ELSEWHERE = {"pip", "hf", "source", "ssh", "sbatch", "kubectl", "make"}
"""Programs of `bash` blocks other than roll and scripts of the repository."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block of a page."""

    language: str
    info: str
    text: str

    @property
    def title(self) -> str:
        return match[1] if (match := re.search(r'title="([^"]+)"', self.info)) else ""


def blocks(page: Path) -> list[Block]:
    found = re.findall(r"^```(\w*)([^\n]*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [Block(language=language, info=info, text=text) for language, info, text in found]


def commands(block: Block) -> Iterator[list[str]]:
    for line in block.text.splitlines():
        if words := shlex.split(line, comments=True):
            yield words


def run_roll(arguments: list[str], more: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, *more])
    if ended.value.code:
        raise AssertionError(f"exit code {ended.value.code}: roll {shlex.join(arguments)}")


def execute(block: Block, page: str, names: dict[str, Any]) -> None:
    """Run one block in the current directory."""
    if block.title:
        Path(block.title).write_text(block.text, encoding="utf-8")
    elif block.language == "python":
        exec(block.text, names)
    elif block.language == "sh":
        for program, *arguments in commands(block):
            assert program == "roll", f"{page}: no test runs {program}"
            more = [*SMALL.get(arguments[0], []), *(HELD_OUT.get(page, []) if arguments[0] == "train" else [])]
            more = [] if "--check" in arguments else more
            run_roll(arguments, more)
    elif block.language == "bash":
        for words in commands(block):
            program, *arguments = dropwhile(lambda word: re.match(r"[A-Z]+=", word), words)
            if program == "roll" and arguments[0] in ("train", "sft"):
                run_roll(["explain", *(word for word in arguments[1:] if not word.startswith("--"))], [])
            elif program != "roll":
                assert program in ELSEWHERE or Path(arguments[0] if program == "python" else program).is_file()


def normalise(line: str) -> str:
    """The line without its numbers and its widths."""
    return re.sub(r"\s+", " ", re.sub(r"[-+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?", "0", line)).strip()


def missing_lines(shown: str, printed: str) -> list[str]:
    lines = {normalise(line) for line in printed.splitlines()}
    return [line for line in shown.splitlines() if line.strip() not in ("", "...") and normalise(line) not in lines]


@contextlib.contextmanager
def import_nothing_that_stays(folder: Path) -> Iterator[None]:
    """Drop the modules of the folder at the end: another page may have others of the same name."""
    before, path = set(sys.modules), list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - before:
            if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_a_page_runs_in_its_order(
    page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    with import_nothing_that_stays(tmp_path), contextlib.chdir(tmp_path):
        for block in blocks(page):
            if block.language == "text" and not block.title:
                assert missing_lines(block.text, printed) == [], printed
                continue
            execute(block, page.name, names)
            printed = "".join(capsys.readouterr())


def test_every_block_has_a_language_that_is_tested() -> None:
    languages = {(page.name, block.language) for page in PAGES for block in blocks(page) if not block.title}
    assert {language for _, language in languages} <= {"sh", "bash", "python", "text"}
    assert len(PAGES) >= 8


def test_a_page_says_which_commands_no_test_runs() -> None:
    untested = [page for page in PAGES if any(block.language == "bash" for block in blocks(page))]
    assert untested and all("not run by the tests" in page.read_text(encoding="utf-8") for page in untested)


@pytest.mark.parametrize(
    ("shown", "printed", "missing"),
    [
        ("step 40/40 | reward 0.91", "step 2/2 | reward 0.05", []),
        ("a   1.5 s\n...\nb 3", "b 4\na 20 s", []),
        ("held-out accuracy", "validation accuracy", ["held-out accuracy"]),
    ],
)
def test_shown_output_is_compared_without_its_numbers(shown: str, printed: str, missing: list[str]) -> None:
    assert missing_lines(shown, printed) == missing


def test_a_wrong_command_or_a_wrong_output_fails(tmp_path: Path) -> None:
    wrong: list[Callable[[], None]] = [
        lambda: execute(Block(language="sh", info="", text="roll check nowhere.yaml\n"), "x.md", {}),
        lambda: execute(Block(language="sh", info="", text="curl example.org\n"), "x.md", {}),
        lambda: execute(Block(language="bash", info="", text="roll train nowhere.yaml\n"), "x.md", {}),
        lambda: execute(Block(language="bash", info="", text="./launch.sh\n"), "x.md", {}),
    ]
    for call in wrong:
        with contextlib.chdir(tmp_path), pytest.raises(AssertionError):
            call()


def test_every_key_of_the_page_for_users_of_other_libraries_exists() -> None:
    from roll.config.knobs import knobs

    page = (ROOT / "docs/tutorials/migrate.md").read_text(encoding="utf-8").partition("## From TRL")[2]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in page.splitlines() if line.startswith("| `")]
    keys = {key for row in rows for key in re.findall(r"`([a-z_]+(?:\.\w+)*)`", row[1])}
    here = {knob.key for knob in knobs()}
    assert len(keys) > 40
    assert {key for key in keys if key not in here} == set()


def test_the_quick_start_on_a_gpu_has_the_commands_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (commands_there,) = re.findall(r"^```bash\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)
    assert commands_there in (ROOT / "docs/start/gpu.md").read_text(encoding="utf-8")


@pytest.mark.learns
def test_the_run_of_a_tutorial_learns_at_its_full_size(tmp_path: Path) -> None:
    with import_nothing_that_stays(tmp_path), contextlib.chdir(tmp_path):
        for block in blocks(ROOT / "docs/tutorials/loss.md"):
            if block.title:
                execute(block, "loss.md", {})
        rewards = [row["reward/mean"] for row in roll.metrics(roll.train("gentle.yaml", threads=1).directory)[1:]]
    assert sum(rewards[:5]) / 5 < 0.3 and sum(rewards[-5:]) / 5 > 0.8
