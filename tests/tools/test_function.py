"""A custom function as a tool."""

import asyncio
import threading
from typing import Annotated, Any, Literal

import pytest

from roll.errors import ConfigError
from roll.tools.function import FunctionTool, tool_from_function


def rate(
    currency: Annotated[str, "three letters"],
    years: list[int],
    *,
    kind: Literal["mid", "high"] = "mid",
    digits: int | None = None,
    table: dict[str, float] | None = None,
) -> dict[str, Any]:
    """What one euro cost.

    In another currency.
    """
    return {"currency": currency, "years": years, "kind": kind, "table": table}


async def later(word: str, loud: bool = False, share: float = 0.5) -> str:
    """Says it."""
    await asyncio.sleep(0)
    return word.upper() if loud else word


def test_hints_and_docstring_become_the_schema() -> None:
    tool = tool_from_function(rate, {"table": {"USD": 1.1}})
    assert (tool.name, tool.description) == ("rate", "What one euro cost.\n\nIn another currency.")
    assert tool.parameters == {
        "type": "object",
        "properties": {
            "currency": {"type": "string", "description": "three letters"},
            "years": {"type": "array", "items": {"type": "integer"}},
            "kind": {"type": "string", "enum": ["mid", "high"]},
            "digits": {"type": "integer"},
        },
        "required": ["currency", "years"],
    }
    plain = tool_from_function(later, {}).parameters["properties"]
    assert plain == {"word": {"type": "string"}, "loud": {"type": "boolean"}, "share": {"type": "number"}}


def test_it_is_called_with_the_arguments_of_the_policy_and_the_file() -> None:
    tool = FunctionTool(rate, {"table": {"USD": 1.5}})
    given = {"currency": "USD", "years": [1999], "table": {"USD": 0.0}}  # which the reader would refuse
    said = asyncio.run(tool.call("rate", given))
    assert said == '{"currency": "USD", "years": [1999], "kind": "mid", "table": {"USD": 1.5}}'
    assert asyncio.run(FunctionTool(later, {"loud": True}).call("later", {"word": "so"})) == "SO"


def test_its_exception_is_raised_even_if_no_future_can_hold_it() -> None:
    def fails(how: str) -> str:
        raise {"stop": StopIteration, "exit": SystemExit, "key": KeyError}[how](how)

    tool = FunctionTool(fails, {})
    for how, error in (("stop", RuntimeError), ("exit", RuntimeError), ("key", KeyError)):
        with pytest.raises(error):
            asyncio.run(tool.call("fails", {"how": how}))


def test_a_call_that_hangs_can_be_abandoned() -> None:
    released = threading.Event()

    def hangs() -> str:
        released.wait(30)
        return "late"

    async def use() -> None:
        async with asyncio.timeout(0.05):
            await FunctionTool(hangs, {}).call("hangs", {})

    with pytest.raises(TimeoutError):
        asyncio.run(use())
    released.set()


def unhinted(word) -> str:  # pyright: ignore
    return word


def starred(*words: str) -> str:
    return " ".join(words)


def strange(when: complex) -> str:
    return str(when)


@pytest.mark.parametrize(
    ("function", "given", "says"),
    [
        (unhinted, {}, "tool 'unhinted': 'word' has no type; give it one of str, int"),
        (starred, {}, "tool 'starred': 'words' cannot be given by name"),
        (strange, {}, "tool 'strange': 'when' has <class 'complex'>; give it one of"),
        (later, {"volume": 3}, "tool 'later': takes no 'volume'; leave it out"),
        (3, {}, "not a function; name one, or a class of tools"),
    ],
)
def test_a_function_with_insufficient_hints_is_rejected(function: Any, given: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        FunctionTool(function, given)
    assert says in str(caught.value)
