"""Calls of user-defined formulas: an exception in one ends the run with a line that names its source."""

from __future__ import annotations

import inspect
import traceback
from typing import Any

import torch

from roll.device_failure import DEVICE_ERRORS
from roll.errors import ConfigError, RollError, describe_error, source_of
from roll.registry import Table
from roll.types import Spec

_PROVIDED_BY = {
    "old_logprobs": "old_logprobs",
    "entropies": "entropies",
    "ref_logprobs": "reference",
    "teacher_logprobs": "teacher",
    "values": "critic",
    "old_values": "critic",
    "returns": "critic",
    "turn_states": "states",
}
"""Rows that may be None, each with the entry of `algorithm.needs` that provides it."""


def call(table: Table[Any], part: Spec, *args: Any) -> Any:
    """The result of the named function; raises `ConfigError` where a user-defined one raises."""
    if ":" not in part.name:
        return table[part.name](*args, **part.kwargs)  # an exception in one of ours is a bug
    function: Any = None
    try:
        function = table[part.name]
        return function(*args, **part.kwargs)
    except (RollError, *DEVICE_ERRORS):
        raise
    except (Exception, SystemExit) as error:
        source = source_of(function)
        fix = _missing_need(error, source, args) or "fix its code"
        raise ConfigError(f"{table.kind} {part.name!r}: {describe_error(error, source)}; {fix}") from error


def location_of(table: Table[Any], part: Spec) -> str:
    """Definition of a user-defined function, as the end of an error message; empty for ours."""
    code = getattr(inspect.unwrap(table[part.name]), "__code__", None)
    return f" ({code.co_filename}:{code.co_firstlineno})" if code is not None and ":" in part.name else ""


def check_shape(table: Table[Any], part: Spec, result: Any, like: torch.Tensor, *, per: str) -> torch.Tensor:
    """The result of the named function; raises `ConfigError` unless it has one value per entry of `like`."""
    if not isinstance(result, torch.Tensor) or result.shape != like.shape:
        got = tuple(result.shape) if isinstance(result, torch.Tensor) else type(result).__name__
        raise ConfigError(
            f"{table.kind} {part.name!r}: must return one value per {per}, shape {tuple(like.shape)} (got {got}); "
            f"fix its code{location_of(table, part)}"
        )
    return result


def _missing_need(error: BaseException, source: str | None, args: tuple[Any, ...]) -> str:
    """The need to add, if an error about None comes from user code that reads a row that is None."""
    about_none = isinstance(error, TypeError | AttributeError) and "None" in str(error)
    if not about_none and not isinstance(error, AssertionError):
        return ""
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == source]
    for name, need in _PROVIDED_BY.items():
        missing = any(getattr(arg, name, ...) is None for arg in args)
        if missing and any(name in code.co_names for code in codes):
            return f"{name} is None unless algorithm.needs has {need!r}: add it there"
    return ""
