"""A Python function as a tool: its type hints and docstring become the schema.

    def exchange_rate(currency: Annotated[str, "three letters"], year: int = 2024) -> float:
        "What one euro cost in a year, in another currency."

| hint | schema |
|---|---|
| `str`, `int`, `float`, `bool`, `dict` | string, integer, number, boolean, object |
| `list[X]`, `tuple[X, ...]` | an array of X |
| `Literal["a", "b"]` | one of these |
| `X \\| None` | X |
| `Annotated[X, "words"]` | X, with that description |

A parameter without a default is required. The policy neither sees nor sets parameters that the configuration gives. A
coroutine function is awaited; any other function runs in a thread. If it hangs, only its call fails, and the thread
is abandoned.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
import types
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from roll.data.tools import Tool
from roll.errors import ConfigError

_SIMPLE: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object"}


class FunctionTool:
    """A `ToolSet` with one tool; stateless unless the function has state."""

    def __init__(self, function: Callable[..., Any], fixed: Mapping[str, Any]) -> None:
        """`fixed` are the arguments from the configuration."""
        self._function, self._fixed = function, dict(fixed)
        self.tools = (tool_from_function(function, fixed),)

    async def start(self) -> None: ...

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        merged = {**arguments, **self._fixed}
        if inspect.iscoroutinefunction(self._function):
            return _to_text(await self._function(**merged))
        return _to_text(await _in_thread(lambda: self._function(**merged)))

    async def close(self) -> None: ...


def tool_from_function(function: Callable[..., Any], fixed: Mapping[str, Any]) -> Tool:
    """The function as a tool without its `fixed` parameters; ConfigError if its hints are insufficient."""
    name = getattr(function, "__name__", "")
    where = f"tool {name or function!r}"
    if not callable(function) or not name:
        raise ConfigError(f"{where}: not a function; name one, or a class of tools")
    hints = get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters
    for unknown in fixed.keys() - parameters.keys():
        raise ConfigError(f"{where}: takes no {unknown!r}; leave it out")
    properties: dict[str, Any] = {}
    for key, parameter in parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"{where}: {key!r} cannot be given by name; write it as a plain parameter")
        if key not in fixed:
            properties[key] = _schema(hints.get(key), f"{where}: {key!r}")
    required = [key for key in properties if parameters[key].default is inspect.Parameter.empty]
    schema = {"type": "object", "properties": properties, "required": required}
    return Tool(name, inspect.getdoc(function) or "", schema)


def _schema(hint: Any, where: str) -> dict[str, Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _SIMPLE or origin is dict:
        return {"type": _SIMPLE[origin or hint]}
    if origin is Annotated:
        words = [each for each in arguments[1:] if isinstance(each, str)]
        return {**_schema(arguments[0], where), **({"description": words[0]} if words else {})}
    if origin is Literal:
        return {"type": _SIMPLE.get(type(arguments[0]), "string"), "enum": list(arguments)}
    if origin in (Union, types.UnionType):
        rest = [each for each in arguments if each is not type(None)]
        if len(rest) == 1:
            return _schema(rest[0], where)
    if hint in (list, tuple) or origin in (list, tuple):
        return {"type": "array", **({"items": _schema(arguments[0], where)} if arguments else {})}
    got = "no type" if hint is None else repr(hint)
    raise ConfigError(f"{where} has {got}; give it one of str, int, float, bool, list, dict or Literal")


def _to_text(result: Any) -> str:
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(result)


async def _in_thread(work: Callable[[], Any]) -> Any:
    """The result or error of `work`, run in a daemon thread; a thread that hangs does not keep the process alive."""
    ended: Future[Any] = Future()
    ended.set_running_or_notify_cancel()  # so that it cannot be cancelled if the caller is

    def body() -> None:
        try:
            ended.set_result(work())
        except BaseException as error:  # noqa: BLE001 - passed on to the caller
            raisable = isinstance(error, Exception) and not isinstance(error, StopIteration)
            ended.set_exception(error if raisable else RuntimeError(repr(error)))

    threading.Thread(target=body, daemon=True).start()
    return await asyncio.wrap_future(ended)
