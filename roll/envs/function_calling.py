"""Function calling: one question, some functions, and one response with the right calls.

Rows have the format of the Berkeley function calling leaderboard (BFCL): `messages`, `tools` and `answer`, a list of
`{function: {argument: [allowed values]}}`, empty if no call is right. `roll.envs.function_match` has the matching
rules. No function is executed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from roll.data.tools import ParsedResponse, Tool, parse_response, parse_tools
from roll.envs.base import StepResult
from roll.envs.function_match import Allowed, calls_match
from roll.envs.turn_recorder import TurnRecorder
from roll.errors import ConfigError
from roll.tools.base import ToolUsage
from roll.types import Message, Task

_JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
"""JSON schema names of types that BFCL names differently; `any` has none."""


@dataclass(eq=False)
class FunctionCalling:
    """Asks the task's question and ends with the first response: reward 1 if its calls match the answer, else 0.

    If no call is expected, a response without calls is right, and a malformed call is wrong.
    """

    task: Task
    format_penalty: float = 0.0
    """Subtracted for a malformed call."""

    def __post_init__(self) -> None:
        self._usage = ToolUsage()
        self._recorder = TurnRecorder("function_calling", 1, self.format_penalty, usage=self._usage)
        where = f"task {self.task.id!r}"
        if not self.task.messages:
            raise ConfigError(f"{where}: no 'messages'; function_calling opens with them")
        tools = _parse_functions(self.task.metadata.get("tools"), where)
        self._schemas = {tool.name: tool.parameters for tool in tools}
        self._expected = _parse_answer(self.task.answer, self._schemas, where)
        self.tools = tuple(
            Tool(tool.name, tool.description, cast(dict[str, Any], _as_json_schema(tool.parameters)), strict=False)
            for tool in tools
        )

    async def start(self) -> tuple[Message, ...]:
        return self.task.messages

    async def step(self, response: str) -> StepResult:
        return await self.call(parse_response(response, self.tools))

    async def call(self, response: ParsedResponse) -> StepResult:
        self._recorder.check_open()
        valid, effective = response.fault is None, bool(response.calls)
        right = valid and calls_match(response.calls, self._expected, self._schemas)
        self._usage.count(len(response.calls), [] if response.fault is None else [response.fault])
        return self._recorder.record([], "", valid=valid, effective=effective, reward=float(right))

    async def close(self) -> None:
        self._recorder.done = True


def _parse_functions(functions: Any, where: str) -> tuple[Tool, ...]:
    """The functions, with their schemas as the row has them."""
    if not isinstance(functions, list) or not functions:
        raise ConfigError(f"{where}: 'tools' is not a list of functions (got {functions!r}); give their schemas")
    tools = parse_tools(cast(list[Any], functions))
    for tool in tools:
        if not isinstance(tool.parameters.get("properties", {}), Mapping):
            raise ConfigError(f"{where}: 'tools': {tool.name!r} has no parameters by name; give it 'properties'")
    return tools


def _parse_answer(answer: Any, schemas: Mapping[str, Any], where: str) -> list[tuple[str, Allowed]]:
    if not isinstance(answer, list):
        raise ConfigError(f"{where}: 'answer' is not a list of calls (got {answer!r}); give [{{function: arguments}}]")
    expected: list[tuple[str, Allowed]] = []
    for entry in cast(list[Any], answer):
        if not isinstance(entry, dict) or len(cast(dict[str, Any], entry)) != 1:
            raise ConfigError(f"{where}: 'answer': not one function and its arguments (got {entry!r}); write it so")
        ((name, allowed),) = cast(dict[str, Any], entry).items()
        if name not in schemas:
            raise ConfigError(f"{where}: 'answer': {name!r} is none of its 'tools'; add it there")
        if not isinstance(allowed, dict) or not all(isinstance(each, list) for each in allowed.values()):  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
            raise ConfigError(f"{where}: 'answer': {name!r} needs a list of values by argument (got {allowed!r})")
        expected.append((name, cast(Allowed, allowed)))
    return expected


def _as_json_schema(schema: Any) -> Any:
    """The schema with types that JSON schema has."""
    if not isinstance(schema, Mapping):
        return schema
    converted = dict(cast(Mapping[str, Any], schema))
    kind = converted.get("type")
    if kind == "any":
        del converted["type"]
    elif isinstance(kind, str):
        converted["type"] = _JSON_TYPES.get(kind, kind)
    if isinstance(converted.get("properties"), Mapping):
        converted["properties"] = {name: _as_json_schema(each) for name, each in converted["properties"].items()}
    if "items" in converted:
        converted["items"] = _as_json_schema(converted["items"])
    return converted
