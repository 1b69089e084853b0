"""The generated pages are those of the source, and they leave out nothing."""

import contextlib
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from roll.config.knobs import knobs

ROOT = Path(__file__).parents[1]
PAGES: dict[Path, str] = runpy.run_path(str(ROOT / "docs/generate.py"))["pages"]()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_generated_page_is_up_to_date(page: Path) -> None:
    assert page.is_file() and page.read_text(encoding="utf-8") == PAGES[page], "run make docs"


@pytest.mark.parametrize("name", ["metrics.md", "reference/config.md", "reference/types.md"])
def test_everything_in_a_reference_has_a_meaning(name: str) -> None:
    rows = [line for line in PAGES[ROOT / "docs" / name].splitlines() if line.startswith("| `")]
    empty = {row.split("`")[1] for row in rows if not row.removesuffix("|").rpartition("|")[2].strip()}
    assert len(rows) > 50
    assert {name for name in empty if name.islower()} <= {"role", "content"}, "only members of enums need no text"


def test_every_key_of_the_schema_is_in_the_reference() -> None:
    keys: set[str] = set()
    places: list[str] = []
    for line in PAGES[ROOT / "docs/reference/config.md"].splitlines():
        if line.startswith("## "):
            places = re.findall(r"`([\w.]+)`", line) or [""]
        elif line.startswith("| `"):
            name = line.split("`")[1]
            keys |= {f"{place}.{name}".removeprefix(".") for place in places}
    assert {knob.key for knob in knobs()} - keys == set()


def blocks(page: str, heading: str = "") -> list[str]:
    """The Python code of a page, or of the section with this heading."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    section = text.partition(heading)[2].partition("\n## ")[0] if heading else text
    return re.findall(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_the_example_of_the_python_page_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("python.md")
    for long, short in (
        ('steps": 40', 'steps": 2'),
        ("steps=50", "steps=3"),
        ('groups_per_step": 8', 'groups_per_step": 2'),
    ):
        assert long in code
        code = code.replace(long, short)
    names: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.chdir(tmp_path):
        exec(code, names)
    assert (names["result"].steps, names["result"].finished) == (3, True)
    assert [step for step, _ in names["curve"]] == [0, 1, 2] and len(names["worst"]) == 5
    assert re.search(r"^0\.\d+ -> 0\.\d+ runs/notebook/model$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.slow
def test_the_advantage_of_the_algorithms_page_follows_every_law_and_its_formula(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from roll.conformance.laws import check_advantage
    from roll.registry import ADVANTAGES

    code, *_ = blocks("algorithms.md", "## Your own advantage")
    (tmp_path / "my_advantage.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert check_advantage("my_advantage:centred", scale=0.5) == []
    assert check_advantage("my_advantage:centred", like="group_normalised") != []
    assert ADVANTAGES.faults("my_advantage:centred", {"scale": 0.5}) == []


def test_the_index_lists_every_page() -> None:
    index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md") if path.name != "README.md"]
    missing = [page for page in pages if page.parts[0] != "decisions" and f"({page})" not in index]
    assert missing == [] and "(decisions)" in index
    assert "(docs/README.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
