"""Function calling by the published rules: on rows written here, and on all rows of BFCL if available."""

import asyncio
import functools
import itertools
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roll.data.tasks import jsonl
from roll.data.tools import ToolCall, format_call
from roll.envs.base import StepResult
from roll.envs.function_calling import FunctionCalling
from roll.envs.function_match import arguments_match
from roll.envs.guarded import unusable_reason
from roll.types import Message, Spec, Task

DATA = os.environ.get("ROLL_DATA")
WEATHER = {
    "name": "weather.get",
    "description": "Tells the weather.",
    "parameters": {
        "type": "dict",
        "properties": {
            "place": {"type": "string"},
            "days": {"type": "integer"},
            "height": {"type": "float"},
            "hourly": {"type": "boolean"},
            "fields": {"type": "array", "items": {"type": "string"}},
            "box": {"type": "tuple", "items": {"type": "float"}},
            "at": {"type": "dict", "properties": {"city": {"type": "string"}, "zone": {"type": "integer"}}},
            "stops": {"type": "array", "items": {"type": "dict", "properties": {"city": {"type": "string"}}}},
            "source": {"type": "any"},
        },
        "required": ["place"],
    },
}
CLOCK = {"name": "clock", "description": "", "parameters": {"type": "dict", "properties": {}, "required": []}}


def task(answer: Any, *, tools: Any = (WEATHER, CLOCK), **more: Any) -> Task:
    listed = list(tools) if isinstance(tools, tuple) else tools
    asked = (Message("user", "?"),)
    return Task(
        **{"id": "t", "domain": "d", "messages": asked, "answer": answer, "metadata": {"tools": listed}, **more}
    )


def said(task: Task, reply: str, **options: Any) -> StepResult:
    return asyncio.run(FunctionCalling(task, **options).step(reply))


def score(answer: Any, *calls: tuple[str, dict[str, Any]]) -> float:
    return said(task(answer), "".join(format_call(ToolCall(*call)) for call in calls)).reward


def allowed(**choices: list[Any]) -> list[dict[str, Any]]:
    return [{"weather.get": {"place": ["Oslo"], **choices}}]


def fit(choices: dict[str, list[Any]], **given: Any) -> bool:
    return arguments_match(
        {"place": "Oslo", **given},
        {"place": ["Oslo"], **choices},
        WEATHER["parameters"],  # pyright: ignore[reportArgumentType]
    )


def test_a_call_is_read_as_it_is_written_and_compared() -> None:
    answer = allowed(days=[3, ""])
    assert score(answer, ("weather.get", {"place": "Oslo", "days": 3})) == 1.0
    assert score(answer, ("weather.get", {"place": "Oslo"})) == 1.0
    assert score(answer, ("weather.get", {"place": "Oslo", "days": 4})) == 0.0
    assert score(answer, ("weather.get", {"days": 3})) == 0.0
    assert score(answer, ("clock", {})) == 0.0
    assert score(answer) == 0.0
    assert score(answer, *[("weather.get", {"place": "Oslo"})] * 2) == 0.0


@pytest.mark.parametrize("text", ["OSLO", "o s-l_o", "O.s,l/o*^"])
def test_case_spaces_and_some_signs_do_not_count_in_text(text: str) -> None:
    assert fit({}, place=text) and not fit({}, place=f"{text}!")


def test_quotes_of_both_kinds_are_one() -> None:
    assert fit({"source": ["it's"]}, source='it"s')


@pytest.mark.parametrize(
    ("name", "choices", "right", "wrong"),
    [
        ("days", [1], [1], [True, 1.0, "1", 2, None, [1]]),
        ("height", [2.0, 0.5], [2.0, 2, 0.5], ["2", 3, True]),
        ("hourly", [True], [True], [False, 1, "true"]),
        ("fields", [["rain", "Snow"], ["fog"]], [["Rain", "snow"], ["fog"]], [["snow", "rain"], ["rain"], "rain", []]),
        ("box", [[1.0, 2.5]], [[1.0, 2.5], [1, 2.5]], [[2.5, 1.0], [1.0], ["1.0", "2.5"]]),
        ("at", [{"city": ["Oslo", "OSL"], "zone": [1, ""]}], [{"city": "oslo", "zone": 1}, {"city": "osl"}],
         [{"zone": 1}, {"city": "Oslo", "zone": 2}, {"city": "Oslo", "more": 1}, "Oslo", {}]),
        ("stops", [[{"city": ["A"]}, {"city": ["B"]}]], [[{"city": "a"}, {"city": "b"}]],
         [[{"city": "b"}, {"city": "a"}], [{"city": "a"}], [{"city": "a"}, {"city": "b"}, {"city": "b"}], []]),
        ("days", ["num_days"], ["num_days"], ["NUM_DAYS", 3]),  # the name of a variable stands for a value
        ("place", [None, "Oslo"], [None, "Oslo"], ["oslo", ""]),  # a null before it: then text is compared exactly
    ],
)  # fmt: skip
def test_the_comparison_depends_on_the_type(name: str, choices: list[Any], right: list[Any], wrong: list[Any]) -> None:
    for value in right:
        assert fit({name: choices}, **{name: value}), value
    for value in wrong:
        assert not fit({name: choices}, **{name: value}), value


