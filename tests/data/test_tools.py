"""Parsing of tool calls in replies."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.data.templates import Template, character_tokenizer
from roll.data.tools import CallFault, Tool, ToolCall, ToolForm, format_call, parse_response, parse_tools
from roll.errors import ConfigError
from roll.types import Message
from tests.data.chat_templates import CHATML, FAMILIES, family, tokenizer

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "integer", "minimum": 0, "maximum": 9},
        "unit": {"type": "string", "enum": ["m", "km"]},
    },
    "required": ["a"],
}
TOOLS = (Tool("far", "How far.", SCHEMA), Tool("open_ended", "Anything.", {"additionalProperties": True}))


def hermes(*calls: str) -> str:
    return "".join(f"<tool_call>\n{call}\n</tool_call>\n" for call in calls)


def test_a_call_is_parsed_in_the_format_of_the_model_family() -> None:
    found = parse_response(
        'I shall ask.\n<tool_call>\n{"name": "far", "arguments": {"a": 3, "unit": "m"}}\n</tool_call>', TOOLS
    )
    assert (found.calls, found.fault) == ((ToolCall("far", {"a": 3, "unit": "m"}),), None)
    found = parse_response(' {"name": "far", "parameters": {"a": 3}} ', TOOLS, "llama")
    assert (found.calls, found.fault) == ((ToolCall("far", {"a": 3}),), None)


def test_several_calls_come_in_their_order() -> None:
    calls = '{"name": "far", "arguments": {"a": 1}}', '{"name": "open_ended", "arguments": {"x": []}}'
    found = parse_response(hermes(*calls), TOOLS)
    assert [call.name for call in found.calls] == ["far", "open_ended"]


@pytest.mark.parametrize(("text", "form"), [("144", "hermes"), ("So {144}.", "llama"), ("", "llama"), ("", "hermes")])
def test_a_reply_without_a_call_is_an_answer(text: str, form: ToolForm) -> None:
    found = parse_response(text, TOOLS, form)
    assert (found.text, found.calls, found.fault) == (text, (), None)


@pytest.mark.parametrize(
    ("text", "fault", "why"),
    [
        ('<tool_call>{"name": "far", "arguments": {"a": 1}}', CallFault.NOT_CLOSED, "<tool_call> without </tool_call>"),
        ('{"name": "far"}</tool_call>', CallFault.NOT_CLOSED, "</tool_call> without <tool_call>"),
        (hermes("far(1)"), CallFault.NOT_JSON, "the call is not JSON"),
        (hermes('{"name": "far", "name": "far", "arguments": {"a": 1}}'), CallFault.NOT_JSON, "the call is not JSON"),
        (hermes('{"name": "far", "arguments": {"a": NaN}}'), CallFault.NOT_JSON, "the call is not JSON"),
        (hermes("[" * 100_000), CallFault.NOT_JSON, "the call is not JSON"),
        (hermes("[1]"), CallFault.NOT_A_CALL, 'a call is {"name": ..., "arguments": {...}}'),
        (hermes('{"name": "far", "parameters": {"a": 1}}'), CallFault.NOT_A_CALL, 'a call is {"name"'),
        (hermes('{"name": "far", "arguments": "{}"}'), CallFault.NOT_A_CALL, 'a call is {"name"'),
        (hermes('{"name": "far", "arguments": {"a": 1}}') + "so", CallFault.NOT_A_CALL, "text after a call"),
        (hermes('{"name": "near", "arguments": {}}'), CallFault.UNKNOWN_TOOL, "no tool named 'near'"),
        (hermes('{"name": "far", "arguments": {}}'), CallFault.BAD_ARGUMENTS, "far: 'a' is missing"),
        (hermes('{"name": "far", "arguments": {"a": 1, "b": 2}}'), CallFault.BAD_ARGUMENTS, "far: takes no 'b'"),
        (hermes('{"name": "far", "arguments": {"a": "1"}}'), CallFault.BAD_ARGUMENTS, "'a' must be of type integer"),
        (hermes('{"name": "far", "arguments": {"a": -1}}'), CallFault.BAD_ARGUMENTS, "'a' must be at least 0"),
        (hermes('{"name": "far", "arguments": {"a": 10}}'), CallFault.BAD_ARGUMENTS, "'a' must be at most 9"),
        (hermes('{"name": "far", "arguments": {"a": true}}'), CallFault.BAD_ARGUMENTS, "'a' must be of type integer"),
        (hermes('{"name": "far", "arguments": {"a": 1, "unit": "mile"}}'), CallFault.BAD_ARGUMENTS, "one of m, km"),
    ],
)
def test_a_malformed_call_is_a_named_fault(text: str, fault: CallFault, why: str) -> None:
    found = parse_response(text, TOOLS)
    assert (found.calls, found.fault) == ((), fault) and why in found.why


def test_one_invalid_call_invalidates_the_reply() -> None:
    found = parse_response(hermes('{"name": "far", "arguments": {"a": 1}}', "{}"), TOOLS)
    assert (found.calls, found.fault) == ((), CallFault.NOT_A_CALL)


def test_a_call_of_one_family_is_none_of_the_other() -> None:
    assert parse_response(hermes('{"name": "far", "arguments": {"a": 1}}'), TOOLS, "llama").calls == ()
    assert parse_response('{"name": "far", "parameters": {"a": 1}}', TOOLS, "hermes").calls == ()
    assert parse_response('{"name": "far", "arguments": {"a": 1}}', TOOLS, "llama").fault is CallFault.NOT_A_CALL


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["<tool_call>", "</tool_call>", "{", "}", '"name"', ":", "far", "1", " ", "\n"])))
@pytest.mark.slow
def test_any_reply_is_parsed(parts: list[str]) -> None:
    for form in ("hermes", "llama"):
        found = parse_response("".join(parts), TOOLS, form)
        assert not (found.calls and found.fault) and bool(found.fault) == bool(found.why)


def test_functions_are_declared_with_or_without_wrapper() -> None:
    plain = {"name": "far", "description": "How far.", "parameters": SCHEMA}
    assert parse_tools([plain, {"type": "function", "function": {**plain, "name": "again"}}, TOOLS[1]]) == (
        TOOLS[0],
        Tool("again", "How far.", SCHEMA),
        TOOLS[1],
    )


@pytest.mark.parametrize("found", [5, "far", [{"description": "?"}], [3], [TOOLS[0], TOOLS[0]]])
def test_invalid_declarations_of_tools_are_errors(found: Any) -> None:
    with pytest.raises(ConfigError, match="tools: "):
        parse_tools(found)


@pytest.mark.parametrize(("name", "form"), [("chatml", "hermes"), ("thinking", "hermes"), ("llama", "llama")])
def test_the_format_of_a_call_is_that_of_the_template(name: str, form: str) -> None:
    assert family(name).tool_form == form


def test_a_chat_template_without_tools_has_no_form_and_a_plain_template_the_default() -> None:
    words = tokenizer("chatml")
    words.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert Template(words).tool_form is None
    words.chat_template = CHATML.replace("{% if tools %}", "{% if false %}")
    assert Template(words).tool_form is None, "tools that the template does not show cannot be called"
    assert Template(character_tokenizer("ab")).tool_form == "hermes"


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_the_template_shows_tools_in_the_opening_and_keeps_them(name: str) -> None:
    template, asked = family(name), Message("user", "far?")
    without = template.open([asked], where="t").tolist()
    opened = template.open([asked], where="t", tools=TOOLS).tolist()
    assert json.dumps(TOOLS[0].schema)[:40] in template.tokenizer.decode(opened)
    assert template.open([asked], where="t").tolist() == without != opened
    more = [Message("tool", "3")]
    heard = template.extend([asked, Message("assistant", "so")], more, last=template.eos_id, where="t", tools=TOOLS)
    assert heard is not None and "far" not in template.tokenizer.decode(heard.tolist())


@pytest.mark.parametrize("form", ["hermes", "llama"])
def test_a_formatted_call_is_parsed_back_equal(form: Any) -> None:
    call = ToolCall("find", {"what": 'Ä "quoted"\n</p>', "how": [1.0, None, {"deep": True}]})
    tool = Tool("find", "", {"type": "object", "properties": {"what": {"type": "string"}, "how": {}}})
    assert parse_response(format_call(call, form), [tool], form).calls == (call,)


def test_arguments_of_a_tool_that_is_not_strict_are_not_checked() -> None:
    schema = {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]}
    odd = format_call(ToolCall("find", {"which": 3}))
    assert parse_response(odd, [Tool("find", "", schema)]).fault is CallFault.BAD_ARGUMENTS
    assert parse_response(odd, [Tool("find", "", schema, strict=False)]).calls == (ToolCall("find", {"which": 3}),)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"ids": ["a", 3]}, "find: 'ids' must be a list whose entries are of type string"),
        ({"at": {"x": "1"}}, "find: 'at' must be an object that fits: 'x' must be of type integer"),
        ({"at": {}}, "find: 'at' must be an object that fits: 'x' is missing"),
        ({"at": {"x": 1, "z": 2}}, "find: 'at' must be an object that fits: takes no 'z'"),
        (
            {"rows": [[1], ["2"]]},
            "find: 'rows' must be a list whose entries are a list whose entries are of type integer",
        ),
        ({"ids": [], "at": {"x": 1}, "rows": [[], [1]], "loose": {"any": ["thing"]}}, ""),
    ],
)
def test_arguments_are_checked_inside_lists_and_objects_too(given: dict[str, Any], says: str) -> None:
    integers = {"type": "array", "items": {"type": "integer"}}
    about = {
        "ids": {"type": "array", "items": {"type": "string"}},
        "at": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
        "rows": {"type": "array", "items": integers},
        "loose": {"type": "object"},
    }
    found = parse_response(
        format_call(ToolCall("find", given)), [Tool("find", "", {"type": "object", "properties": about})]
    )
    assert (found.why, found.fault) == (says, CallFault.BAD_ARGUMENTS if says else None)
