"""The border to formulas: one of the user's own that raises ends the run in a line that says where; ours just raise."""

from __future__ import annotations

import inspect
import traceback
from typing import Any

import torch

from roll.errors import ConfigError, RollError, described, source_of
from roll.registry import Table
from roll.types import Call

_SCORED_BY = {
    "old_logprobs": "old_logprobs",
    "ref_logprobs": "reference",
    "teacher_logprobs": "teacher",
    "values": "critic",
    "old_values": "critic",
    "returns": "critic",
    "turn_states": "states",
}
"""Rows that may be None, and what `algorithm.needs` has to name for them to be there."""


def asked(table: Table[Any], part: Call, *given: Any) -> Any:
    """What the named function returns; raises `ConfigError` where it is the user's own and raises."""
    if ":" not in part.name:
        return table[part.name](*given, **part.arguments)  # what ours raise is a bug
    function: Any = None
    try:
        function = table[part.name]
        return function(*given, **part.arguments)
    except (RollError, torch.OutOfMemoryError):
        raise
    except (Exception, SystemExit) as error:
        source = source_of(function)
        cure = _absent(error, source, given) or "fix its code"
        raise ConfigError(f"{table.kind} {part.name!r}: {described(error, source)}; {cure}") from error


def place_of(table: Table[Any], part: Call) -> str:
    """Where a function of the user's own begins, as the tail of an error; empty for ours."""
    code = getattr(inspect.unwrap(table[part.name]), "__code__", None)
    return f" ({code.co_filename}:{code.co_firstlineno})" if code is not None and ":" in part.name else ""


def _absent(error: BaseException, source: str | None, given: tuple[Any, ...]) -> str:
    """What to do where the function reads something that nothing in the run provides, if it can have stumbled there."""
    if not isinstance(error, TypeError | AttributeError) or "None" not in str(error):
        return ""
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    read = {name for code in codes if code.co_filename == source for name in code.co_names}
    for name, need in _SCORED_BY.items():
        if name in read and any(getattr(each, name, ...) is None for each in given):
            return f"{name} is None unless algorithm.needs has {need!r}: add it there"
    return ""
