"""A function of one's own as a tool: its type hints and docstring become the schema.

    def exchange_rate(currency: Annotated[str, "three letters"], year: int = 2024) -> float:
        "What one euro cost in a year, in another currency."

| hint | schema |
|---|---|
| `str`, `int`, `float`, `bool`, `dict` | string, integer, number, boolean, object |
| `list[X]`, `tuple[X, ...]` | an array of X |
| `Literal["a", "b"]` | one of these |
| `X \\| None` | X |
| `Annotated[X, "words"]` | X, with that description |

A parameter without a default is required. One that the configuration gives is the run's own: the policy neither sees
nor sets it. A coroutine function is awaited; any other runs in a thread, so that one that hangs costs its call: it is
told so, and the thread is left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import threading
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from roll.data.tools import Tool
from roll.errors import ConfigError

_SIMPLE: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object"}


class FunctionTool:
    """A `ToolSet` with one tool, which keeps nothing between calls unless the function does."""

    def __init__(self, function: Callable[..., Any], given: Mapping[str, Any]) -> None:
        """`given` are the arguments that the configuration has for it."""
        self._function, self._given = function, dict(given)
        self.tools = (described(function, given),)

    async def start(self) -> None: ...

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        taken = {**arguments, **self._given}
        if inspect.iscoroutinefunction(self._function):
            return _written(await self._function(**taken))
        return _written(await _in_thread(lambda: self._function(**taken)))

    async def close(self) -> None: ...


def described(function: Callable[..., Any], given: Mapping[str, Any]) -> Tool:
    """The function as a tool without the parameters that are `given`; ConfigError where its hints do not say enough."""
    name = getattr(function, "__name__", "")
    place = f"tool {name or function!r}"
    if not callable(function) or not name:
        raise ConfigError(f"{place}: is no function; name one, or a class of tools")
    hints = get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters
    for unknown in given.keys() - parameters.keys():
        raise ConfigError(f"{place}: takes no {unknown!r}; leave it out")
    properties: dict[str, Any] = {}
    for key, parameter in parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"{place}: {key!r} cannot be given by name; write it as a plain parameter")
        if key not in given:
            properties[key] = _schema(hints.get(key), f"{place}: {key!r}")
    required = [key for key in properties if parameters[key].default is inspect.Parameter.empty]
    schema = {"type": "object", "properties": properties, "required": required}
    return Tool(name, inspect.getdoc(function) or "", schema)


def _schema(hint: Any, place: str) -> dict[str, Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _SIMPLE or origin is dict:
        return {"type": _SIMPLE[origin or hint]}
    if origin is Annotated:
        words = [each for each in arguments[1:] if isinstance(each, str)]
        return {**_schema(arguments[0], place), **({"description": words[0]} if words else {})}
    if origin is Literal:
        return {"type": _SIMPLE.get(type(arguments[0]), "string"), "enum": list(arguments)}
    if origin in (Union, types.UnionType):
        rest = [each for each in arguments if each is not type(None)]
        if len(rest) == 1:
            return _schema(rest[0], place)
    if hint in (list, tuple) or origin in (list, tuple):
        return {"type": "array", **({"items": _schema(arguments[0], place)} if arguments else {})}
    got = "no type" if hint is None else repr(hint)
    raise ConfigError(f"{place} has {got}; give it one of str, int, float, bool, list, dict or Literal")


def _written(result: Any) -> str:
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(result)


async def _in_thread(work: Callable[[], Any]) -> Any:
    """What work gives or raises. Its thread is nobody's to wait for: one that never ends keeps no process alive."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if ended.done():
            return  # nobody waits any more
        if error is None:
            ended.set_result(result)
        else:
            ended.set_exception(error if _plain(error) else RuntimeError(repr(error)))

    def body() -> None:
        result: Any = None
        failure: BaseException | None = None
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - handed over, whatever it is
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop may have ended meanwhile
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=body, daemon=True).start()
    return await ended


def _plain(error: BaseException) -> bool:
    """Whether a future may carry it."""
    return isinstance(error, Exception) and not isinstance(error, StopIteration)
