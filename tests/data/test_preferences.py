"""Preferences read from rows, and errors that name the line."""

import json
from pathlib import Path
from typing import Any

import pytest

from roll.config.preferences import Dpo, Ratings
from roll.data.arithmetic import answer_pairs, sums
from roll.data.preference_rows import encode_preferences
from roll.data.preferences import Preference, Reading, jsonl, labelled_of, preferences_from
from roll.data.templates import Template, character_tokenizer
from roll.errors import ConfigError
from roll.types import Message

RATINGS = Ratings(lowest=1.0, highest=5.0, desirable=4.0)
CHAT = [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}]


def parse(row: dict[str, Any], ratings: Ratings | None = None) -> Preference:
    (preference,) = preferences_from(row, Reading(ratings=ratings), where="x.jsonl:1")
    return preference


def texts(preference: Preference) -> tuple[list[str], list[str]]:
    return [each.content for each in preference.messages], [each.content for each in preference.replies]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "2+2", "chosen": "4", "rejected": "5"},
        {"messages": CHAT[:1], "chosen": CHAT[1], "rejected": "5"},
        {"prompt": CHAT[:1], "chosen": CHAT, "rejected": [*CHAT[:1], {"role": "assistant", "content": "5"}]},
        {"chosen": CHAT, "rejected": [*CHAT[:1], {"role": "assistant", "content": "5"}]},
        {
            "conversations": [{"from": "human", "value": "2+2"}],
            "chosen": {"from": "gpt", "value": "4"},
            "rejected": {"from": "gpt", "value": "5"},
        },
        {"chosen": "\n\nHuman: 2+2\n\nAssistant: 4", "rejected": "\n\nHuman: 2+2\n\nAssistant: 5"},
        {"chosen": "2+2 4", "rejected": "2+2 5"},
    ],
)
def test_all_forms_of_a_pair_give_the_same_preference(row: dict[str, Any]):
    assert texts(parse(row)) == (["2+2"], ["4", "5"])


def test_ratings_give_the_best_reply_against_the_worst():
    row = {"prompt": "2+2", "responses": ["3", "4", "5"], "ratings": [2, 5, 1]}
    assert texts(parse(row, RATINGS))[1] == ["4", "5"]
    assert parse({**row, "ratings": [3, 3, 3]}, RATINGS).fault == "all ratings are the same"


def test_a_single_reply_is_desirable_by_its_label_or_from_a_rating_on():
    assert parse({"prompt": "2+2", "completion": "4", "label": True}).desirable is True
    assert parse({"prompt": "2+2", "response": "5", "rating": 3.9}, RATINGS).desirable is False
    assert parse({"prompt": "2+2", "response": "4", "rating": 4}, RATINGS).desirable is True


