"""Real runs of a tiny model that go wrong, each in another way, and what is reported about them."""

import json
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from roll.journal.events import ProblemNoticed
from roll.journal.store import Reader

pytestmark = pytest.mark.slow

RUN = """\
name: tiny
deterministic: true
threads: 1
steps: 24
model:
  shape: {alphabet: "0123456789+=", hidden: 32, layers: 1, heads: 2, kv_heads: 1, mlp: 900, max_seq_len: 64}
algorithm: grpo
tasks: [{name: even, data: {kind: arithmetic, digits: 1}, reward: "graders:even"}]
rollout: {groups_per_step: 16, group_size: 8, max_seq_len: 32, max_new_tokens: 4}
actor_train: {optimizer: {lr: 1e-3}}
actor_infer: {max_num_seqs: 128}
tracking: {tensorboard: false}
"""
GRADERS = """\
import torch

calls = []

def even(task, response):
    return sum(digit in "02468" for digit in response[:4]) / 4

def broken(task, response):
    calls.append(task)
    return even(task, response) if len(calls) <= 12 * 8 * 8 else 0.0

def constant(task, response):
    return 0.5

def rarely_right(task, response):
    return even(task, response) if task.answer in ("0", "18") else 0.0

def unstable(tokens):
    calls.append(tokens)
    loss = -tokens.logprobs * tokens.advantages
    return loss * (torch.nan if len(calls) == 2 else 1.0), {}
"""
EVEN = "{name: even, data: {kind: arithmetic, digits: 1}, reward: 'graders:even'}"
ODD = "{name: odd, data: {kind: arithmetic, digits: 1}, reward: 'graders:broken'}"


@pytest.fixture
def train(roll: Callable, folder: Path) -> Callable[..., str]:
    """Trains with settings, in which a module of the graders has a name that no other run has imported."""

    def run(name: str, *settings: str) -> str:
        (folder / f"{name}_graders.py").write_text(GRADERS)
        (folder / "run.yaml").write_text(RUN.replace("graders:", f"{name}_graders:"))
        outcome = roll("train", "run.yaml", *(each.replace("graders:", f"{name}_graders:") for each in settings))
        assert outcome.code == 0, outcome
        return outcome.out

    return run


def noticed(folder: Path) -> list[tuple[str, int, str]]:
    """Kind, step and domain of each notice in the journal."""
    with closing(Reader(folder / "runs" / "tiny" / "journal.db")) as journal:
        events = [entry.event for entry in journal.events(ProblemNoticed)]
    return [(event.kind, event.step, event.domain) for event in events]


def test_a_verifier_that_breaks_for_one_domain_is_reported_with_its_step_and_examples(
    train: Callable[..., str], roll: Callable, folder: Path
) -> None:
    """It breaks in step 13; the other domain goes on. A resumed run does not report it again."""
    out = train("broken", f"tasks=[{EVEN}, {ODD}]", "steps=16")
    assert noticed(folder)[0] == ("domain_break", 15, "odd") and {domain for *_, domain in noticed(folder)} <= {
        "odd",
        "",
    }
    (line,) = [line for line in out.splitlines() if "one domain breaks" in line]
    assert "since about step 13" in line and line in (folder / "runs/tiny/controller.log").read_text()
    assert line in roll("report", "runs/tiny").out.splitlines()
    problem = json.loads(roll("report", "runs/tiny", "--json").out)["problems"][0]
    assert problem["noticed"]["metric"] == "domain/odd/reward" and problem["ended"] is None

    command = re.search(r"`roll (samples .*)`", line)
    assert command is not None
    shown = roll(*command[1].split()).out
    assert "odd" in shown and "even" not in shown and "reward 0" in shown

    again = roll("resume", "runs/tiny", "steps=20")
    assert again.code == 0 and "one domain breaks" not in again.out
    assert [kind for kind, *_ in noticed(folder)].count("domain_break") == 1


def test_a_constant_reward_is_reported_unless_it_is_silenced(train: Callable[..., str], folder: Path) -> None:
    out = train("constant", "tasks.0.reward='graders:constant'", "steps=11")
    assert noticed(folder) == [("constant_reward", 10, "even")]
    assert "step 10: constant reward in 'even': every attempt got 0.5 in 10 steps in a row" in out
    settings = ("tasks.0.reward='graders:constant'", "steps=11", "tracking.silenced=[constant_reward]", "name=silent")
    assert "constant reward" not in train("silenced", *settings)


def test_groups_that_are_almost_all_filtered_are_reported(train: Callable[..., str], folder: Path) -> None:
    """Tasks with a reward are 2 of 49, and the filter replaces the groups of all others."""
    small = ("rollout.groups_per_step=2", "rollout.group_size=4", "rollout.max_filtered_groups=1000", "steps=6")
    train("filtered", "tasks.0.reward='graders:rarely_right'", "algorithm.filters=[mixed]", *small)
    assert ("no_signal", 5, "") in noticed(folder)


def test_a_learning_rate_that_is_too_high_lets_the_distance_to_the_reference_explode(
    train: Callable[..., str], folder: Path
) -> None:
    train("far", "algorithm.kl={coefficient: 0.001}", "actor_train.optimizer.lr=2e-2", "steps=10")
    assert "kl_growth" in [kind for kind, *_ in noticed(folder)]


def test_an_update_that_is_not_finite_is_reported(train: Callable[..., str], folder: Path) -> None:
    out = train("unstable", "algorithm.loss='graders:unstable'", "steps=3")
    assert noticed(folder) == [("refused_updates", 2, "")]
    assert "step 2: refused updates: 1 of its updates were not finite and were refused" in out


def test_a_run_that_learns_has_no_notices(train: Callable[..., str], folder: Path) -> None:
    out = train("good", f"tasks=[{EVEN}, {EVEN.replace('name: even', 'name: other')}]", "actor_train.optimizer.lr=3e-3")
    lines = (folder / "runs" / "tiny" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["reward/mean"] > 1.5 * json.loads(lines[1])["reward/mean"], "it has learned"
    assert noticed(folder) == [] and "look at the metrics" not in out
