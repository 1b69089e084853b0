"""Every cell of the matrix of trainers has a test that exists, a refusal that is raised, or a reason."""

import ast
import json
import re
from pathlib import Path

import pytest

from benchmarks.families import FAMILIES as SHAPES
from benchmarks.families import family_config
from benchmarks.trainer_matrix import FAMILIES, NOT_RUN, PROOFS, REFUSALS, Cell, cells
from roll.config.load import load
from roll.config.megatron import family_fault, layout_fault
from roll.errors import ConfigError

ROOT = Path(__file__).parents[1]
RUN = """\
executor: ray
model: {path: somewhere}
algorithm: grpo
tasks: [{name: sums, data: arithmetic, reward: exact}]
actor_train: {backend: BACKEND, workers: 2}
"""
CELLS = list(cells())


def name_of(cell: Cell) -> str:
    return f"{cell.backend}, {cell.division}, {cell.family}"


def sizes_of(division: str) -> dict[str, int]:
    """Such as `tp 2 x pp 2`, with 1 for the others; data parallelism follows from the workers."""
    sizes = {"tp": 1, "pp": 1, "cp": 1, "ep": 1}
    pairs = (part.split() for part in division.split(" x "))
    return sizes | {name: int(size) for name, size in pairs if name != "dp"}


def fault_of(cell: Cell) -> str:
    """Why Megatron-Core's blocks cannot have a layout; the small models have as many heads as the tests give them."""
    config = json.loads(family_config(cell.family, num_hidden_layers=4, num_key_value_heads=4).to_json_string())
    return family_fault(config) or layout_fault(config, workers=4, **sizes_of(cell.division))


def test_every_mark_has_one_meaning_and_is_used() -> None:
    known = [*PROOFS, *REFUSALS, *NOT_RUN]
    assert len(set(known)) == len(known)
    assert {cell.mark for cell in CELLS} == set(known)
    assert set(FAMILIES) <= set(SHAPES)


@pytest.mark.parametrize("mark", PROOFS)
def test_a_named_test_exists(mark: str) -> None:
    file, _, function = PROOFS[mark].where.rpartition("::")
    if not file:
        from benchmarks.catalogue import CATALOGUE

        assert function in CATALOGUE
        return
    assert function in _functions(ROOT / file)


@pytest.mark.parametrize("cell", [each for each in CELLS if each.mark in REFUSALS], ids=name_of)
def test_a_refusal_is_raised(cell: Cell, tmp_path: Path) -> None:
    refusal = REFUSALS[cell.mark]
    if refusal.test:
        file, _, function = refusal.test.partition("::")
        assert function in _functions(ROOT / file) and refusal.line.partition("have ")[2] in (ROOT / file).read_text()
    elif refusal.overrides:
        (tmp_path / "run.yaml").write_text(RUN.replace("BACKEND", cell.backend))
        with pytest.raises(ConfigError, match=re.escape(refusal.line)):
            load(tmp_path / "run.yaml", refusal.overrides)
    else:
        assert refusal.line in fault_of(cell)


@pytest.mark.parametrize("cell", [each for each in CELLS if each.backend == "megatron"], ids=name_of)
def test_a_layout_of_megatron_that_is_not_refused_is_possible(cell: Cell) -> None:
    assert bool(fault_of(cell)) == (cell.mark in REFUSALS)


def test_the_layouts_of_megatron_are_those_of_their_tests() -> None:
    from benchmarks.layouts import FAMILIES as MEASURED
    from benchmarks.layouts import LAYOUTS
    from tests.trainers_optional.megatron.test_layouts import CASES

    names = {" x ".join(f"{part[:-1]} {part[-1]}" for part in name.split()): name for name in LAYOUTS}
    tested = {(family, name) for family, name, _ in CASES}
    for cell in (each for each in CELLS if each.backend == "megatron" and each.mark in "FG"):
        assert cell.family in MEASURED and cell.division in names, cell
        assert ((cell.family, names[cell.division]) in tested) == (cell.mark == "G"), cell


def _functions(file: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}
