import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roll.config.load import load
from roll.config.schema import Run
from roll.explain.devices import placement
from roll.explain.formulas import FORMULAS
from roll.explain.run import explain, headline, uncorrected
from roll.registry import (
    ADVANTAGES,
    AGGREGATIONS,
    CORRECTIONS,
    EMPHASES,
    ESTIMATORS,
    FILTERS,
    LOSSES,
    MASKS,
    SHAPINGS,
    Table,
)

TABLES: dict[str, Table[Any]] = {
    "filters": FILTERS,
    "shaping": SHAPINGS,
    "estimator": ESTIMATORS,
    "advantage": ADVANTAGES,
    "emphasis": EMPHASES,
    "masks": MASKS,
    "correction": CORRECTIONS,
    "loss": LOSSES,
    "aggregation": AGGREGATIONS,
}
FUNCTIONS = [(part, name) for part, table in TABLES.items() for name in table.targets]

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


def test_what_runs_where_is_told(tmp_path: Path) -> None:
    assert placement(run_of(tmp_path)) == "inline: actor_train, actor_infer in one process"
    assert "inline: all roles in one process" in page(tmp_path)
    apart = ["executor=ray", "actor_infer={workers: 3, python: /other/python}", "algorithm=ppo", "threads=2"]
    line = placement(run_of(tmp_path, *apart))
    assert line.startswith("ray (a cluster of this run's own, on this machine): actor_train in 1 process, actor_infer")
    assert line.endswith("actor_infer in 3 processes, critic in 1 process")
    text = page(tmp_path, *apart)
    for words in (
        "64 slots, in 3 processes of /other/python",
        "critic native on the trainer's device, in 1 process",
        "2 CPU threads in each process",
        "versions pass through runs/demo/weights",
        "generation and training take turns",
        "runs/demo/logs/<role>-<rank>.log",
    ):
        assert words in text
    assert "the cluster at auto" in page(tmp_path, "executor=ray", "ray.address=auto", "rollout.max_staleness=1")


def test_every_function_that_a_file_may_name_has_a_formula() -> None:
    assert {part: set(named) for part, named in FORMULAS.items()} == {
        part: set(table.targets) for part, table in TABLES.items()
    }


@pytest.mark.parametrize(("part", "name"), FUNCTIONS)
def test_a_formula_takes_the_arguments_and_defaults_of_its_function(part: str, name: str) -> None:
    assert keywords(FORMULAS[part][name]) == keywords(TABLES[part][name], TABLES[part].supplied)


def keywords(function: Callable[..., Any], supplied: int = 0) -> dict[str, Any]:
    """What a file may give to a function, each with its default."""
    parameters = list(inspect.signature(function).parameters.values())[supplied:]
    return {parameter.name: parameter.default for parameter in parameters}


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["loss={kind: clipped, dual_clip: 3}"], ["where A < 0, L is at most 3 |A|, r = exp(logprob - old logprob)"]),
        (["loss=sequence_clipped"], ["L = -min(s A, clip(s, 1 - 0.0003, 1 + 0.0004) A)", "s = exp(mean of logprob - "]),
        (["loss={kind: cispo, clip_high: 4}"], ["L = -sg(min(r, 1 + 4)) A logprob"]),
        (["loss={kind: cispo, clip_low: 0.5}"], ["L = -sg(clip(r, 1 - 0.5, 1 + 0.2)) A logprob"]),
        (["loss={kind: truncated_importance, cap: 5}"], ["L = -sg(min(r, 5)) A logprob"]),
        (["loss={kind: topr, negative: 0.5}"], ["-0.5 sg(clip(q, 0.0, 1.0)) A logprob where A < 0", "sampler logprob"]),
        (["loss={kind: kimi, tau: 0.3}"], ["L = -A logprob + 0.3 / 2 (logprob - old logprob)^2"]),
        (["loss={kind: decoupled, cap: 4}"], ["w = exp(old logprob - sampler logprob), at most 4"]),
        (["aggregation={kind: constant, tokens: 77}"], ["over the number of sequences x 77"]),
        (["advantage={kind: group_normalised, unbiased: true}"], ["/ (the group's std with n - 1 + 1e-06)"]),
        (["advantage={kind: group_normalised, scale: false}"], ["A = (reward - mean of its group); 0 in"]),
        (["advantage={kind: gae, gamma: 0.9, bootstrap: true}"], ["0.9 x V(t + 1) - V(t)", "the last value where"]),
        (["advantage={kind: discounted, per: token, baseline: batch}"], ["this token and", "reward of the batch"]),
        (["advantage={kind: batch_normalised, baseline: group}"], ["the mean reward of the group taken off first"]),
        (["advantage={kind: gigpo, step_weight: 0.5}"], ["+ 0.5 x (G - mean of G) / (their std + 1e-06)"]),
        (["advantage={kind: distilled, weight: 2}"], ["A = 2 x (teacher logprob - logprob of the policy"]),
        (["filters=[{kind: mean_between, low: 0.1}]"], ["filters mean_between", "unless 0.1 < its mean reward < 1.0"]),
        (
            ["shaping=[{kind: overlong, max_tokens: 90, buffer: 20}, {kind: clipped, low: -1, high: 1}]"],
            ["up to 90 - 20 trained tokens", "at 90 and beyond", "shaping clipped: reward = clip(reward, -1, 1)"],
        ),
        (["shaping=[{kind: normalised, mean: running, std: none}]"], ["reward = (reward - mean of all rewards"]),
        (["whiten=true", "clip=5"], ["A = (A - mean) / std, over all trained tokens", "A = clip(A, -5, 5)"]),
        (["emphasis=[{kind: length, power: 0.5}]"], ["emphasis length: A x (mean length / own length)^0.5"]),
        (["masks=[truncated, difficulty]"], ["attempts that a limit ended are left out", "masks difficulty: groups"]),
        (["correction={kind: truncate, cap: 3}"], ["L x min(rho, 3), rho = exp(old logprob - sampler logprob), taken"]),
        (["correction={kind: reject, level: geometric}"], ["averaged over the sequence's trained tokens"]),
        (["entropy=0.01"], ["L - 0.01 x entropy of the policy"]),
        (["kl={estimator: k3, coefficient: 0.04}"], ["0.04 x k3: exp(-d) + d - 1, d = logprob - reference"]),
        (["kl={estimator: k1, place: reward, target: 6}"], ["taken off the reward", "towards a mean of 6,"]),
    ],
)  # fmt: skip
def test_every_part_is_written_as_its_formula(tmp_path: Path, overrides: list[str], words: list[str]) -> None:
    text = page(tmp_path, *(f"algorithm.{override}" for override in overrides))
    assert [word for word in words if word not in text] == []


