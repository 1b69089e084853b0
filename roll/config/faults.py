"""Validation errors in terms of the file: key, location, cause and advice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from roll.config.document import COMMAND_LINE, Document, Fault
from roll.config.knobs import choice_at, knobs, section_at, sections_at
from roll.config.renamed import new_name
from roll.config.schema import Run
from roll.errors import ConfigError, did_you_mean

_EXPECTED = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be text",
    "bool_type": "must be true or false",
    "tuple_type": "must be a list",
    "model_type": "must be a section of keys and values",
    "dict_type": "must be a section of keys and values",
    "string_too_short": "must not be empty",
}


def add_faults(document: Document, error: ValidationError) -> None:
    """Add validation errors to the document's faults, except for keys that have a fault already."""
    known = [fault.key for fault in document.faults]
    errors = list(_merge_choices([_without_choice(each) for each in error.errors(include_url=False)]))
    renamed = {new_name(_key(each)) for each in errors if each["type"] == "extra_forbidden"}
    for each in errors:
        key = _key(each)
        at_fault = any(key == bad or key.startswith(f"{bad}.") for bad in known)
        if at_fault or _is_consequence(each) or (each["type"] == "missing" and key in renamed):
            continue
        document.faults.append(_fault(document, key, each))


def raise_all(faults: list[Fault]) -> None:
    """Raise one ConfigError with one line per fault, in the order of the file; return if there is none."""
    if faults:
        raise ConfigError("\n".join(str(fault) for fault in sorted(faults, key=_order)))


def _key(error: ErrorDetails) -> str:
    return ".".join(str(part) for part in error["loc"])


def _without_choice(error: ErrorDetails) -> ErrorDetails:
    """The error without the part of its location that tells which backend's section was validated."""
    key = tuple(part for part in error["loc"] if not str(part).startswith("<"))
    if error["type"] != "union_tag_invalid":
        return {**error, "loc": key}
    context = error.get("ctx", {})
    known = str(context["expected_tags"]).replace("<", "").replace(">", "")
    backend = str(context["tag"]).strip("<>")
    return {**error, "loc": (*key, "backend"), "type": "choice", "msg": f"must be one of {known}", "input": backend}


def _merge_choices(errors: list[ErrorDetails]) -> Iterator[ErrorDetails]:
    """The errors, with those of a key that accepts several types of value merged into one."""
    choices: dict[tuple[int | str, ...], list[ErrorDetails]] = {}
    for error in errors:
        if choice_at([str(part) for part in error["loc"][:-1]]):
            choices.setdefault(error["loc"][:-1], []).append(error)
        else:
            yield error
    for key, several in choices.items():
        first, *others = dict.fromkeys(_expected(error) for error in several)
        alternatives = ", or ".join([first, *(other.removeprefix("must be ") for other in others)])
        yield {**several[0], "loc": key, "type": "choice", "msg": alternatives}


def _is_consequence(error: ErrorDetails) -> bool:
    """Whether a list is too short only because some of its entries are invalid."""
    if error["type"] != "too_short" or not isinstance(error["input"], list):
        return False
    return len(cast("list[Any]", error["input"])) >= error.get("ctx", {})["min_length"]


def _fault(document: Document, key: str, error: ErrorDetails) -> Fault:
    match error["type"]:
        case "extra_forbidden":
            return Fault(key, document.where(key), f"unknown key {key!r}{_nearest(key)}")
        case "missing":
            return Fault(key, document.where(key.rpartition(".")[0]), f"missing key {key!r}; add it{_purpose(key)}")
        case "value_error":
            text = error["msg"].removeprefix("Value error, ")
            return Fault(key, document.where(key or _subject(text)), f"{key}: {text}" if key else text)
        case _:
            text = f"{key}: {_expected(error)} (got {_describe(error['input'])}){_advice(error)}"
            return Fault(key, document.where(key), text)


def _nearest(key: str) -> str:
    """Advice about an unknown key: its new name, a similar sibling, or the same name in another section."""
    if (new := new_name(key)) is not None:
        return f"; it is now {new!r}"
    above, _, name = key.rpartition(".")
    sections = sections_at(above.split(".") if above else [])
    siblings = {sibling for section in sections for sibling in section.model_fields}
    if name in siblings:
        return "; only another backend has it"
    tail = did_you_mean(name, siblings)
    elsewhere = [knob.key for knob in knobs() if knob.key.rpartition(".")[2] == name]
    return f"; did you mean {elsewhere[0]!r}?" if elsewhere and "did you mean" not in tail else tail


def _purpose(key: str) -> str:
    """Purpose of a missing key, from the docstring of the schema."""
    above, _, name = key.rpartition(".")
    section = section_at(above.split(".") if above else [])
    info = section.model_fields.get(name) if section is not None else None
    inner = section_at(key.split("."))
    text = (info.description if info is not None else None) or (inner.__doc__ if inner is not None else None)
    return f" ({text.splitlines()[0].rstrip('.')})" if text else ""


def _subject(text: str) -> str:
    """The key that a message about the whole file begins with; empty if it begins with none."""
    first = re.match(r"[\w.]+", text)
    return first[0] if first and first[0].partition(".")[0] in Run.model_fields else ""


def _expected(error: ErrorDetails) -> str:
    if error["type"] in _EXPECTED:
        return _EXPECTED[error["type"]]
    context = error.get("ctx", {})
    if error["type"] == "too_short":
        return f"must have at least {context['min_length']} entry"
    if error["type"] == "too_long":
        return f"must have at most {context['max_length']} entries"
    if error["type"] == "string_pattern_mismatch":
        return f"must match {context['pattern']}"
    return error["msg"].replace("Input should be", "must be")


def _advice(error: ErrorDetails) -> str:
    quotes = error["type"] == "string_type" and not isinstance(error["input"], dict | list | None)
    return "; put quotes around it" if quotes else ""


def _describe(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a section"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _order(fault: Fault) -> tuple[bool, int]:
    """Sort key: the file from top to bottom, then the command line."""
    line = fault.where.rpartition(":")[2]
    return fault.where == COMMAND_LINE, int(line) if line.isdecimal() else 0
