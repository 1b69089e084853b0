"""Every recipe loads, passes preflight, says in words what it is made of, and has its section in docs/algorithms.md."""

import re
from pathlib import Path

import pytest
import yaml

import roll
from roll.config.load import Loaded, load
from roll.config.section import Named
from roll.explain.formulas import FORMULAS
from roll.explain.run import explain
from roll.preflight import importable, preflight

ROOT = Path(__file__).parents[1]
FILES = {path.name.removesuffix(".yaml"): path for path in (Path(roll.__file__).parent / "recipes").glob("*.yaml")}
PAGE = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
NAMES = {
    *("ppo", "grpo", "dr_grpo", "rloo", "reinforce", "reinforce++", "reinforce++_baseline", "lite_ppo", "dapo", "gspo"),
    *("cispo", "tis", "topr", "raft++", "kimi15", "sapo", "gmpo", "decoupled_ppo", "step_reinforce", "gigpo", "opd"),
}
RUN = """\
name: recipe
model: {shape: {hidden: 64}}
algorithm: NAME
tasks:
  - {name: sums, data: arithmetic, reward: exact}
rollout: {context: 512, groups_per_step: 4, group_size: 4}
"""


def loaded(tmp_path: Path, name: str, *overrides: str) -> Loaded:
    """A small run with the recipe, laid over by nothing but `overrides`."""
    path = tmp_path / "run.yaml"
    taught = f"teacher: {{path: {teacher(tmp_path)}}}\n" if name == "opd" else ""
    path.write_text(RUN.replace("NAME", name) + taught)
    return load(path, overrides)


def teacher(tmp_path: Path) -> str:
    """A folder that looks like a model from outside, which is all that preflight does."""
    folder = tmp_path / "teacher"
    folder.mkdir(exist_ok=True)
    for file in ("config.json", "model.safetensors"):
        (folder / file).touch()
    return str(folder)


def page_of(tmp_path: Path, name: str, *overrides: str) -> str:
    return " ".join(explain(loaded(tmp_path, name, *overrides).run).split())


def parts_of(name: str) -> list[tuple[str, str]]:
    """Every function that a recipe names: the key that names it, and its short name."""
    tree = yaml.safe_load(FILES[name].read_text(encoding="utf-8"))
    found = [(key, each) for key, value in tree.items() for each in (value if isinstance(value, list) else [value])]
    return [(key, Named.model_validate(each).kind) for key, each in found if key in FORMULAS]


def rows_of(page: str) -> list[list[str]]:
    table = page.partition("## The recipes")[2].partition("\n## ")[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("| `")]


def test_the_recipes_are_the_promised_ones() -> None:
    assert set(FILES) == NAMES


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_recipe_is_a_few_lines_that_begin_with_what_it_is(name: str) -> None:
    first, *others = FILES[name].read_text(encoding="utf-8").splitlines()
    assert re.fullmatch(r"# [A-Z].*\.", first) and len(first) <= 120
    assert 3 <= len(others) <= 8 and not any("#" in line for line in others)


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_recipe_passes_preflight_and_names_its_parts_in_words(tmp_path: Path, name: str) -> None:
    found = loaded(tmp_path, name)
    preflight(found)
    text = page_of(tmp_path, name)
    assert f"recipe {name} " in text
    named = parts_of(name)
    assert {"advantage", "loss", "aggregation"} <= {key for key, _ in named}
    assert [kind for key, kind in named if f"{key} {kind}: " not in text] == []  # a formula follows the colon