def test_parts_that_are_not_there_are_not_mentioned(tmp_path: Path) -> None:
    text = explain(run_of(tmp_path)).partition("\nAlgorithm\n")[2].partition("\n\n")[0]
    labels = [line.split()[0] for line in text.splitlines() if line[2] != " "]
    assert labels == ["recipe", "advantage", "loss", "aggregation", "updates", "roles"]


def test_updates_a_batch_are_counted_and_what_they_mean_for_the_ratio_is_said(tmp_path: Path) -> None:
    assert "1 a batch: the old weights are the current ones, so r = 1 and clipping never acts" in page(tmp_path)
    text = page(tmp_path, "algorithm.epochs=2", "algorithm.minibatches=4")
    assert "updates 8 a batch = 2 epochs x 4 minibatches" in text and "8 steps per batch" in text
    assert "old logprobs computed once more before the update: 8 updates a batch" in text


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([], "roles the actor alone"),
        (["algorithm.kl={coefficient: 0.1}"], "frozen, with the weights the actor starts from: for the KL"),
        (["algorithm.kl={}", "reference={path: base}"], "reference started, frozen, with weights of base"),
        (["algorithm.needs=[reference]"], "the recipe asks for it"),
        (
            ["algorithm=ppo", "algorithm.critic_warmup=5"],
            "values for the advantage gae; squared_value: L = 1/2 (V - return)^2, or with V held within 0.2 of",
        ),
        (["algorithm=ppo", "algorithm.critic_warmup=5"], "it learns alone for 5 steps"),
        (["algorithm=opd", "teacher={path: big}"], "teacher started, frozen, with weights of big: logprobs for"),
        (
            ["algorithm.needs=[reward_model]", "reward_model={path: judge, weight: 2.0}"],
            "reward model started with weights of judge: 2 x its score joins the reward",
        ),
        (["algorithm=gigpo"], "states named by the environments, for the advantage gigpo"),
        (["algorithm.correction=mask"], "before the update: the correction mask chooses tokens by them"),
        (["algorithm.needs=[old_logprobs]"], "before the update: the recipe asks for them"),
    ],
)  # fmt: skip
def test_what_is_started_is_told_with_its_reason(tmp_path: Path, overrides: list[str], words: str) -> None:
    assert words in page(tmp_path, *overrides)