def test_a_pair_is_a_desirable_and_an_undesirable_reply():
    labelled = labelled_of([parse({"prompt": "2+2", "chosen": "4", "rejected": "5"})])
    assert [(each.replies[0].content, each.desirable) for each in labelled] == [("4", True), ("5", False)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "2+2", "chosen": "4"}, "no 'rejected'; add it"),
        ({"prompt": "2+2", "rejected": "4"}, "no 'chosen'; add it"),
        ({"chosen": "4", "rejected": "5"}, "no 'prompt', and chosen and rejected do not begin alike"),
        ({"prompt": "", "chosen": "4", "rejected": "5"}, "'prompt' is empty"),
        ({"prompt": CHAT, "chosen": "4", "rejected": "5"}, "'prompt' ends with the assistant"),
        ({"prompt": "2", "messages": CHAT, "chosen": "4", "rejected": "5"}, "both 'prompt' and 'messages'"),
        ({"prompt": "1+1", "chosen": CHAT, "rejected": "5"}, "'chosen' begins with other messages than the prompt"),
        ({"prompt": "2+2", "chosen": 4, "rejected": "5"}, "'chosen' must be text, a message or a list of messages"),
        ({"prompt": "2+2", "chosen": CHAT[:1], "rejected": "5"}, "'chosen' ends with a message of 'user'"),
        ({"prompt": "2+2", "response": "4"}, "needs either 'label' or 'rating'"),
        ({"prompt": "2+2", "response": "4", "label": 1}, "'label' must be true or false"),
        ({"prompt": "2+2", "response": "4", "rating": 6}, r"a rating outside of `ratings`, 1 to 5 \(got 6\)"),
        ({"prompt": "2+2", "response": "4", "rating": "good"}, "a rating is not a number"),
        ({"prompt": "2+2", "responses": ["4", "5"], "ratings": [1]}, "2 responses and 1 ratings"),
    ],
)
def test_a_wrong_row_is_one_line_with_file_and_line(row: dict[str, Any], message: str, tmp_path: Path):
    path = tmp_path / "pairs.jsonl"
    good = {"prompt": "2+2", "chosen": "4", "rejected": "5"}
    path.write_text(f"{json.dumps(good)}\n{json.dumps(row)}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=message) as caught:
        jsonl(str(path), Reading(ratings=RATINGS))
    assert str(caught.value).startswith(f"{path}:2: ") and "\n" not in str(caught.value)


def test_ratings_without_a_range_are_refused():
    with pytest.raises(ValueError, match=r"their range is unknown; set `ratings` of the section"):
        parse({"prompt": "2+2", "response": "4", "rating": 4})


def encode(rows: list[Preference], max_seq_len: int = 32, **section: Any) -> Any:
    dpo = Dpo.model_validate({"data": "pairs.jsonl", **section})
    template = Template(character_tokenizer("0123456789+="))
    return encode_preferences(dpo, rows, template=template, max_seq_len=max_seq_len)


def pair(chosen: str, rejected: str, where: str = "x.jsonl:7") -> Preference:
    replies = (Message("assistant", chosen), Message("assistant", rejected))
    return Preference(where=where, messages=(Message("user", "2+2="),), replies=replies)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (pair("4", "4"), "the chosen and the rejected response are equal"),
        (pair("4", " "), "the rejected response is empty"),
        (pair("4", "5" * 40), "45 tokens exceed rollout.max_seq_len 32"),
    ],
)
def test_a_row_without_a_lesson_is_an_error_or_is_dropped_and_listed(row: Preference, reason: str):
    with pytest.raises(ConfigError) as caught:
        encode([pair("4", "5"), row])
    assert str(caught.value) == f"x.jsonl:7: {reason}; correct it, or set dpo.faulty_rows to drop"
    examples, dropped = encode([pair("4", "5", "x.jsonl:1"), row], faulty_rows="drop")
    assert [each.where for each in examples] == ["x.jsonl:1"]
    assert [(each.where, each.reason) for each in dropped] == [("x.jsonl:7", reason)]


def test_an_example_has_both_sequences_with_their_ends():
    examples, _ = encode([pair("4", "56")])
    (context, chosen), (_, rejected) = examples[0].rows
    assert (len(context), len(chosen), len(rejected)) == (4, 2, 3)
    assert chosen[-1] == rejected[-1] == 1  # end of sequence


def test_a_labelled_example_comes_with_a_response_to_another_prompt():
    def single(prompt: str, reply: str) -> Preference:
        messages = (Message("user", prompt),)
        return Preference(where="x:1", messages=messages, replies=(Message("assistant", reply),), desirable=True)

    examples, _ = encode([single("1+1=", "2"), single("1+1=", "3"), single("2+2=", "456")], loss="kto")
    assert [each.rows[0][0] == each.rows[1][0] for each in examples] == [True] * 3
    assert [len(each.rows[1][1]) for each in examples] == [4, 4, 2]  # 456, 456 and 2, with their ends
    with pytest.raises(ConfigError, match="all examples have the same prompt"):
        encode([single("1+1=", "2"), single("1+1=", "3")], loss="kto")


def test_single_replies_need_a_loss_without_pairs():
    row = Preference(
        where="x.jsonl:3", messages=(Message("user", "1"),), replies=(Message("assistant", "2"),), desirable=True
    )
    with pytest.raises(ConfigError, match=r"x\.jsonl:3: a single response, and loss 'dpo' compares two"):
        encode([row])


def test_wrong_answers_differ_from_right_ones_in_one_digit():
    tasks, pairs = sums(split="held_out", pad=True), answer_pairs(split="held_out", pad=True, wrong=2)
    assert len(pairs) == 2 * len(tasks)
    for task, preference in zip(tasks, pairs[::2], strict=True):
        right, wrong = (reply.content for reply in preference.replies)
        assert right == task.answer
        assert sum(a != b for a, b in zip(right, wrong, strict=True)) == 1
