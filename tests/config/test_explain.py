import inspect
from pathlib import Path

import pytest

from roll.config.explain import DEFAULTS, explain, headline
from roll.config.load import load
from roll.config.schema import Run
from roll.registry import ADVANTAGES, LOSSES

TEXT = """\
name: demo
model: {shape: {hidden: 64}}
algorithm: grpo
tasks:
  - {name: sums, data: arithmetic, reward: exact, share: 3}
  - {name: guess, env: "my_lab.envs:Guess", share: 1}
rollout: {context: 512, groups_per_step: 4, group_size: 8}
"""


def run_of(tmp_path: Path, *overrides: str) -> Run:
    path = tmp_path / "run.yaml"
    path.write_text(TEXT)
    return load(path, overrides).run


def page(tmp_path: Path, *overrides: str) -> str:
    """The explanation with its line breaks undone."""
    return " ".join(explain(run_of(tmp_path, *overrides)).split())


def test_a_step_is_counted_in_trajectories_and_micro_batches(tmp_path: Path) -> None:
    text = page(tmp_path, "actor_train.tokens_per_microbatch=1200")
    assert "32 = 4 groups (tasks) x 8 attempts at each" in text
    assert "1 step per batch" in text
    assert "16 if every attempt fills its context" in text  # two sequences of 512 fit into 1200: 32 / 2


@pytest.mark.parametrize(
    ("bound", "slots", "meaning"),
    [
        ("0", 4, "synchronous: every token is sampled by the weights that the step then trains"),
        ("0.2", 4, "synchronous"),
        ("0.25", 5, "at most 1 of 4 of the groups are one update old, the others are fresh"),
        ("0.5", 6, "at most half of the groups are one update old, the others are fresh"),
        ("1", 8, "any group may be up to one update old when it is trained on, and none is older"),
        ("1.5", 10, "at most half of the groups are 2 updates old, the others are fresher"),
        ("2", 12, "any group may be up to 2 updates old"),
    ],
)
def test_the_staleness_bound_is_put_into_words(tmp_path: Path, bound: str, slots: int, meaning: str) -> None:
    text = page(tmp_path, f"rollout.max_staleness={bound}")
    assert f"floor(({bound} + 1) x 4) = {slots} groups" in text
    assert meaning in text


def test_the_module_is_shared_only_without_staleness(tmp_path: Path) -> None:
    assert "trainer and generator share one module" in page(tmp_path)
    assert "the generator owns a second copy" in page(tmp_path, "rollout.max_staleness=1")


def test_the_loss_carries_the_arguments_of_the_file(tmp_path: Path) -> None:
    text = page(tmp_path, "algorithm.loss.clip_high=0.28")
    assert "L = -min(r A, clip(r, 1 - 0.2, 1 + 0.28) A)" in text
    assert "clipping never acts" in text


def test_a_part_that_is_not_ours_is_named_with_its_arguments(tmp_path: Path) -> None:
    assert "my_lab.losses:soft(cap=3)" in page(tmp_path, "algorithm.loss={kind: 'my_lab.losses:soft', cap: 3}")


def test_shares_are_told_in_percent(tmp_path: Path) -> None:
    text = page(tmp_path)
    assert "sums 75 % of the groups" in text
    assert (
        "guess 25 % of the groups; made by the environment; env my_lab.envs:Guess; rewards from the environment" in text
    )


def test_the_sampling_distribution_is_told(tmp_path: Path) -> None:
    text = page(tmp_path, "rollout.temperature=0.7", "rollout.top_k=5", "rollout.top_p=0.9")
    cut = "cut to the 5 likeliest tokens and the fewest tokens that hold 0.9 of the probability"
    assert f"softmax(logits / 0.7), {cut}" in text


def test_lines_fit_a_terminal(tmp_path: Path) -> None:
    assert max(len(line) for line in explain(run_of(tmp_path)).splitlines()) <= 110


def test_the_headline_is_one_line(tmp_path: Path) -> None:
    line = headline(run_of(tmp_path))
    assert line == "demo: 100 steps of 4 groups x 8 attempts, grpo, staleness at most 0, tasks sums, guess"


@pytest.mark.parametrize(("table", "name"), [(LOSSES, "clipped"), (ADVANTAGES, "group_normalised")])
def test_the_defaults_explained_are_those_of_the_functions(table: object, name: str) -> None:
    parameters = inspect.signature(table[name]).parameters.values()  # type: ignore[index]
    assert DEFAULTS[name] == {found.name: found.default for found in parameters if found.default is not found.empty}
