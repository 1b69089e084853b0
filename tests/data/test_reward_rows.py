"""Rows of a reward model: forms of data, positions of scores, and errors that name the line."""

import json
from pathlib import Path
from typing import Any

import pytest

from roll.config.preferences import RewardTraining
from roll.data.preference_rows import read_preferences
from roll.data.reward_batch import reward_batch
from roll.data.reward_rows import RewardExample, encode_rewards, reading_of
from roll.data.templates import Template, character_tokenizer
from roll.errors import ConfigError

RATINGS = {"lowest": 1.0, "highest": 5.0}
STEPS = {"prompt": "1+2=", "steps": ["1", "23", "3"], "labels": [True, 0.25, False]}


def encode(folder: Path, *rows: dict[str, Any], max_seq_len: int = 16, **section: Any) -> list[RewardExample]:
    """The examples of a file with these rows."""
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    training = RewardTraining.model_validate({"data": str(path), **section})
    template = Template(character_tokenizer("0123456789+=\n"))
    preferences = read_preferences("reward_training.data", training.data, reading_of(training))
    examples, _ = encode_rewards(training, preferences, template=template, max_seq_len=max_seq_len)
    return examples


def read_after(example: RewardExample, alphabet: str = "0123456789+=\n") -> list[str]:
    """The text of each row up to each position at which a score is read; `$` is the end token."""
    characters = ["", "$", "", "", *alphabet]
    return [
        "".join(characters[token] for part in row for token in part)[: end + 1]
        for row, ends in zip(example.rows, example.ends, strict=True)
        for end in ends
    ]


def test_both_sides_of_a_pair_are_read_after_their_end_token(tmp_path: Path):
    (example,) = encode(tmp_path, {"prompt": "1+1=", "chosen": "2", "rejected": "34", "margin": 1.5, "source": "web"})
    assert read_after(example) == ["1+1=2$", "1+1=34$"]
    assert (example.margin, example.source, example.targets) == (1.5, "web", ())


def test_a_rating_becomes_a_target_from_0_to_1(tmp_path: Path):
    rows = [{"prompt": "1", "response": "2", "rating": 4}, {"prompt": "1", "responses": ["3", "4"], "ratings": [1, 5]}]
    examples = encode(tmp_path, *rows, loss="regression", ratings=RATINGS)
    assert [each.targets for each in examples] == [(0.75,), (0.0,), (1.0,)]


def test_labels_ratings_and_pairs_become_labels(tmp_path: Path):
    rows = [
        {"prompt": "1", "response": "2", "label": False},
        {"prompt": "1", "response": "3", "rating": 4},
        {"prompt": "1", "chosen": "5", "rejected": "6"},
    ]
    examples = encode(tmp_path, *rows, loss="classification", ratings=RATINGS | {"desirable": 4.0})
    assert [each.targets for each in examples] == [(0.0,), (1.0,), (1.0,), (0.0,)]
    with pytest.raises(ConfigError, match=r"rows\.jsonl:1: no label; set reward_training\.ratings\.desirable"):
        encode(tmp_path, rows[1], loss="classification", ratings=RATINGS)


def test_steps_are_read_after_their_separator_and_the_last_after_the_end_token(tmp_path: Path):
    (example,) = encode(tmp_path, STEPS, loss="process")
    assert read_after(example) == ["1+2=1\n", "1+2=1\n23\n", "1+2=1\n23\n3$"]
    assert example.targets == (1.0, 0.25, 0.0)
    response = {"prompt": "1+2=", "response": "1+23+3", "labels": [True, 0.25, False]}
    (other,) = encode(tmp_path, response, loss="process", step_separator="+")
    assert read_after(other) == ["1+2=1+", "1+2=1+23+", "1+2=1+23+3$"]


def test_a_batch_repeats_last_tokens_and_reads_the_entry_after_each_position(tmp_path: Path):
    pair = {"prompt": "1+1=", "chosen": "2", "rejected": "34"}
    batch, read = reward_batch(encode(tmp_path, pair, pair))
    assert batch.lengths == (7, 8, 7, 8)
    assert read.nonzero().flatten().tolist() == [6, 14, 21, 29]
    assert batch.ids[read].tolist() == batch.ids[read.roll(-1)].tolist() == [1] * 4  # <eos>, twice
    (steps,) = encode(tmp_path, STEPS, loss="process")
    assert reward_batch([steps])[1].nonzero().flatten().tolist() == [6, 9, 11]


@pytest.mark.parametrize(
    ("row", "section", "fault"),
    [
        ({"prompt": "1", "chosen": "2", "rejected": "2"}, {}, "rows.jsonl:2: the chosen and the rejected response are"),
        ({"prompt": "1", "chosen": "2", "rejected": " "}, {}, "rows.jsonl:2: the rejected response is empty"),
        ({"prompt": "1", "chosen": "2"}, {}, "rows.jsonl:2: no 'rejected'"),
        (
            {"prompt": "1", "chosen": "2", "rejected": "3" * 20},
            {},
            "rows.jsonl:2: 22 tokens exceed rollout.max_seq_len",
        ),
        ({"prompt": "1", "chosen": "2", "rejected": "3", "margin": -1}, {}, "rows.jsonl:2: 'margin' must be a number"),
        ({"prompt": "1", "response": "2", "label": True}, {}, "rows.jsonl:2: another kind of row, and loss 'bradley_"),
    ],
)
def test_bad_pairs_are_named_by_file_and_line(tmp_path: Path, row: Any, section: dict[str, Any], fault: str):
    with pytest.raises(ConfigError) as error:
        encode(tmp_path, {"prompt": "1", "chosen": "2", "rejected": "3"}, row, **section)
    assert fault in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"labels": [True, False]}, "2 labels for 3 steps; write one label per step"),
        ({"labels": [True, False, 2]}, "the label of a step must be true, false or from 0 to 1 (got 2)"),
        ({"labels": None}, "'labels' must be a list (got None)"),
        ({"steps": ["1", " ", "3"]}, "step 2 is empty; remove it"),
        ({"response": "1"}, "'labels' need either 'steps' or 'response'"),
    ],
)
def test_bad_steps_are_named_by_file_and_line(tmp_path: Path, changed: dict[str, Any], fault: str):
    with pytest.raises(ConfigError) as error:
        encode(tmp_path, STEPS, STEPS | changed, loss="process")
    assert f"rows.jsonl:2: {fault}" in str(error.value)


@pytest.mark.parametrize(
    ("rating", "fault"), [(6, "a rating outside of `ratings`, 1 to 5 (got 6)"), ("4", "a rating is not a number")]
)
def test_bad_ratings_are_named_by_file_and_line(tmp_path: Path, rating: Any, fault: str):
    good = {"prompt": "1", "response": "2", "rating": 4}
    with pytest.raises(ConfigError) as error:
        encode(tmp_path, good, good | {"rating": rating}, loss="regression", ratings=RATINGS)
    assert f"rows.jsonl:2: {fault}" in str(error.value)
