"""Errors in the user's input: one line with the place, the fault and the remedy; no traceback."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from roll.report.ledger import read_ledger

pytestmark = pytest.mark.slow

TRAIN = ("train", "run.yaml")


def checkpoints(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").glob("step-*"))


@pytest.mark.parametrize("command", ["train", "check", "explain", "eval", "sft"])
def test_a_missing_file_offers_the_one_that_is_there(roll: Callable, command: str) -> None:
    assert roll(command, "rum.yaml").fault(2) == "no such file: rum.yaml; did you mean 'run.yaml'?"


def test_broken_yaml_is_reported_with_its_line(roll: Callable, folder: Path) -> None:
    (folder / "run.yaml").write_text("name: tiny\nmodel: {shape: {hidden: 32}\nsteps: 4\n")
    assert roll(*TRAIN).fault(2).startswith("run.yaml:3:1: broken YAML: ")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("steps=many", "steps: must be a whole number (got 'many')"),
        ("rollout.group_size=0", "rollout.group_size: must be greater than 0 (got 0)"),
        ("rollout.grop_size=4", "unknown key 'rollout.grop_size'; did you mean 'group_size'?"),
        ("tasks.0.reward=exactly", "tasks.0.reward: no reward named 'exactly'; did you mean 'exact'?"),
        ("tasks.0.env=guess_numbr", "tasks.0.env: no environment named 'guess_numbr'; did you mean 'guess_number'?"),
        ("algorithm.loss=cliped", "algorithm.loss: no loss named 'cliped'; did you mean 'clipped'?"),
        ("algorithm.loss=my_loss.asym", "algorithm.loss: no loss named 'my_loss.asym'; did you mean 'my_loss:asym'?"),
        ("algorithm=gpro", "algorithm: no recipe named 'gpro'; did you mean 'grpo'?"),
        ("algorithm=grpoo", "algorithm: no recipe named 'grpoo'; did you mean 'grpo'?"),
    ],
)
def test_a_wrong_value_is_reported_with_its_key(roll: Callable, folder: Path, override: str, said: str) -> None:
    assert roll(*TRAIN, override).fault(2) == f"command line: {said}"
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--steps", "5"], "--steps; write steps=5"),
        (["--steps=5"], "--steps; write steps=5"),
        (["--steps", "--overwrite"], "--steps; write steps=..."),
        (["--group-size", "4"], "--group-size; write rollout.group_size=4"),
        (["--nonsense", "4"], "--nonsense"),
    ],
)
def test_a_key_given_as_an_option_is_reported_with_its_override(roll: Callable, options: list[str], said: str) -> None:
    outcome = roll(*TRAIN, *options)
    assert outcome.code == 2 and outcome.err.splitlines()[-1] == f"Error: No such option: {said}"


def test_a_task_without_an_answer_is_reported_with_its_line(roll: Callable, folder: Path) -> None:
    rows = [{"prompt": "1+1=", "answer": "2"}, {"prompt": "1+2="}]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    line = roll(*TRAIN, "tasks.0.data=sums.jsonl").fault(2)
    assert line.startswith("sums.jsonl:2: no 'answer'; add what a right attempt is compared with, or map it")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda model: shutil.rmtree(model), "no such directory: runs/tiny/model; give the folder"),
        (
            lambda model: (model / "model.safetensors").unlink(),
            "has no weights (*.safetensors or pytorch_model*.bin); download or export",
        ),
        (lambda model: (model / "config.json").unlink(), "has no config.json; give the folder of a Hugging Face model"),
        (lambda model: (model / "config.json").write_text("{"), "config.json: "),
        (
            lambda model: [path.unlink() for path in model.glob("tokenizer*")],
            "no tokenizer in it (tokenizer.json, ",
        ),
        (
            lambda model: (model / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes()[:5000]),
            "model.safetensors: truncated, 5000 of ",
        ),
    ],
    ids=["no directory", "no weights", "no config", "broken config", "no tokenizer", "truncated weights"],
)
def test_an_incomplete_model_directory_is_reported_and_costs_no_checkpoint(
    roll: Callable, made: Path, spoil: Callable[[Path], None], said: str
) -> None:
    spoil(made / "model")
    line = roll(*TRAIN, "model={path: runs/tiny/model}", "--overwrite").fault(2)
    assert said in line
    assert checkpoints(made) == ["step-3", "step-4"]


def test_a_model_with_other_shapes_than_its_config_names_the_tensor(roll: Callable, made: Path) -> None:
    config = json.loads((made / "model" / "config.json").read_text())
    (made / "model" / "config.json").write_text(json.dumps({**config, "intermediate_size": 128}))
    line = roll(*TRAIN, "model={path: runs/tiny/model}", "name=other").fault(2)
    assert "mlp.down_proj.weight (32, 900) does not fit config.json" in line


def test_a_prompt_longer_than_the_context_is_reported_before_anything_starts(roll: Callable, made: Path) -> None:
    row = {"id": "long", "prompt": "1+" * 20 + "1=", "answer": "21"}
    (made.parents[1] / "sums.jsonl").write_text(json.dumps(row))
    assert roll(*TRAIN, "tasks.0.data=sums.jsonl", "--overwrite").fault(2) == (
        "task 'long' of sums: its prompt has 42 tokens and rollout.max_seq_len is 32; "
        "raise rollout.max_seq_len or leave the task out"
    )
    assert checkpoints(made) == ["step-3", "step-4"]


def test_a_run_that_failed_to_start_does_not_block_the_next_one(roll: Callable, folder: Path) -> None:
    (folder / "sums.jsonl").write_text(json.dumps({"prompt": "z", "answer": "1"}))
    assert "the tokenizer does not know 'z'; add it to the alphabet" in roll(*TRAIN, "tasks.0.data=sums.jsonl").fault(2)
    assert roll(*TRAIN, "steps=1", "validation.tasks=[]").code == 0


FAILING = """
def raises(task, reply):
    raise RuntimeError("the judge is out")

