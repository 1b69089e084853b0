"""Every recipe loads, passes preflight, is explained, and has a section in docs/algorithms.md."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import roll
from roll.config.load import LoadedRun, load
from roll.config.section import SpecConfig
from roll.explain.run import explain
from roll.preflight import importable, preflight
from roll.registry import PARTS
from tests.model_directories import fill

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
rollout: {max_seq_len: 512, groups_per_step: 4, group_size: 4}
"""


def loaded(tmp_path: Path, name: str, *overrides: str) -> LoadedRun:
    """A small run with the recipe and `overrides`."""
    path = tmp_path / "run.yaml"
    distilled = f"teacher: {{path: {teacher(tmp_path)}}}\n" if name == "opd" else ""
    path.write_text(RUN.replace("NAME", name) + distilled)
    return load(path, overrides)


def teacher(tmp_path: Path) -> str:
    """A directory with the files that preflight looks for in a model."""
    folder = tmp_path / "teacher"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "qwen3"}')
    fill(folder)
    return str(folder)


def page_of(tmp_path: Path, name: str, *overrides: str) -> str:
    return " ".join(explain(loaded(tmp_path, name, *overrides).run).split())


def parts_of(name: str) -> list[tuple[str, str]]:
    """Every function that a recipe names: the key that names it, and its short name."""
    tree = yaml.safe_load(FILES[name].read_text(encoding="utf-8"))
    values = [(key, each) for key, value in tree.items() for each in (value if isinstance(value, list) else [value])]
    return [(key, SpecConfig.model_validate(each).kind) for key, each in values if key in PARTS]


def rows_of(page: str) -> list[list[str]]:
    table = page.partition("## The recipes")[2].partition("\n## ")[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("| `")]


def test_all_recipes_are_listed_here() -> None:
    assert set(FILES) == NAMES


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_recipe_is_a_few_lines_after_a_one_line_description(name: str) -> None:
    first, *others = FILES[name].read_text(encoding="utf-8").splitlines()
    assert re.fullmatch(r"# [A-Z].*\.", first) and len(first) <= 120
    assert 3 <= len(others) <= 8 and not any("#" in line for line in others)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FILES))
def test_a_recipe_passes_preflight_and_all_of_its_parts_are_explained(tmp_path: Path, name: str) -> None:
    preflight(loaded(tmp_path, name))
    text = page_of(tmp_path, name)
    assert f"recipe {name} " in text
    parts = parts_of(name)
    assert {"advantage", "loss", "aggregation"} <= {key for key, _ in parts}
    explained = [kind for key, kind in parts if re.search(rf"{key} (loss x )?{kind}(\([^)]*\))?: ", text)]
    assert explained == [kind for _, kind in parts]


@pytest.mark.parametrize("name", sorted(FILES))
def test_exactly_the_needs_of_a_recipe_are_explained(tmp_path: Path, name: str) -> None:
    needs = loaded(tmp_path, name).run.algorithm.all_needs
    block = explain(loaded(tmp_path, name).run).partition("\nAlgorithm\n")[2].partition("\n\n")[0]
    labels = set(re.findall(r"^  (\S+(?: \S+)?)  ", block, re.MULTILINE))
    roles = labels & {"reference", "critic", "teacher", "reward model", "old logprobs", "states"}
    assert roles == {need.replace("_", " ") for need in needs}
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
def test_a_recipe_needs_the_models_of_its_method(tmp_path: Path, name: str, needs: set[str]) -> None:
    assert loaded(tmp_path, name).run.algorithm.all_needs == needs


def test_any_part_of_a_recipe_can_be_overridden(tmp_path: Path) -> None:
    text = page_of(tmp_path, "dapo", "algorithm.loss.clip_high=0.3", "algorithm.minibatches=2", "algorithm.filters=[]")
    assert "clipped(clip_low=0.2, clip_high=0.3, " in text and "2 per batch = 1 epoch x 2 minibatches" in text
    assert "filters mixed" not in text and "filters mixed" in page_of(tmp_path, "dapo")


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
        cells = {"advantage": advantage, "loss": loss, "aggregation": aggregation}
        parts = {key: kind for key, kind in parts_of(name) if key in cells}
        assert {key: re.findall(r"`(\w+)", cell)[0] for key, cell in cells.items()} == parts, name
        algorithm = loaded(tmp_path, name).run.algorithm
        assert int(updates) == algorithm.epochs * algorithm.minibatches, name
        roles = algorithm.all_needs - {"old_logprobs"}
        assert {role for role in ("reference", "critic", "teacher", "states") if role in beyond} == roles, name


def test_the_page_names_every_function_that_a_recipe_may_name() -> None:
    documented = set(re.findall(r"`(\w+)`", PAGE))
    assert {name for table in PARTS.values() for name in table.targets} - documented == set()


def blocks(language: str) -> list[str]:
    """The code of the page, with its module under a name that no other test imports."""
    code = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return [
        block.replace("my_loss", "loss_of_the_page").replace("my_advantage", "advantage_of_the_page") for block in code
    ]


@pytest.mark.parametrize("block", blocks("yaml"))
def test_every_yaml_of_the_page_loads(tmp_path: Path, block: str) -> None:
    tree = {**yaml.safe_load(RUN), **yaml.safe_load(block)}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(tree))
    (tmp_path / "loss_of_the_page.py").write_text(blocks("python")[0])
    (tmp_path / "advantage_of_the_page.py").write_text("".join(blocks("python")[2:]))
    (tmp_path / "my_optimizers.py").write_text("class Lion:\n    def __init__(self, params, *, lr, betas): ...\n")
    preflight(load(tmp_path / "run.yaml"), files=False)


@pytest.mark.slow
def test_the_loss_of_the_page_passes_the_kit_with_the_line_of_the_page(tmp_path: Path) -> None:
    loss, line, *_ = blocks("python")
    (tmp_path / "loss_of_the_page.py").write_text(loss)
    importable(tmp_path / "run.yaml")
    assert "check_loss" in line
    exec(line, {})


@pytest.mark.slow
def test_the_advantage_of_the_page_gives_credit_to_uncertain_tokens(tmp_path: Path) -> None:
    from tests.algorithms.build import batch

    names: dict[str, Any] = {}
    exec(blocks("python")[3], names)
    example = batch([0, 1, 1, 1, 1, 1], (3, 3), rewards=[1.0, 0.0], entropies=[9.0, 0.1, 0.5, 0.2, 0.3, 0.4])
    # the fifth with the most entropy of five trained tokens, and all that reach the quantile at 0.8: 0.42
    assert names["at_forks"](example).tolist() == [0.0, 0.0, pytest.approx(1.0, rel=1e-5), 0.0, 0.0, 0.0]


def test_entropies_imply_old_logprobs(tmp_path: Path) -> None:
    assert loaded(tmp_path, "grpo", "algorithm.needs=[entropies]").run.algorithm.all_needs == {
        "entropies",
        "old_logprobs",
    }