def test_required_arguments_must_be_given_even_if_the_answer_makes_them_optional() -> None:
    schema: dict[str, Any] = {"properties": {"place": {"type": "string"}}, "required": ["place"]}
    assert arguments_match({"place": "Oslo"}, {"place": ["Oslo", ""]}, schema) and not arguments_match(
        {}, {"place": ["Oslo", ""]}, schema
    )
    assert arguments_match({}, {"place": ["Oslo", ""]}, {**schema, "required": []})


def test_an_unexpected_argument_is_wrong_even_if_the_schema_has_it() -> None:
    assert not fit({}, days=3) and not fit({"colour": ["red"]}, colour="red")


def test_calls_may_come_in_any_order_and_each_counts_once() -> None:
    # the first allows both places, so whoever takes the first that fits may leave none for the second
    answer = [{"weather.get": {"place": ["Oslo", "Rome"]}}, {"weather.get": {"place": ["Oslo"]}}, {"clock": {}}]
    calls = [("weather.get", {"place": "Oslo"}), ("weather.get", {"place": "Rome"}), ("clock", {})]
    for order in itertools.permutations(calls):
        assert score(answer, *order) == 1.0
    assert score(answer, calls[1], calls[1], calls[2]) == 0.0
    assert score(answer, *calls[:2]) == 0.0 and score(answer, *calls, calls[2]) == 0.0


def test_where_nothing_is_to_be_called_silence_is_right_and_a_broken_call_is_not() -> None:
    assert said(task([]), "I cannot tell.").reward == 1.0
    assert score([], ("clock", {})) == 0.0
    for broken in ("<tool_call>clock", format_call(ToolCall("sundial", {}))):
        found = said(task([]), broken, format_penalty=0.25)
        assert found.reward == -0.25 and found.metrics["tools/faults"] == 1
    assert found.metrics["tools/faults/unknown_tool"] == 1


def test_the_policy_sees_json_types() -> None:
    weather, clock = FunctionCalling(task([])).tools
    about = weather.parameters["properties"]
    assert weather.parameters["type"] == clock.parameters["type"] == "object" and weather.name == "weather.get"
    assert about["height"]["type"] == "number" and "type" not in about["source"]
    assert about["box"] == {"type": "array", "items": {"type": "number"}}
    assert about["stops"]["items"]["type"] == about["at"]["type"] == "object"
    assert WEATHER["parameters"]["type"] == "dict", "the row is as it was"


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (task([], tools=None), "task 't': 'tools' is not a list of functions (got None); give their schemas"),
        (task([], tools=[{"description": "?"}]), "tools: a function without a name"),
        (task("clock()"), "task 't': 'answer' is not a list of calls (got 'clock()')"),
        (task([{"clock": {}, "weather.get": {}}]), "task 't': 'answer': not one function and its arguments"),
        (task([{"sundial": {}}]), "task 't': 'answer': 'sundial' is none of its 'tools'; add it there"),
        (task([{"clock": {"zone": 3}}]), "task 't': 'answer': 'clock' needs a list of values by argument"),
        (task([], messages=()), "task 't': no 'messages'"),
    ],
)
def test_an_unusable_row_is_reported_by_id_and_field(broken: Task, says: str) -> None:
    assert says in asyncio.run(unusable_reason(Spec("function_calling"), broken))


# Over the real rows.

needs_data = pytest.mark.skipif(not DATA, reason="ROLL_DATA names no folder with tool_use/bfcl_train.jsonl.gz")


@functools.cache
def rows() -> list[Task]:
    return jsonl(str(Path(DATA or "") / "tool_use" / "bfcl_train.jsonl.gz"))


def one_of(choices: Any, draws: random.Random) -> Any:
    """A value that is allowed, dicts of choices resolved to one of each."""
    value = draws.choice([choice for choice in choices if choice != ""] or [""])
    return resolved(value, draws)