@pytest.mark.parametrize("name", sorted(FILES))
def test_what_a_recipe_needs_is_told_and_nothing_else(tmp_path: Path, name: str) -> None:
    needs = loaded(tmp_path, name).run.algorithm.all_needs
    block = explain(loaded(tmp_path, name).run).partition("\nAlgorithm\n")[2].partition("\n\n")[0]
    labels = set(re.findall(r"^  (\S+(?: \S+)?)  ", block, re.MULTILINE))
    told = labels & {"reference", "critic", "teacher", "reward model", "old logprobs", "states"}
    assert told == {need.replace("_", " ") for need in needs}
    assert ("roles" in labels) == (not needs)


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("grpo", set()),
        ("ppo", {"critic", "old_logprobs"}),
        ("reinforce++", {"reference", "old_logprobs"}),
        ("gigpo", {"states"}),
        ("opd", {"teacher"}),
    ],
)
def test_a_recipe_starts_what_its_method_is_about(tmp_path: Path, name: str, needs: set[str]) -> None:
    assert loaded(tmp_path, name).run.algorithm.all_needs == needs


def test_any_part_of_a_recipe_can_be_laid_over_in_place(tmp_path: Path) -> None:
    text = page_of(tmp_path, "dapo", "algorithm.loss.clip_high=0.3", "algorithm.minibatches=2", "algorithm.filters=[]")
    assert "clip(r, 1 - 0.2, 1 + 0.3)" in text and "2 a batch = 1 epoch x 2 minibatches" in text
    assert "replaced by another" not in text and "replaced by another" in page_of(tmp_path, "dapo")


def test_the_page_has_a_section_for_each_recipe_and_for_nothing_else() -> None:
    sections = PAGE.partition("\n## Recipe by recipe\n")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^### `([^`]+)`$", sections, re.MULTILINE)) == sorted(FILES)
    assert len(re.findall(r"^#+ ", sections, re.MULTILINE)) == len(FILES)


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_section_has_formula_use_knobs_and_source(name: str) -> None:
    _, _, rest = PAGE.partition(f"\n### `{name}`\n")
    section = re.split(r"^#", rest, maxsplit=1, flags=re.MULTILINE)[0]
    assert re.findall(r"^\*\*(\w+)\.\*\*", section, re.MULTILINE) == ["When", "Knobs", "Source"]
    formula = section.partition("**When.**")[0]
    assert "A" in formula and "L" in formula and re.search(r"```text\n.+?\n```", formula, re.DOTALL)
    assert re.search(r"\(\d{4}\)", section.partition("**Source.**")[2])


def test_the_table_names_the_parts_of_every_recipe(tmp_path: Path) -> None:
    rows = {cells[0].strip("`"): cells[1:] for cells in rows_of(PAGE)}
    assert set(rows) == set(FILES)
    for name, (advantage, loss, aggregation, updates, beyond) in rows.items():
        told = {"advantage": advantage, "loss": loss, "aggregation": aggregation}
        named = {key: kind for key, kind in parts_of(name) if key in told}
        assert {key: re.findall(r"`(\w+)", cell)[0] for key, cell in told.items()} == named, name
        algorithm = loaded(tmp_path, name).run.algorithm
        assert int(updates) == algorithm.epochs * algorithm.minibatches, name
        roles = algorithm.all_needs - {"old_logprobs"}
        assert {role for role in ("reference", "critic", "teacher", "states") if role in beyond} == roles, name


def test_the_page_names_every_function_that_a_recipe_may_name() -> None:
    named = set(re.findall(r"`(\w+)`", PAGE))
    assert {name for table in FORMULAS.values() for name in table} - named == set()


def blocks(language: str) -> list[str]:
    """The page's code, its module renamed: no other test has imported one of this name."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return [block.replace("my_loss", "loss_of_the_page") for block in found]


@pytest.mark.parametrize("block", blocks("yaml"))
def test_every_yaml_of_the_page_loads(tmp_path: Path, block: str) -> None:
    tree = {**yaml.safe_load(RUN), **yaml.safe_load(block)}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(tree))
    (tmp_path / "loss_of_the_page.py").write_text(blocks("python")[0])
    preflight(load(tmp_path / "run.yaml"), files=False)


def test_the_loss_of_the_page_passes_the_kit_with_the_line_of_the_page(tmp_path: Path) -> None:
    loss, line = blocks("python")
    (tmp_path / "loss_of_the_page.py").write_text(loss)
    importable(tmp_path / "run.yaml")
    assert "check_loss" in line
    exec(line, {})
