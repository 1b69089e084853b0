"""A file's algorithm as the recipe that the loop reads."""

from pathlib import Path

from roll.config.load import load
from roll.types import Call
from roll.wiring.run import build_recipe

TEXT = """\
model: {shape: {hidden: 64}}
algorithm: {recipe: ppo, clip: 5}
tasks:
  - {name: sums, data: arithmetic, reward: exact}
  - name: hard
    data: arithmetic
    reward: exact
    algorithm: {advantage: leave_one_out, whiten: false, masks: [truncated], weight: 2}
rollout: {context: 512}
"""


def test_a_domain_has_the_runs_recipe_but_for_what_it_says_itself(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(TEXT, encoding="utf-8")
    run = load(tmp_path / "run.yaml").run
    recipe = build_recipe(run.algorithm, run.tasks)
    assert recipe.domains.keys() == {"hard"}
    own = recipe.domains["hard"]
    assert (own.advantage, own.whiten, own.masks, own.weight) == (Call("leave_one_out"), False, (Call("truncated"),), 2)
    assert (own.clip, own.loss, own.epochs) == (5.0, recipe.loss, recipe.epochs)
    assert (recipe.advantage.name, recipe.whiten, recipe.masks, recipe.weight) == ("gae", True, (), 1)
