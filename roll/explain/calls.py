"""Functions that a file names, as text: the call with all arguments, and the docstring."""

from __future__ import annotations

from typing import Any

from roll.config.section import SpecConfig
from roll.registry import PARTS, Table


def describe(part: str, section: SpecConfig) -> str:
    """The call with its defaults, and the first paragraph of the docstring, read from source text.

    `part` is the key of the algorithm that names it. Only the call as written if the function cannot be found or does
    not take these arguments.
    """
    return describe_call(PARTS[part], section)


def describe_call(table: Table[Any], section: SpecConfig) -> str:
    """The same for a function of this table."""
    if table.faults(section.kind, section.kwargs):
        return format_call(section)
    signature = table.signature(section.kind)
    arguments = {**signature.defaults, **{name: repr(value) for name, value in section.kwargs.items()}}
    summary = signature.summary.replace("`", "").rstrip(".")
    return f"{_format(section.kind, arguments)}: {summary}" if summary else _format(section.kind, arguments)


def format_call(section: SpecConfig) -> str:
    """The call as written: name and arguments."""
    return _format(section.kind, {name: repr(value) for name, value in section.kwargs.items()})


def _format(name: str, arguments: dict[str, str]) -> str:
    text = ", ".join(f"{key}={value}" for key, value in arguments.items())
    return f"{name}({text})" if text else name


def count(number: int, noun: str) -> str:
    """Number and noun, in the plural unless the number is 1."""
    plural = f"{noun}es" if noun.endswith(("tch", "ss")) else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"
