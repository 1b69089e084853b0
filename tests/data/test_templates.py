"""Text to ids and back, with a chat template of our own writing and with none."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.config.schema import Shape
from roll.data.templates import Template, character_tokenizer, end_tokens, hidden_roles, load_tokenizer
from roll.errors import ConfigError
from roll.types import Message, Task
from tests.data.chat_templates import STRICT, family

CHAT = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "<|begin|>{{ m.role }}:{{ m.content | trim }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant:{% endif %}"
)
FORGETFUL = (  # drops the thoughts of replies that are no longer the last message
    "{% for m in messages %}{% set content = m.content %}"
    "{% if m.role == 'assistant' and not loop.last %}{% set content = m.content.split('</think>')[-1] %}{% endif %}"
    "<|begin|>{{ m.role }}:{{ content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant:{% endif %}"
)
ALPHABET = "".join(dict.fromkeys(Shape().alphabet + "<>|/"))
ASKED = Message("user", "1+1=")
AGAIN = Message("user", "2+2=")


def chatting(template: str = CHAT) -> Template:
    tokenizer: Any = character_tokenizer(ALPHABET)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|begin|>", "<|end|>"]})
    tokenizer.chat_template = template
    return Template(tokenizer)


def plain() -> Template:
    return Template(character_tokenizer(Shape().alphabet))


def spelled(template: Template, ids: Any) -> str:
    return template.tokenizer.decode([int(token) for token in ids])


def test_every_character_is_one_token_after_the_special_ones():
    tokenizer = character_tokenizer("ab\n ")
    assert tokenizer.encode("a b\nb") == [4, 7, 5, 6, 5]
    assert [tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.unk_token_id] == [
        0,
        1,
        2,
        3,
    ]
    assert len(tokenizer) == 8


def test_a_saved_character_tokenizer_is_loaded_equal(tmp_path: Path):
    tokenizer = character_tokenizer(Shape().alphabet)
    tokenizer.save_pretrained(str(tmp_path))
    text = "12 + 34 = ?\n\n  why , oh why ."
    again = load_tokenizer(tmp_path)
    assert again.encode(text) == tokenizer.encode(text)
    assert Template(again).decode(again.encode(text)) == text


def test_a_character_twice_in_the_alphabet_is_refused():
    with pytest.raises(ConfigError, match="it has 'b' twice"):
        character_tokenizer("abcb")


def test_a_directory_without_a_tokenizer_is_refused_in_one_line(tmp_path: Path):
    for directory in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ConfigError) as caught:
            load_tokenizer(directory)
        assert str(directory) in str(caught.value) and "\n" not in str(caught.value)


def test_plain_contents_are_joined():
    template = plain()
    found = template.open([Message("system", "add. "), ASKED], where="task 't'")
    assert spelled(template, found) == "add. 1+1="
    assert found.dtype == np.int32


def test_plain_opens_with_a_begin_token_only_if_the_tokenizer_adds_one_itself():
    from tokenizers.processors import TemplateProcessing

    tokenizer: Any = plain().tokenizer
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 2), ("<eos>", 1)]
    )
    template = Template(tokenizer, "plain")
    assert template.open([ASKED], where="task 't'").tolist()[0] == 2
    assert template.open([ASKED], where="task 't'").tolist().count(1) == 0  # a prompt has not ended
    assert 2 not in template.extend([ASKED, Message("assistant", "2")], [AGAIN], last=1, where="task 't'").tolist()


def test_plain_extends_by_the_new_contents_only():
    template = plain()
    found = template.extend([ASKED, Message("assistant", "2")], [AGAIN], last=1, where="task 't'")
    assert found is not None
    assert spelled(template, found) == "2+2="


def test_an_unknown_character_is_named_with_its_task():
    with pytest.raises(ConfigError, match=r"task 'euro': the tokenizer does not know '€'"):
        plain().open([Message("user", "1€=")], where="task 'euro'")


def test_the_name_of_a_special_token_in_a_plain_prompt_is_text():
    with pytest.raises(ConfigError, match="does not know '<'"):
        plain().open([Message("user", "1<eos>")], where="task 't'")


def test_a_chat_opens_where_the_reply_begins():
    template = chatting()
    assert (
        spelled(template, template.open([ASKED], where="task 't'")) == "<|begin|>user:1+1=<|end|>\n<|begin|>assistant:"
    )


def test_the_token_after_a_reply_and_the_end_of_sequence_end_it():
    template = chatting()
    end = template.tokenizer.convert_tokens_to_ids("<|end|>")
    assert template.eos_id == end
    assert template.eos_ids == {end, 1}
    assert plain().eos_ids == {1}


@pytest.mark.parametrize(
    ("generation", "config", "ends"),
    [
        ({"eos_token_id": [5, 7]}, {"eos_token_id": 3}, {5, 7}),
        ({}, {"eos_token_id": 3}, {3}),
        (None, {"eos_token_id": [3, 4]}, {3, 4}),
        ({"eos_token_id": None}, {"eos_token_id": "x"}, set()),
        ("broken", [], set()),
    ],
)
def test_end_tokens_are_those_that_the_model_is_generated_with(
    tmp_path: Path, generation: Any, config: Any, ends: set[int]
) -> None:
    for name, values in (("generation_config.json", generation), ("config.json", config)):
        if values is not None:
            (tmp_path / name).write_text(values if isinstance(values, str) else json.dumps(values))
    assert end_tokens(tmp_path) == ends
    assert Template(plain().tokenizer, ends=end_tokens(tmp_path)).eos_ids == {1, *ends}


def test_opening_and_extending_give_the_rendered_conversation():
    template = chatting()
    reply = Message("assistant", "2")
    opened = template.open([ASKED], where="t").tolist()
    sampled = template.answer("2", where="t").tolist()
    appended = template.extend([ASKED, reply], [AGAIN], last=sampled[-1], where="t")
    assert appended is not None
    assert [*opened, *sampled, *appended.tolist()] == template.open([ASKED, reply, AGAIN], where="t").tolist()


def test_a_truncated_reply_is_closed_by_the_template():
    template = chatting()
    before = [ASKED, Message("assistant", "22")]
    cut = template.extend(before, [AGAIN], last=template.tokenizer.encode("2")[0], where="t")
    whole = template.extend(before, [AGAIN], last=template.eos_id, where="t")
    assert cut is not None and whole is not None
    assert cut.tolist() == [template.eos_id, *whole.tolist()]


def test_spaces_around_a_reply_do_not_count_as_rewriting():
    template = chatting()
    found = template.extend([ASKED, Message("assistant", " 2 ")], [AGAIN], last=template.eos_id, where="t")
    assert found is not None
    assert spelled(template, found) == "\n<|begin|>user:2+2=<|end|>\n<|begin|>assistant:"


def test_a_template_that_rewrites_a_reply_is_detected():
    template = chatting(FORGETFUL)
    thought = Message("assistant", "<think>hm</think>2")
    assert template.extend([ASKED, thought], [AGAIN], last=template.eos_id, where="t") is None
    assert template.extend([ASKED, Message("assistant", "2")], [AGAIN], last=template.eos_id, where="t") is not None


def test_a_template_that_refuses_a_role_is_a_config_error():
    with pytest.raises(ConfigError, match=r"task 't': the chat template refuses its messages.*no tools here"):
        chatting().open([Message("tool", "4")], where="task 't'")


def test_chat_without_a_template_is_refused():
    with pytest.raises(ConfigError, match="no chat template"):
        Template(character_tokenizer("ab"), "chat")


def test_plain_may_be_chosen_although_there_is_a_chat_template():
    template = Template(chatting().tokenizer, "plain")
    assert spelled(template, template.open([ASKED], where="t")) == "1+1="


def test_decoding_leaves_special_tokens_out():
    assert plain().decode([*plain().tokenizer.encode("12 . 3"), 1, 0]) == "12 . 3"


def test_a_template_of_the_last_message_encodes_only_that_and_is_reopened_after_a_reply():
    template = Template(character_tokenizer(Shape().alphabet), "last")
    said = [ASKED, Message("assistant", "2")]
    assert spelled(template, template.open([*said, AGAIN], where="t")) == "2+2="
    assert template.open([AGAIN], where="t").tolist() == template.open([*said, AGAIN], where="t").tolist()
    assert template.extend(said, [AGAIN], last=template.eos_id, where="t") is None


@pytest.mark.parametrize(
    ("name", "end"), [("gemma", "<end_of_turn>"), ("mistral", "<eos>"), ("glm", "<|user|>"), ("phi", "<|end|>")]
)
def test_the_end_of_turn_is_found_in_the_template_of_a_family(name: str, end: str) -> None:
    template = family(name)
    assert template.tokenizer.convert_ids_to_tokens(template.eos_id) == end


@pytest.mark.parametrize("name", STRICT)
def test_a_second_question_is_appended_to_the_response_as_sampled(name: str) -> None:
    template, reply = family(name), Message("assistant", "2")
    opened, sampled = template.open([ASKED], where="t").tolist(), template.answer("2", where="t").tolist()
    appended = template.extend([ASKED, reply], [AGAIN], last=sampled[-1], where="t")
    assert appended is not None
    text = spelled(template, [*opened, *sampled, *appended])
    rendered = template.render([ASKED, reply, AGAIN], where="t")
    assert "".join(text.split()) == "".join(rendered.split())


def test_the_role_of_the_next_message_is_kept_after_another_end_token() -> None:
    template, before = family("glm"), [ASKED, Message("assistant", "2")]
    question = spelled(template, template.extend(before, [AGAIN], last=template.tokenizer.eos_token_id, where="t"))
    assert question == "<|user|>\n2+2=<|assistant|>"
    question = spelled(template, template.extend(before, [AGAIN], last=template.eos_id, where="t"))
    assert question == "\n2+2=<|assistant|>"


def test_a_refused_system_message_is_named_as_such() -> None:
    with pytest.raises(ConfigError) as caught:
        family("gemma").open([Message("system", "Add."), ASKED], where="task 't'")
    assert str(caught.value) == (
        "task 't': the chat template refuses a system message (System role not supported); "
        "put its text into the user's message, in data with `fields.template` for `fields.system`"
    )
    with pytest.raises(ConfigError, match=r"refuses its messages \(Conversation roles must alternate"):
        family("gemma").open([ASKED, AGAIN], where="task 't'")


@pytest.mark.parametrize(
    "broken",
    [
        "{% for m in messages %}{{ m.content",
        "{{ messages[0].content + 3 }}",
        "{% if messages[0].role == 'user' %}{{ raise_exception('no user here') }}{% endif %}",
    ],
)
def test_a_template_with_an_error_is_a_config_error_of_one_line(broken: str) -> None:
    with pytest.raises(ConfigError) as caught:
        chatting(broken)
    assert str(caught.value).startswith("model.template: the chat template fails (")
    assert "\n" not in str(caught.value)


def test_roles_that_a_model_without_a_template_does_not_see_are_named() -> None:
    tasks = [Task(id=str(number), domain="sums", messages=(ASKED,) * number) for number in (1, 2)]
    warning = hidden_roles(plain(), tasks)
    assert warning.startswith("warning: source 'sums': the model has no chat template, so it sees the texts of user, u")
    assert not hidden_roles(plain(), tasks[:1]) and not hidden_roles(chatting(), tasks)