def resolved(value: Any, draws: random.Random) -> Any:
    if isinstance(value, dict):
        return {key: one_of(choices, draws) for key, choices in value.items()}
    return (
        [resolved(each, draws) if isinstance(each, dict) else each for each in value]
        if isinstance(value, list)
        else value
    )


def gold(row: Task, draws: random.Random, *, sparse: bool) -> list[ToolCall]:
    """Calls as they are wanted; `sparse` leaves out what may be."""
    schemas = {tool["name"]: tool["parameters"] for tool in row.metadata["tools"]}
    found: list[ToolCall] = []
    for entry in row.answer:
        ((name, arguments),) = entry.items()
        known, needed = schemas[name].get("properties", {}), schemas[name].get("required", ())
        given = {
            key: one_of(choices, draws)
            for key, choices in arguments.items()
            if key in known and choices != [""] and (key in needed or not (sparse and "" in choices))
        }
        found.append(ToolCall(name, given))
    return found


def changed(value: Any) -> Iterator[Any]:
    """The same with something else in one place: never what anybody wants."""
    if isinstance(value, bool):
        yield not value
        yield str(value)
    elif isinstance(value, str):
        yield f"{value} zqx"
        yield [value, "zqx"]
    elif isinstance(value, int | float):
        yield value + 7919
        yield f"{value} zqx"
    elif isinstance(value, list):
        yield [*value, "zqx"]
        yield from ([*value[:-1], each] for each in (changed(value[-1]) if value else ()))
    elif isinstance(value, dict):
        yield {**value, "zqx": 1}
        for key in value:
            yield from ({**value, key: each} for each in changed(value[key]))
    else:
        yield "zqx"


async def reward(row: Task, calls: list[ToolCall]) -> float:
    """Through the environment's own reading of a reply."""
    text = "\n".join(format_call(call) for call in calls) or "There is nothing to call."
    return (await FunctionCalling(row).step(text)).reward


@needs_data
@pytest.mark.slow
def test_gold_calls_of_every_row_are_right_with_any_choice_and_order() -> None:
    draws, tasks = random.Random(0), rows()
    assert len(tasks) == 1198 and sum(not task.answer for task in tasks) == 192

    async def check() -> None:
        for row in tasks:
            for sparse in (False, True):
                calls = gold(row, draws, sparse=sparse)
                draws.shuffle(calls)
                assert await reward(row, calls) == 1.0, (row.id, calls)

    asyncio.run(check())


def changes(row: Task, calls: list[ToolCall]) -> Iterator[list[ToolCall]]:
    """The calls with one argument changed, each of them in every way, or with one that nobody wants."""
    for place, call in enumerate(calls):
        yield [*calls[:place], ToolCall(call.name, {**call.arguments, "zqx": 1}), *calls[place + 1 :]]
        for key, value in call.arguments.items():
            for other in changed(value):
                if isinstance(other, bool) and other in row.answer[place][call.name][key]:
                    continue  # both answers of a yes or no may be allowed
                swapped = ToolCall(call.name, {**call.arguments, key: other})
                yield [*calls[:place], swapped, *calls[place + 1 :]]


@needs_data
@pytest.mark.slow
def test_one_argument_that_is_changed_makes_every_row_wrong_whichever_it_is_and_however() -> None:
    draws = random.Random(1)

    async def check() -> int:
        num_tried = 0
        for row in rows():
            calls = list(changes(row, gold(row, draws, sparse=False)))
            for swapped in calls:
                assert await reward(row, swapped) == 0.0, (row.id, swapped)
            num_tried += len(calls)
            assert calls or not row.answer, row.id
        return num_tried

    assert asyncio.run(check()) > 10_000


@needs_data
@pytest.mark.slow
def test_no_call_an_extra_one_or_one_left_out_is_wrong_in_every_row() -> None:
    draws = random.Random(2)

    async def check() -> None:
        for row in rows():
            calls = gold(row, draws, sparse=False)
            some = ToolCall(row.metadata["tools"][0]["name"], {})
            assert await reward(row, [*calls, some]) == 0.0, row.id
            assert await reward(row, [*calls[1:], ToolCall("zqx", {})]) == 0.0, row.id
            if row.answer:
                assert await reward(row, []) == await reward(row, calls[1:]) == 0.0, row.id

    asyncio.run(check())


@needs_data
def test_every_row_can_be_shown_to_a_policy_as_json() -> None:
    for row in rows():
        told = json.dumps([tool.schema for tool in FunctionCalling(row).tools])
        assert not any(f'"type": "{kind}"' in told for kind in ("dict", "float", "tuple", "any")), row.id