def test_stale_tokens_without_a_correction_are_pointed_out(tmp_path: Path) -> None:
    words = "are trained on as if they were fresh; set algorithm.correction"
    assert words not in page(tmp_path, "rollout.max_staleness=0.2")  # no more slots than groups: nothing is stale
    assert f"correction none: tokens up to 1 step old {words}" in page(tmp_path, "rollout.max_staleness=0.5")
    assert f"correction none: tokens up to 2 steps old {words}" in page(tmp_path, "rollout.max_staleness=2")
    assert words not in page(tmp_path, "rollout.max_staleness=1", "algorithm.correction=truncate")
    text = page(tmp_path, "rollout.max_staleness=1", "algorithm.loss=decoupled")
    assert words not in text and "none beside the loss decoupled" in text


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([], "a reply, 32 replies (1 in sums), 512 tokens"),
        (["tasks.1.env=single_turn", "tasks.1.data=arithmetic", "tasks.1.reward=exact"], "a reply, 1 reply, 512"),
        (["tasks.0.env=guess_number", "rollout.max_turns=3"], "a reply, 3 replies, 512 tokens"),
    ],
)
def test_attempts_at_tasks_of_one_turn_have_one_reply(tmp_path: Path, overrides: list[str], words: str) -> None:
    assert words in page(tmp_path, *overrides)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("context_policy=drop_oldest", "where less than 256 of 512 tokens are left for a reply, the oldest turns are"),
        ("segment_per=turn", "one for each turn, after all that stood before it"),
    ],
)
def test_how_an_attempt_is_cut_into_sequences_is_told(tmp_path: Path, override: str, words: str) -> None:
    assert words in page(tmp_path, f"rollout.{override}")
    assert words not in page(tmp_path)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("redundant_groups=2", "redundancy 2 groups more than the slots are under way; the first to be complete are"),
        ("redundant_siblings=3", "redundancy 11 attempts at each task are begun; the first 8 to end well are trained"),
        ("concurrency=adaptive", "concurrency as many requests in a generator as it holds"),
        ("concurrency=12", "concurrency at most 12 requests in a generator at once"),
    ],
)
def test_what_is_begun_beyond_the_batch_and_held_at_once_is_told(tmp_path: Path, override: str, words: str) -> None:
    assert words in page(tmp_path, f"rollout.{override}")
    assert words.split()[0] not in page(tmp_path)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("max_new_tokens=9", "at most 9 new tokens a reply, not 256"),
        ("temperature=0.5", "sampled from softmax(logits / 0.5), cut to the 7 likeliest tokens"),
        ("top_k=0", "sampled from softmax(logits / 0.9)"),
        ("filters=[mixed]", "filters of its own: mixed: a group whose rewards are all equal"),
        ("filters=[]", "no filters, whatever the algorithm's are"),
        ("dedup=true", "prompts that came before or are held out are left out"),
        ("dedup=normalised", "are left out, up to case, spaces and forms of characters"),
        ("max_prompt_tokens=99", "prompts of over 99 tokens are left out"),
        ("sampling={target: 0.4}", "nearer their pass rate is to 0.4, 20 % of the draws from those drawn least often"),
        ("curriculum={by: level, steps: 50}", "easy ones first, by 'level': after 50 draws all can be drawn"),
    ],
)
def test_what_a_source_has_of_its_own_is_told_there_alone(tmp_path: Path, override: str, words: str) -> None:
    shared = ("rollout.temperature=0.9", "rollout.top_k=7")
    tasks = page(tmp_path, *shared, f"tasks.0.{override}").partition(" Tasks ")[2]
    own, _, other = tasks.partition(" guess 25 %")
    assert words in own and words not in other
    assert words not in page(tmp_path, *shared).partition(" Tasks ")[2]


def test_arguments_that_a_function_does_not_take_are_shown_as_they_stand(tmp_path: Path) -> None:
    assert "loss raft(clip_hgih=0.3)" in page(tmp_path, "algorithm.loss={kind: raft, clip_hgih: 0.3}")
    assert "aggregation constant " in page(tmp_path, "algorithm.aggregation=constant")  # lacks `tokens`


def test_another_optimizer_and_no_clipping_are_told(tmp_path: Path) -> None:
    text = page(tmp_path, "actor_train.optimizer={kind: sgd, lr: 1.0, clip_norm: null}")
    assert "SGD, learning rate 1, constant, gradient norm not clipped" in text


def test_explaining_imports_no_torch() -> None:
    code = "import sys, roll.explain.run; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_a_domain_has_of_the_algorithm_for_itself_is_told(tmp_path: Path) -> None:
    text = page(
        tmp_path,
        "tasks.0.algorithm={advantage: leave_one_out, masks: [], whiten: true, weight: 0.5}",
        "tasks.0.algorithm.shaping=[{kind: scaled, factor: 2}]",
    )
    assert "credit of its own, every mean and deviation being over its own trajectories" in text
    assert "shaping scaled: reward = 2 x reward + 0.0; advantage leave_one_out: " in text
    assert "advantages whitened; masks none; the losses of its tokens count 0.5 times" in text
    assert "clip(A, -5, 5)" in page(tmp_path, "tasks.0.algorithm={clip: 5}")
    assert "advantages not clipped" in page(tmp_path, "tasks.0.algorithm={clip: none, whiten: false}")
    assert "credit of its own" not in page(tmp_path)


def test_old_tokens_without_a_correction_are_told_in_a_line_of_their_own(tmp_path: Path) -> None:
    stale = "rollout.max_staleness=1"
    assert "up to 1 step old are trained on as if they were fresh" in uncorrected(run_of(tmp_path, stale))
    assert uncorrected(run_of(tmp_path)) == ""
    assert uncorrected(run_of(tmp_path, stale, "algorithm.correction=truncate")) == ""
    assert uncorrected(run_of(tmp_path, stale, "algorithm=decoupled_ppo")) == ""
