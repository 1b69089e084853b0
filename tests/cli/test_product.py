"""From a file to a model that others can load, through the command line alone."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from xml.etree import ElementTree

import pytest

from roll.config.load import load
from roll.journal.events import StepStarted
from roll.journal.store import Reader
from roll.tracking.glossary import describe

pytestmark = pytest.mark.slow


def lines(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_sft_trains_on_the_last_or_on_all_turns_of_chats(roll: Callable, folder: Path) -> None:
    turns = [("user", "1+2="), ("assistant", "3"), ("user", "2+2="), ("assistant", "4")]
    chat = {"messages": [{"role": role, "content": content} for role, content in turns]}
    (folder / "chats.jsonl").write_text(json.dumps(chat) + "\n")
    losses: list[float] = []
    for target, num_turns, num_tokens in (("last", 1, 2), ("all", 2, 4)):  # one digit and the end of the turn
        tasks = "sft.tasks=[{name: chats, data: chats.jsonl, reward: exact}]"
        outcome = roll(
            "sft", "run.yaml", tasks, "sft.steps=1", "sft.batch_size=1", f"sft.target={target}", "--overwrite"
        )
        assert outcome.code == 0, outcome.err
        (line,) = lines(folder / "runs" / "tiny-sft")
        assert (line["sft/turns"], line["sft/tokens"]) == (num_turns, num_tokens)
        assert f" | turns {num_turns} | tokens {num_tokens} | " in outcome.out
        assert f"SFT: 1 steps on {num_turns} turns with {num_tokens} tokens, held-out " in outcome.out
        losses.append(line["sft/loss"])
    assert losses[0] != losses[1], "the mean is over the tokens of one turn, then of two"


def test_sft_prints_where_its_model_is(whole: tuple) -> None:
    folder, (sft, _) = whole
    assert (sft.code, sft.err) == (0, "")
    num_tokens = sum(line["sft/tokens"] for line in lines(folder / "runs" / "tiny-sft"))
    assert sft.out.splitlines()[-1] == (
        f"SFT: 4 steps on 32 turns with {num_tokens:.0f} tokens, held-out accuracy 0.000; "
        "the model is in runs/tiny-sft/model"
    )
    assert (folder / "runs" / "tiny-sft" / "model" / "model.safetensors").is_file()
    assert [line["step"] for line in lines(folder / "runs" / "tiny-sft")] == [1, 2, 3, 4]


def test_a_run_ends_with_its_model_its_curve_and_its_accuracy(whole: tuple) -> None:
    _, (_, train) = whole
    assert (train.code, train.err) == (0, "")
    assert train.out.splitlines()[:1] == ["loading runs/tiny-sft/model"]
    assert {"sums: 200 of 200 tasks", "tiny: 4 steps"} <= set(train.out.splitlines())
    assert train.out.splitlines()[-3:] == [
        "model: runs/tiny/model",
        "learning curve: runs/tiny/curve.svg",
        "held-out accuracy: 0.000 -> 0.000",
    ]


def test_a_run_directory_is_complete(whole: tuple) -> None:
    run = whole[0] / "runs" / "tiny"
    assert {path.name for path in run.iterdir()} >= {
        "config.yaml",
        "journal.db",
        "metrics.jsonl",
        "tensorboard",
        "tokenizer",
        "checkpoints",
        "model",
        "curve.svg",
    }
    assert [line["step"] for line in lines(run)] == [0, 1, 2, 3, 4]
    assert load(run / "config.yaml").run.model.path == "runs/tiny-sft/model"
    assert list((run / "tensorboard").glob("events.*"))
    assert ElementTree.parse(run / "curve.svg").getroot().tag.endswith("svg")


def test_the_newest_checkpoints_and_the_best_are_kept(roll: Callable, made: Path) -> None:
    kept = sorted(path.name for path in (made / "checkpoints").iterdir())
    assert kept == ["best.json", "step-3", "step-4"]  # all scores are 0: the first validated checkpoint stays the best
    assert json.loads((made / "checkpoints" / "best.json").read_text())["step"] == 3
    assert roll("resume", "runs/tiny", "steps=7").code == 0
    kept = sorted(path.name for path in (made / "checkpoints").iterdir())
    assert kept == ["best.json", "step-3", "step-6", "step-7"]


def test_eval_refuses_an_output_that_cannot_be_written_before_it_begins(roll: Callable, made: Path) -> None:
    outcome = roll("eval", "run.yaml", "model={path: runs/tiny/model}", "--output", "missing/attempts.jsonl")
    assert outcome.fault(2).startswith("--output missing/attempts.jsonl: cannot be written (no such directory")
    assert outcome.out == ""


def test_eval_measures_the_model_and_transformers_writes_the_same(roll: Callable, made: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    outcome = roll("eval", "run.yaml", "model={path: runs/tiny/model}", "--output", "attempts.jsonl")
    assert outcome.code == 0, outcome
    assert "accuracy: 0.0000" in outcome.out.splitlines()
    assert outcome.out.splitlines()[-1] == "20 attempts: attempts.jsonl"
    rows = [json.loads(line) for line in (made.parents[1] / "attempts.jsonl").read_text().splitlines()]
    assert len(rows) == 20 and {row["source"] for row in rows} == {"held_out"}
    tokenizer, model = (
        AutoTokenizer.from_pretrained(made / "model"),
        AutoModelForCausalLM.from_pretrained(made / "model"),
    )
    for row in rows[:5]:
        prompt = tokenizer(f"{row['id']}=", return_tensors="pt", add_special_tokens=False)["input_ids"]
        written = model.generate(prompt, max_new_tokens=6, do_sample=False)[0][prompt.shape[1] :]
        assert tokenizer.decode(written, skip_special_tokens=True) == row["response"]
        assert row["prompt"] == f"{row['id']}=" and row["reference"].isdigit()
        assert (row["status"], row["reward"], row["parts"], row["comment"]) in (
            ("finished", 0.0, {}, ""),
            ("truncated", 0.0, {}, ""),
        )
    again = roll("score", "attempts.jsonl", "--reward", "exact", "--field", "answer=reference", "--workers", "0")
    assert [json.loads(line)["score"] for line in again.out.splitlines()] == [row["reward"] for row in rows]


def test_samples_shows_text_rewards_versions_and_fates(roll: Callable, made: Path) -> None:
    outcome = roll("samples", "runs/tiny", "--last", "2")
    assert outcome.code == 0 and outcome.out.count("=== group") == 2
    head, earned, fate, reference, observed, prompt, sampled, *_ = outcome.out.splitlines()
    assert "| sums | task " in head
    assert "reward 0" in earned and "version 3" in earned  # version v has seen v steps, and step 4 was on time
    assert fate.strip().startswith("trained in step 4, mean advantage ")
    one, other = head.rpartition("task ")[2].split("+")
    assert reference.strip() == f"reference: {str(int(one) + int(other))[::-1]}"  # this task writes sums in reverse
    assert observed.startswith("--- turn 1: observation (") and prompt == head.rpartition("task ")[2] + "="
    assert sampled.startswith("--- turn 1: sampled (")
    assert roll("samples", "runs/tiny", "--step", "2", "--last", "99").out.count("trained in step 2") == 16
    assert roll("samples", "runs/tiny", "--domain", "words").out == ""
    rows = [json.loads(line) for line in roll("samples", "runs/tiny", "--json", "--sort", "-reward").out.splitlines()]
    assert len(rows) == 5 and rows[0]["reward"] >= rows[-1]["reward"] and rows[0]["prompt"] == f"{rows[0]['id']}="
    assert roll("samples", "runs/tiny", "--html", "page.html").out == "5 attempts: page.html\n"
    assert "leave one of them out" in roll("samples", "runs/tiny", "--html", "page.html", "--json").fault(2)
    assert "--html no/page.html: cannot be written" in roll("samples", "runs/tiny", "--html", "no/page.html").fault(2)
    assert "no status named 'lost'" in roll("samples", "runs/tiny", "--status", "lost").fault(2)


def test_compare_shows_a_run_before_and_after_and_beside_another(roll: Callable, made: Path) -> None:
    outcome = roll("compare", "runs/tiny", "runs/tiny-sft", "--tasks", "0")
    assert (outcome.code, outcome.err) == (0, "")
    assert "\nconfig keys that differ\n" in outcome.out and "difference of runs/tiny-sft" in outcome.out
    found = json.loads(roll("compare", "runs/tiny", "--json").out)
    assert [run["last_step"] for run in found["runs"]] == [4] and len(found["tasks"]) == 3
    ((change,), *_) = found["tasks"]
    assert (change["first_step"], change["last_step"]) == (0, 4)
    assert change["before"]["prompt"] == change["after"]["prompt"] == f"{change['before']['id']}="
    assert roll("compare", "runs/tiny", "--html", "page.html").out == "comparison: page.html\n"
    assert "runs/nowhere: no such directory" in roll("compare", "runs/tiny", "runs/nowhere").fault(2)


def test_every_metric_of_a_run_is_explained(whole: tuple) -> None:
    for name in ("tiny", "tiny-sft"):
        found = {key for line in lines(whole[0] / "runs" / name) for key in line} - {"step", "time"}
        assert len(found) > 2
        assert {metric for metric in found if describe(metric) is None} == set()


def test_a_resumed_run_continues_its_tasks_metrics_and_curve(roll: Callable, made: Path) -> None:
    curve = (made / "curve.svg").read_text()
    assert roll("resume", "runs/tiny", "steps=6").code == 0
    assert [line["step"] for line in lines(made)] == [0, 1, 2, 3, 4, 5, 6]
    assert (made / "curve.svg").read_text() != curve
    with closing(Reader(made / "journal.db")) as reader:
        assert [entry.event.step for entry in reader.events(StepStarted)] == [1, 2, 3, 4, 5, 6]
        tasks = {kept.step: kept.task for kept in reader.trajectories()}
    assert len(set(tasks.values())) == 6  # nothing was drawn twice


def test_an_interrupted_run_equals_one_that_was_not(roll: Callable, folder: Path) -> None:
    assert roll("train", "run.yaml", "name=unbroken", "validation.tasks=[]").code == 0
    assert roll("train", "run.yaml", "name=broken", "validation.tasks=[]", "steps=2").code == 0
    assert roll("resume", "runs/broken", "steps=4").code == 0
    weights = [folder / "runs" / name / "model" / "model.safetensors" for name in ("unbroken", "broken")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