def nan(task, reply):
    return float("nan")

def text(task, reply):
    return "good"

class Broken:
    def __init__(self, task): ...
    async def start(self):
        raise OSError("no such world")
    async def step(self, response): ...
    async def close(self): ...
"""


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("tasks.0.reward='failing:raises'", "RuntimeError: the judge is out"),
        (
            "tasks.0.reward='failing:nan'",
            "value is not finite and at most 1e+06 (got nan)",
        ),
        ("tasks.0.reward='failing:text'", "not a number (got 'good'); return a float or a Score"),
        ("tasks.0.env='failing:Broken'", "starting: OSError: no such world"),
    ],
)
def test_rewards_and_environments_that_keep_failing_stop_the_run_and_cost_no_checkpoint(
    roll: Callable, made: Path, override: str, said: str
) -> None:
    (made.parents[1] / "failing.py").write_text(FAILING)
    outcome = roll("resume", "runs/tiny", "steps=6", override)
    line = outcome.fault(3)
    assert outcome.out.count("an attempt failed (") == 1 and said in outcome.out
    tokens = read_ledger(made).tokens
    assert tokens.unaccounted == 0, "attempts in flight are kept, not lost"
    assert line.startswith("3 groups in a row failed, the last with: ") and said in line
    assert "and `roll resume` the run" in line and line.endswith("or raise rollout.max_failed_groups")
    assert checkpoints(made) == ["step-3", "step-4"]
    assert roll("resume", "runs/tiny", "steps=5").code == 0


def test_eval_without_held_out_tasks_says_what_to_add(roll: Callable) -> None:
    assert roll("eval", "run.yaml", "validation.tasks=[]").fault(2) == (
        "run.yaml: nothing to evaluate; add validation.tasks"
    )


def test_samples_of_a_directory_without_a_run_are_refused(roll: Callable) -> None:
    assert "runs/nowhere: no such directory" in roll("samples", "runs/nowhere").fault(2)
