"""Numbers on the page are rewrite_text; its prose is not changed."""

from pathlib import Path

import pytest

from benchmarks.catalogue import CATALOGUE
from benchmarks.page import BEGIN, END, rewrite
from benchmarks.result import Result
from roll.errors import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
FAST = Result(name="generate", unit="tokens/s", higher_is_better=True, ours=2500.0, peer=1000.0)
SLOW = Result(name="generate", unit="tokens/s", higher_is_better=True, ours=777.0, peer=1000.0)


def rewrite_text(tmp_path: Path, text: str, *results: Result) -> str:
    path = tmp_path / "page.md"
    path.write_text(text, encoding="utf-8")
    rewrite(path, results)
    return path.read_text(encoding="utf-8")


def test_the_page_gets_a_row_with_numbers_goal_and_command(tmp_path: Path) -> None:
    text = rewrite_text(tmp_path, f"before\n{BEGIN}\nold\n{END}\nafter\n", FAST)
    row = "| generate | 2,500 | 1,000 | 2.5 | tokens/s | at least 2.5 times | `roll bench generate` |"
    assert row in text.splitlines()
    assert "old" not in text


def test_the_prose_of_the_page_is_left_as_it_is(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    new_text = rewrite_text(tmp_path, text, FAST)
    assert new_text.partition(BEGIN)[0] == text.partition(BEGIN)[0]
    assert new_text.partition(END)[2] == text.partition(END)[2]


def test_rewriting_twice_keeps_only_the_newer_numbers(tmp_path: Path) -> None:
    once = rewrite_text(tmp_path, f"{BEGIN}\n{END}\n", FAST)
    twice = rewrite_text(tmp_path, once, SLOW)
    assert "777" in twice
    assert "2,500" not in twice
    assert twice.count("\n") == once.count("\n")


def test_a_skipped_benchmark_is_on_the_page_with_its_reason(tmp_path: Path) -> None:
    skipped = Result(name="trl_cpu", unit="trajectories/s", higher_is_better=True, skipped="no | network")
    assert "| skipped: no / network |" in rewrite_text(tmp_path, f"{BEGIN}\n{END}\n", skipped)


@pytest.mark.parametrize("text", ["no markers", f"{END}\n{BEGIN}\n", f"{BEGIN}\n{BEGIN}\n{END}\n"])
def test_a_page_without_markers_is_rejected_and_unchanged(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="no markers for the numbers"):
        rewrite_text(tmp_path, text, FAST)
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == text


def test_a_missing_page_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such page"):
        rewrite(tmp_path / "page.md", [FAST])


def test_the_page_explains_every_benchmark_and_names_its_command() -> None:
    prose = PAGE.read_text(encoding="utf-8").partition(END)[2]
    for name in CATALOGUE:
        assert f"## {name}\n" in prose
        assert f"roll bench {name}" in prose
