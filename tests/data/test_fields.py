"""Rows that call things by other names."""

import json
from pathlib import Path
from typing import Any

import pytest

from roll.config.sources import Fields
from roll.data.fields import look_up, task_from
from roll.data.tasks import jsonl
from roll.errors import ConfigError
from roll.types import Message, Task

ROW = {"uid": 7, "question": "1+1?", "solution": {"text": "add", "final": "2"}, "choices": ["1", "2"]}


def made(row: Any, **names: Any) -> Task:
    return task_from(row, Fields(**names), number=3, domain="d")


def fault(row: Any, **names: Any) -> str:
    with pytest.raises(ValueError) as caught:
        made(row, **names)
    return str(caught.value)


def test_names_and_dotted_paths_map_to_the_fields_of_a_task():
    found = made(ROW, prompt="question", answer="solution.final", id="uid")
    assert found == Task(
        id="7",
        domain="d",
        messages=(Message("user", "1+1?"),),
        answer="2",
        metadata={"solution": {"text": "add", "final": "2"}, "choices": ["1", "2"]},
        seed=3,
    )


def test_a_template_and_a_system_message_make_the_prompt():
    template = "Question: {question}\nFirst choice: {choices.0}\nAnswer in \\boxed{{}}:"
    found = made(ROW, template=template, system="Be brief.", answer="solution.final")
    assert found.messages == (
        Message("system", "Be brief."),
        Message("user", "Question: 1+1?\nFirst choice: 1\nAnswer in \\boxed{}:"),
    )
    assert found.metadata["question"] == "1+1?"


def test_messages_may_be_a_list_in_json_text():
    text = json.dumps([{"role": "system", "content": "s"}, {"role": "user", "content": "1+1?"}])
    found = made({"prompt": "ignored", "chat": text, "answer": "2"}, messages="chat")
    assert found.messages == (Message("system", "s"), Message("user", "1+1?"))
    assert "'messages' is text, but not a list in JSON" in fault({"messages": "1+1?", "answer": "2"})
    for text in ("{}", "[]", "3"):
        assert "'messages' a list, neither of them empty" in fault({"messages": text, "answer": "2"})


def test_metadata_may_be_renamed_for_a_reward():
    found = made(
        ROW, prompt="question", answer="solution.final", metadata={"options": "choices", "why": "solution.text"}
    )
    assert (found.metadata["options"], found.metadata["why"]) == (["1", "2"], "add")
    assert "choices" not in found.metadata


def test_constants_are_in_every_row():
    found = made({"prompt": "p", "level": 1}, constants={"answer": "yes", "level": 5})
    assert (found.answer, found.metadata) == ("yes", {"level": 5})


def test_an_unmapped_field_stays_in_the_metadata():
    found = made(
        {"prompt": [{"role": "user", "content": "p"}], "answer": "long", "gold": "2"}, messages="prompt", answer="gold"
    )
    assert (found.messages, found.answer, found.metadata) == ((Message("user", "p"),), "2", {"answer": "long"})


def test_an_empty_cell_of_a_table_is_no_field():
    found = made({"prompt": "p", "messages": None, "id": None, "seed": None, "answer": "2"})
    assert (found.id, found.seed, found.messages) == ("3", 3, (Message("user", "p"),))


def test_the_error_about_a_missing_field_lists_the_available_ones():
    assert fault(ROW, prompt="question", answer="gold") == (
        "no field 'gold' (has uid, question, solution, choices); map it with tasks.fields"
    )
    assert fault(ROW, prompt="question", answer="solution.gold") == (
        "no field 'solution.gold' ('solution' has text, final); map it with tasks.fields"
    )
    assert fault(ROW, prompt="question", answer="uid.gold").startswith("no field 'uid.gold' ('uid' is int)")
    assert fault(ROW, prompt="question", answer="choices.2").startswith("no field 'choices.2' ('choices' has 0, 1)")
    assert fault(ROW, template="{quest}", answer="uid").startswith("no field 'quest' (has uid")
    assert "(the row has uid, question, solution, choices)" in fault(ROW)


def test_a_name_with_a_dot_in_it_is_a_name_first():
    assert look_up({"a.b": 1, "a": {"b": 2}}, "a.b") == 1


def test_a_template_takes_text_and_numbers_only():
    assert fault(ROW, template="{choices}", answer="uid").startswith("field 'choices' is neither text nor a number")


def test_two_system_messages_are_an_error():
    row = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], "answer": "2"}
    assert fault(row, system="t").startswith("it has a system message, and")


def test_faults_of_mapping_have_file_and_line(tmp_path: Path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ({"q": "a", "a": "1"}, {"q": "b"}, {"a": "2"})))
    with pytest.raises(ConfigError) as caught:
        jsonl(str(file), Fields(prompt="q", answer="a"))
    assert str(caught.value).replace(f"{tmp_path}/", "").splitlines() == [
        "rows.jsonl:2: no field 'a' (has q); map it with tasks.fields",
        "rows.jsonl:3: no field 'q' (has a); map it with tasks.fields",
    ]
