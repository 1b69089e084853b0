"""Rows in the OpenAI chat format: prompts and references for tasks, and token rows for supervised learning."""

import json
from pathlib import Path
from typing import Any

import pytest

from roll.config.sources import Fields
from roll.data.chat_rows import chat_row
from roll.data.tasks import jsonl
from roll.data.templates import Template, character_tokenizer
from roll.data.tools import parse_tools
from roll.errors import ConfigError
from roll.types import Message, Task
from tests.data.chat_templates import CHATML, THINKING, family, tokenizer

CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
SYSTEM, ASKED = {"role": "system", "content": "add"}, {"role": "user", "content": "1+2?"}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
TOLD, ANSWERED = {"role": "tool", "tool_call_id": "1", "content": "3"}, {"role": "assistant", "content": "it is 3"}
CHAT = [SYSTEM, ASKED, CALLED, TOLD, ANSWERED]
MARKED = CHATML.replace(
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}",
    "{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>' }}"
    "{% endgeneration %}{{ '\n' }}{% else %}{{ m.content + '<|im_end|>\n' }}{% endif %}",
)


def task(folder: Path, row: dict[str, Any]) -> Task:
    file = folder / "chats.jsonl"
    file.write_text(json.dumps(row) + "\n")
    return jsonl(str(file))[0]


def chat(folder: Path, messages: list[dict[str, Any]]) -> tuple[Message, ...]:
    read = task(folder, {"messages": messages})
    assert read.reply is not None
    return (*read.messages, read.reply)


def texts(template: Template, row: list[list[int]]) -> list[str]:
    return [template.tokenizer.decode(part) for part in row]


def test_a_chat_that_ends_with_the_assistant_is_a_prompt_with_a_reference(tmp_path: Path) -> None:
    read = task(tmp_path, {"messages": CHAT, "tools": TOOLS})
    assert [message.role for message in read.messages] == ["system", "user", "assistant", "tool"]
    assert (read.answer, read.reply, read.metadata) == (
        "it is 3",
        Message("assistant", "it is 3"),
        {"tools": TOOLS},
    )
    assert task(tmp_path, {"messages": CHAT, "answer": "3"}).answer == "3"
    called = task(tmp_path, {"messages": CHAT[:3]})
    assert called.answer == '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    parts = [{"type": "text", "text": "1+"}, {"type": "text", "text": "2?"}]
    asked = task(tmp_path, {"messages": [{"role": "user", "content": parts}], "answer": "3"})
    assert (asked.messages, asked.reply) == ((Message("user", "1+2?"),), None)


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([ASKED, {"role": "assistant"}], "a message needs 'role' and 'content' as text"),
        ([ANSWERED], "no message before the last assistant message"),
        ([ASKED, ANSWERED, ANSWERED], "another assistant message before the last assistant message"),
        ([ASKED, {**CALLED, "tool_calls": CALL}], "'tool_calls' is not a list of calls"),
        ([{**ASKED, "tool_calls": [CALL]}], "'tool_calls' in a message of 'user'"),
        ([ASKED, {**CALLED, "tool_calls": [{"function": {"name": "add", "arguments": "{"}}]}], "a tool call without"),
        ([{"role": "bot", "content": "3"}], "a message of an unknown role (got 'bot'); write 'assistant'"),
        ([{"role": "User", "content": "3"}], "a message of an unknown role (got 'User'); write 'user'"),
        ([{"role": "king", "content": "3"}], "a message of an unknown role (got 'king'); write system, user,"),
        (
            [{"from": "function_call", "value": "{}"}],
            "a message of an unknown role (got 'function_call'); write system",
        ),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "a part of a message's content is not text"),
    ],
)
def test_malformed_messages_are_faults_of_their_line(tmp_path: Path, messages: list[Any], fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        task(tmp_path, {"messages": messages})
    assert str(caught.value).startswith(f"{tmp_path}/chats.jsonl:1: {fault}") and "\n" not in str(caught.value)


def test_rows_of_the_sharegpt_format_are_converted(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "1+2?"}, {"from": "gpt", "value": "it is 3"}]
    read = task(tmp_path, {"conversations": turns, "system": "add", "source": "web"})
    assert read.messages == (Message("system", "add"), Message("user", "1+2?"))
    assert (read.reply, read.answer, read.metadata) == (Message("assistant", "it is 3"), "it is 3", {"source": "web"})
    as_fields = jsonl(str(tmp_path / "chats.jsonl"), Fields(messages="conversations"))[0]
    assert (as_fields.messages, as_fields.reply) == (read.messages[1:], read.reply)
    both = task(tmp_path, {"messages": [ASKED, ANSWERED], "conversations": turns})
    assert both.messages == (Message("user", "1+2?"),) and both.metadata == {"conversations": turns}


