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


def test_one_name_is_listed_with_the_types_defaults_and_text_of_its_arguments(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, text = said(capsys, "losses", "clipped")
    assert code == 0
    assert text.startswith("roll.algorithms.losses:clipped\n    PPO's clipped surrogate")
    assert "arguments\n    clip_low: float = 0.2\n" in text
    code, text = said(capsys, "datasets", "jsonl")
    assert code == 0 and "    path: str  (required)\n" in text
    assert said(capsys, "advantages", "batch_centred")[1].endswith("takes no arguments\n")


def test_the_text_of_an_argument_is_the_one_below_the_field_of_a_class(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "envs", "tool_use")[1]
    assert "    timeout_s: float = 30.0\n        Per call.\n" in text


def test_a_recipe_is_listed_as_its_file_and_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "recipes", "grpo") == (0, recipes()["grpo"])
    assert said(capsys, "losses", "cliped") == (2, "no loss named 'cliped'; did you mean 'clipped'?\n")
    assert said(capsys, "recipes", "grp") == (2, "no recipe named 'grp'; did you mean 'grpo'?\n")


@pytest.mark.parametrize("kind", TABLES)
def test_every_name_of_a_kind_has_its_arguments_listed(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name in TABLES[kind].targets:
        code, text = said(capsys, kind, name)
        assert code == 0 and len(text.splitlines()) >= 3, name
