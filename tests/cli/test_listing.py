"""`roll list`: what a file may name, with a line about each."""

import subprocess
import sys

import pytest

from roll.cli import main
from roll.config.load import recipes
from roll.registry import TABLES

pytestmark = pytest.mark.slow


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["list", *arguments])
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out + captured.err


def test_every_name_of_every_kind_is_listed_with_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said(capsys)
    lines = text.splitlines()
    assert code == 0
    for kind, names in {"recipes": recipes(), **{kind: table.targets for kind, table in TABLES.items()}}.items():
        below = lines[lines.index(kind) + 1 :][: len(names)]
        assert [line.split()[0] for line in below] == list(names)
        assert all(len(line.split()) > 2 for line in below), kind


def test_one_kind_is_listed_alone_and_an_unknown_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said(capsys, "masks")
    assert code == 0 and [line.split()[0] for line in text.splitlines()] == ["masks", *TABLES["masks"].targets]
    assert said(capsys, "reward") == (2, "no kind named 'reward'; did you mean 'rewards'?\n")


def test_environments_are_listed_by_the_name_of_their_key_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "envs") == said(capsys, "environments")


def test_listing_imports_nothing_of_what_it_lists() -> None:
    script = "import sys\nfrom roll.registry import TABLES\nfound = [table.summaries() for table in TABLES.values()]\n"
    heavy = "print(sorted({'torch', 'numpy', 'transformers', 'roll.rewards.math.reward'} & sys.modules.keys()))"
    ended = subprocess.run([sys.executable, "-c", script + heavy], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
