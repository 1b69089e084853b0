"""Function calling: one question, some functions, and the calls that one reply has to make.

Rows are those of the Berkeley function calling leaderboard (BFCL): `messages`, `tools` and `answer`, a list of
`{function: {argument: [allowed values]}}`, empty where nothing is to be called. `roll.envs.function_match` has the
rules. Nothing is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from roll.data.tools import Spoken, Tool, declared, read
from roll.envs.actions import Tally
from roll.envs.arguments import check_number
from roll.envs.base import Reply
from roll.envs.function_match import Allowed, matched
from roll.errors import ConfigError
from roll.tools.usage import Usage
from roll.types import Message, Task

_JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
"""What JSON schema calls the types that BFCL has names of its own for; `any` has none."""


@dataclass(eq=False)
class FunctionCalling:
    """Asks the task's question and ends with the first reply: 1 if its calls are those that are wanted, else 0.

    Where nothing is wanted, a reply that calls nothing is right, and one that tries and fails is not.
    """

    task: Task
    format_penalty: float = 0.0
    """Taken off the reward of a reply that means to call something and cannot be read."""

    def __post_init__(self) -> None:
        check_number("function_calling: format_penalty", self.format_penalty, 0)
        place = f"task {self.task.id!r}"
        if not self.task.messages:
            raise ConfigError(f"{place}: no 'messages'; function_calling asks what they say")
        self._schemas = _schemas(self.task.metadata.get("tools"), place)
        self._wanted = _wanted(self.task.answer, self._schemas, place)
        self.tools = tuple(
            Tool(tool.name, tool.description, cast(dict[str, Any], _as_json_schema(tool.parameters)), strict=False)
            for tool in declared(self.task.metadata["tools"])
        )
        self._done = False

    async def start(self) -> tuple[Message, ...]:
        return self.task.messages

    async def step(self, reply: str) -> Reply:
        return await self.call(read(reply, self.tools))

    async def call(self, said: Spoken) -> Reply:
        """The score of one reply whose calls were read."""
        assert not self._done, "function_calling: stepped after done; an environment is single-use"
        self._done = True
        right = said.fault is None and matched(said.calls, self._wanted, self._schemas)
        tally, usage = Tally(), Usage()
        tally.add(valid=said.fault is None, effective=bool(said.calls))
        usage.count(len(said.calls), [] if said.fault is None else [said.fault])
        return Reply(
            reward=float(right) - (0.0 if said.fault is None else self.format_penalty),
            done=True,
            metrics={**tally.metrics(success=right), **usage.metrics()},
        )

    async def close(self) -> None:
        self._done = True


def _schemas(tools: Any, place: str) -> dict[str, Mapping[str, Any]]:
    """The parameters of each function, as the row has them."""
    if not isinstance(tools, list) or not tools:
        raise ConfigError(f"{place}: 'tools' is not a list of functions (got {tools!r}); give their schemas")
    found = {tool.name: tool.parameters for tool in declared(cast(list[Any], tools))}
    for name, schema in found.items():
        if not isinstance(schema.get("properties", {}), Mapping):
            raise ConfigError(f"{place}: 'tools': {name!r} has no parameters by name; give it 'properties'")
    return found


def _wanted(answer: Any, schemas: Mapping[str, Any], place: str) -> list[tuple[str, Allowed]]:
    if not isinstance(answer, list):
        raise ConfigError(f"{place}: 'answer' is not a list of calls (got {answer!r}); give [{{function: arguments}}]")
    found: list[tuple[str, Allowed]] = []
    for entry in cast(list[Any], answer):
        if not isinstance(entry, dict) or len(cast(dict[str, Any], entry)) != 1:
            raise ConfigError(f"{place}: 'answer': not one function and its arguments (got {entry!r}); write it so")
        ((name, allowed),) = cast(dict[str, Any], entry).items()
        if name not in schemas:
            raise ConfigError(f"{place}: 'answer': {name!r} is none of its 'tools'; add it there")
        if not isinstance(allowed, dict) or not all(isinstance(each, list) for each in allowed.values()):  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
            raise ConfigError(f"{place}: 'answer': {name!r} needs a list of values by argument (got {allowed!r})")
        found.append((name, cast(Allowed, allowed)))
    return found


def _as_json_schema(schema: Any) -> Any:
    """The same, with types that JSON schema has."""
    if not isinstance(schema, Mapping):
        return schema
    found = dict(cast(Mapping[str, Any], schema))
    kind = found.get("type")
    if kind == "any":
        del found["type"]
    elif isinstance(kind, str):
        found["type"] = _JSON_TYPES.get(kind, kind)
    if isinstance(found.get("properties"), Mapping):
        found["properties"] = {name: _as_json_schema(each) for name, each in found["properties"].items()}
    if "items" in found:
        found["items"] = _as_json_schema(found["items"])
    return found
