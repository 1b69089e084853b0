"""The algorithm of a file as a recipe."""

from pathlib import Path

from roll.config.load import load
from roll.types import Spec
from roll.wiring.run import build_recipe

TEXT = """\
model: {shape: {hidden: 64}}
algorithm: {recipe: ppo, advantage_clip: 5}
tasks:
  - {name: sums, data: arithmetic, reward: exact}
  - name: hard
    data: arithmetic
    reward: exact
    algorithm: {advantage: leave_one_out, whiten: false, masks: [truncated], loss_weight: 2}
rollout: {max_seq_len: 512}
"""


def test_a_domain_has_the_runs_recipe_except_for_its_own_settings(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(TEXT, encoding="utf-8")
    run = load(tmp_path / "run.yaml").run
    recipe = build_recipe(run.algorithm, run.tasks)
    assert recipe.domains.keys() == {"hard"}
    hard = recipe.domains["hard"]
    assert (hard.advantage, hard.whiten, hard.masks, hard.weight) == (
        Spec("leave_one_out"),
        False,
        (Spec("truncated"),),
        2,
    )
    assert (hard.advantage_clip, hard.loss, hard.epochs) == (5.0, recipe.loss, recipe.epochs)
    assert (recipe.advantage.name, recipe.whiten, recipe.masks, recipe.weight) == ("gae", True, (), 1)
