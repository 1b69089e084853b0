"""A loss or an advantage with bugs in it, in a whole run: it ends in one line, and what was saved is still there."""

from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

FORMULAS = """\
steps = []

def tired(batch):
    steps.append(batch)
    if len(steps) > 2:
        raise ValueError("no more")
    return batch.rewards[batch.turn_trajectory[batch.turn]]

def apart(tokens):
    return tokens.logprobs - tokens.ref_logprobs, {}

def frozen(tokens):
    return -tokens.logprobs.detach() * tokens.advantages, {}

def silent(group):
    return group.name
"""


def broken(roll: Callable, folder: Path, name: str, *overrides: str) -> str:
    """The one line that a run ends with."""
    (folder / f"{name}.py").write_text(FORMULAS)
    fault = roll("train", "run.yaml", "validation.tasks=[]", *overrides).fault(2)
    return fault.replace(f"{folder}/", "")


def test_an_advantage_that_raises_ends_the_run_and_leaves_its_checkpoints(roll: Callable, folder: Path) -> None:
    found = broken(roll, folder, "tired_beside", "algorithm.advantage='tired_beside:tired'")
    assert found == "advantage 'tired_beside:tired': ValueError: no more (tired_beside.py:6); fix its code"
    assert sorted(path.name for path in (folder / "runs" / "tiny" / "checkpoints").glob("step-*")) == [
        "step-1",
        "step-2",
    ]


@pytest.mark.parametrize(
    ("part", "name", "what"),
    [
        ("loss", "apart", "apart_beside.py:10); ref_logprobs is None unless algorithm.needs has 'reference': add it"),
        ("loss", "frozen", "its result has no gradient; compute it from the tokens' logprobs"),
        ("filters", "silent", "'Group' object has no attribute 'name' (silent_beside.py:16); fix its code"),
    ],
)
def test_a_formula_that_cannot_be_used_ends_the_run_in_one_line(
    roll: Callable, folder: Path, part: str, name: str, what: str
) -> None:
    own = f"{name}_beside:{name}"
    found = broken(roll, folder, f"{name}_beside", f"algorithm.{part}={[own] if part == 'filters' else own!r}")
    assert f"'{own}': " in found and what in found