def test_a_developer_message_is_a_system_message(tmp_path: Path) -> None:
    read = task(tmp_path, {"messages": [{**SYSTEM, "role": "developer"}, ASKED, ANSWERED]})
    assert read.messages[0] == Message("system", "add")


def test_a_template_renders_the_tool_calls_of_a_prompt(tmp_path: Path) -> None:
    template = family("llama")
    prompt = texts(template, [template.open(task(tmp_path, {"messages": CHAT}).messages, where="t").tolist()])[0]
    assert '"parameters": {"a": 1, "b": 2}}<|eot_id|>' in prompt


def test_the_last_turn_or_every_turn_of_a_chat_is_trained_on(tmp_path: Path) -> None:
    template, messages = family("chatml"), chat(tmp_path, CHAT)
    tools = parse_tools(TOOLS)
    every = texts(template, chat_row(template, messages, every=True, where="t", tools=tools))
    call = '\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call><|im_end|>'
    observed = "\n<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    assert every[1:] == [call, observed, "it is 3<|im_end|>"] and '"name": "add"' in every[0]
    last = texts(template, chat_row(template, messages, every=False, where="t", tools=tools))
    assert last == ["".join(every[:3]), "it is 3<|im_end|>"]


def test_a_chat_row_has_the_ids_that_the_policy_would_see_and_sample(tmp_path: Path) -> None:
    template, messages = family("chatml"), chat(tmp_path, [SYSTEM, ASKED, ANSWERED])
    prompt, answer = template.open(messages[:2], where="t"), template.answer("it is 3", where="t")
    assert chat_row(template, messages, every=True, where="t") == [prompt.tolist(), answer.tolist()]


@pytest.mark.parametrize("every", [True, False])
def test_the_generation_blocks_of_a_template_mark_what_is_trained_on(tmp_path: Path, every: bool) -> None:
    words = tokenizer("chatml")
    words.chat_template = MARKED
    template, messages = Template(words), chat(tmp_path, [ASKED, ANSWERED, ASKED, {**ANSWERED, "content": "abc"}])
    row = texts(template, chat_row(template, messages, every=every, where="t"))
    assert row[1::2] == (["it is 3<|im_end|>", "abc<|im_end|>"] if every else ["abc<|im_end|>"])
    assert "".join(row) + "\n" == template.render(messages, where="t", opened=False)
    unmarked = [ASKED, {**CALLED, "content": ""}]  # only the branch without calls has a generation block
    with pytest.raises(ConfigError, match=r"task '7': the chat template marks no assistant text of it"):
        chat_row(template, chat(tmp_path, unmarked), every=every, where="task '7'")


def test_a_template_that_changes_earlier_turns_is_an_error_for_all_turns_only(tmp_path: Path) -> None:
    thought = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nit is 3"}
    template, messages = family("thinking"), chat(tmp_path, [ASKED, thought, ASKED, thought])
    assert template.tokenizer.chat_template == THINKING
    with pytest.raises(ConfigError) as caught:
        chat_row(template, messages, every=True, where="task '7'")
    assert str(caught.value) == (
        "task '7': the chat template changes earlier text when message 2 is added, so its tokens cannot be found; "
        "set target to last"
    )
    row = texts(template, chat_row(template, messages, every=False, where="t"))
    assert row[1] == "<think>\nhm\n</think>\n\nit is 3<|im_end|>" and "hm" not in row[0]


def test_without_a_chat_template_contents_and_calls_are_joined(tmp_path: Path) -> None:
    template = Template(character_tokenizer('abdit s3?12+nmergu{}:,"<>/_lo\nc'))
    row = texts(template, chat_row(template, chat(tmp_path, CHAT), every=True, where="t"))
    assert row[0] == "add1+2?" and row[1].startswith('<tool_call>\n{"name": "add"') and row[2:] == ["3", "it is 3<eos>"]
    last_only = Template(template.tokenizer, "last")
    assert texts(last_only, chat_row(last_only, chat(tmp_path, CHAT), every=False, where="t")) == ["3", "it is 3<eos>"]
    with pytest.raises(ConfigError, match=r"task '7': model\.template 'last' encodes one response"):
        chat_row(last_only, chat(tmp_path, CHAT), every=True, where="task '7'")
    twice = chat(tmp_path, [ASKED, ANSWERED, ANSWERED, ASKED, ANSWERED])
    with pytest.raises(ConfigError, match=r"task '7': a response directly after another"):
        chat_row(template, twice, every=True, where="task '7'")
