"""Responses that are JSON of a given shape."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.errors import ConfigError
from roll.rewards.json_schema import score
from roll.types import Score, Task

pytestmark = pytest.mark.slow

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
    "additionalProperties": False,
}


def found(response: str, schema: Any = PERSON) -> Score:
    return score(Task(id="t", domain="d", metadata={"schema": schema}), response)


def test_the_whole_response_or_its_last_fenced_block_is_read():
    good, bad = '{"name": "Ada"}', '{"name": 1}'
    assert found(f" {good}\n").value == 1.0
    assert found(f"Here:\n```json\n{good}\n```\nDone.").value == 1.0
    assert found(f"```\n{good}\n```").value == 1.0
    assert found(f"```json\n{bad}\n```\n```JSON\n{good}\n```").value == 1.0
    assert found(f"```json\n{good}\n```\n```json\n{bad}\n```").value == 0.0
    assert found(f"```json\n{good}\n```\n```python\n{bad}\n```").value == 1.0
    assert found(f"<think>{bad}</think>{good}").value == 1.0


def test_json_of_another_shape_is_distinguished_from_invalid_json():
    assert found('{"name": 1}') == Score(0.0, {"parsed": 1.0})
    for response in (
        "",
        "Ada",
        '{"name": "Ada"',
        f"```json\n{json.dumps({'name': 'Ada'})}",
        "NaN",
        "Infinity",
        "9" * 5000,
    ):
        assert found(response) == Score(0.0, {"parsed": 0.0})


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer"}, ["1", "1.0", "-3"], ["1.5", "true", '"1"', "null"]),
        ({"type": "number"}, ["1", "1.5"], ["true", "[]"]),
        ({"type": ["string", "null"]}, ['""', "null"], ["0", "false"]),
        ({"type": "boolean"}, ["true"], ["1"]),
        ({"enum": [1, "a", [True]]}, ["1", "1.0", '"a"', "[true]"], ["true", '"b"', "[1]"]),
        ({"const": {"a": [1]}}, ['{"a": [1.0]}'], ['{"a": [true]}', '{"a": [1], "b": 2}', "{}"]),
        ({"const": None}, ["null"], ["0", '""', "false"]),
        ({"const": 0}, ["0", "0.0"], ["false", "null"]),
        ({"minimum": 2, "maximum": 3}, ["2", "3", '"x"'], ["1.9", "4"]),
        ({"minLength": 2, "maxLength": 3}, ['"ab"', '"äöü"', "7"], ['"a"', '"abcd"']),
        ({"pattern": "^a+$"}, ['"aa"', "1"], ['"ab"', '""']),
        ({"items": {"type": "integer"}, "minItems": 1, "maxItems": 2}, ["[1]", '"x"'], ["[]", '["a"]', "[1,2,3]"]),
        ({"anyOf": [{"type": "null"}, {"minimum": 5, "type": "number"}]}, ["null", "5"], ["4", '"x"']),
        (
            PERSON,
            ['{"name": "A", "age": 3}'],
            ['{"age": 3}', '{"name": "A", "x": 1}', '{"name": "A", "age": -1}', "[]"],
        ),
        ({"additionalProperties": {"type": "null"}}, ['{"a": null}', "[]"], ['{"a": 1}']),
        ({"items": False}, ["[]"], ["[1]"]),
        ({"title": "any", "description": "anything"}, ["1", "[]"], []),
    ],
)
def test_each_keyword_allows_and_forbids(schema: Any, good: list[str], bad: list[str]):
    assert [found(response, schema).value for response in good] == [1.0] * len(good)
    assert [found(response, schema).value for response in bad] == [0.0] * len(bad)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (None, "no schema"),
        (7, "not a schema"),
        ({"requird": []}, "did you mean 'required'"),
        ({"properties": {"a": {"items": {"oneOf": []}}}}, r"schema.properties.a.items: no keyword named 'oneOf'"),
        ({"type": "text"}, r"schema.type: .*\(got 'text'\)"),
        ({"type": []}, "schema.type"),
        ({"minLength": -1}, "schema.minLength"),
        ({"enum": []}, "schema.enum"),
        ({"required": "a"}, "schema.required"),
        ({"pattern": r"(a)\1"}, "backreference"),
    ],
)
def test_a_schema_that_would_be_passed_over_is_refused(schema: Any, why: str):
    with pytest.raises(ConfigError, match=why):
        found("1", schema)


@pytest.mark.parametrize(
    "bomb", ["[" * 10**6, '{"a":' * 10**5, "```" * 10**5, "```\n" * 10**5, "[" + "1," * 10**5 + "1]"]
)
def test_no_response_breaks_it(bomb: str):
    assert found(bomb).value == 0.0


@settings(derandomize=True, max_examples=100, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )
)
def test_any_json_equals_itself_and_is_allowed_by_the_empty_schema(value: Any):
    response = json.dumps(value)
    assert found(response, {"const": value}).value == 1.0
    assert found(response, {}).value == 1.0
    assert found(response, {"const": [value]}).value == 0.0
