"""What validation found, in the words of the file it was found in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from roll.config.document import COMMAND_LINE, Document, Fault
from roll.config.knobs import choice_at, knobs, section_at, sections_at
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


def note(document: Document, error: ValidationError) -> None:
    """Add what validation found to the document's faults, except where a key is already at fault."""
    known = [fault.key for fault in document.faults]
    for found in _told_once([_without_choice(found) for found in error.errors(include_url=False)]):
        key = ".".join(str(part) for part in found["loc"])
        if any(key == bad or key.startswith(f"{bad}.") for bad in known) or _consequence(found):
            continue
        document.faults.append(_fault(document, key, found))


def raise_all(faults: list[Fault]) -> None:
    """Raise one ConfigError with a line for each fault, in the order of the file; do nothing if there is none."""
    if faults:
        raise ConfigError("\n".join(str(fault) for fault in sorted(faults, key=_order)))


def _without_choice(found: ErrorDetails) -> ErrorDetails:
    """An error in a section that is one of several by its `backend`, as if it were the only one."""
    key = tuple(part for part in found["loc"] if not str(part).startswith("<"))
    if found["type"] != "union_tag_invalid":
        return {**found, "loc": key}
    context = found.get("ctx", {})
    known = str(context["expected_tags"]).replace("<", "").replace(">", "")
    given = str(context["tag"]).strip("<>")
    return {**found, "loc": (*key, "backend"), "type": "choice", "msg": f"must be one of {known}", "input": given}


def _told_once(errors: list[ErrorDetails]) -> Iterator[ErrorDetails]:
    """The errors, those of a key that takes several types of value as one, and not type by type."""
    choices: dict[tuple[int | str, ...], list[ErrorDetails]] = {}
    for found in errors:
        if choice_at([str(part) for part in found["loc"][:-1]]):
            choices.setdefault(found["loc"][:-1], []).append(found)
        else:
            yield found
    for key, several in choices.items():
        first, *others = dict.fromkeys(_expected(found) for found in several)
        alternatives = ", or ".join([first, *(other.removeprefix("must be ") for other in others)])
        yield {**several[0], "loc": key, "type": "choice", "msg": alternatives}


def _consequence(found: ErrorDetails) -> bool:
    """Whether this is said only because entries of a list were at fault themselves."""
    if found["type"] != "too_short" or not isinstance(found["input"], list):
        return False
    return len(cast("list[Any]", found["input"])) >= found.get("ctx", {})["min_length"]


def _fault(document: Document, key: str, found: ErrorDetails) -> Fault:
    match found["type"]:
        case "extra_forbidden":
            return Fault(key, document.place(key), f"unknown key {key!r}{_nearest(key)}")
        case "missing":
            return Fault(key, document.place(key.rpartition(".")[0]), f"missing key {key!r}; add it{_purpose(key)}")
        case "value_error":
            text = found["msg"].removeprefix("Value error, ")
            return Fault(key, document.place(key or _subject(text)), f"{key}: {text}" if key else text)
        case _:
            return Fault(
                key, document.place(key), f"{key}: {_expected(found)} (got {_got(found['input'])}){_advice(found)}"
            )


def _nearest(key: str) -> str:
    """The tail of an error about an unknown key: a sibling that reads alike, or the same name in another section."""
    above, _, name = key.rpartition(".")
    sections = sections_at(above.split(".") if above else [])
    siblings = {sibling for section in sections for sibling in section.model_fields}
    if name in siblings:
        return "; only another backend has it"
    tail = did_you_mean(name, siblings)
    elsewhere = [knob.key for knob in knobs() if knob.key.rpartition(".")[2] == name]
    return f"; did you mean {elsewhere[0]!r}?" if elsewhere and "did you mean" not in tail else tail


def _purpose(key: str) -> str:
    """What a missing key is for, in the schema's own words."""
    above, _, name = key.rpartition(".")
    section = section_at(above.split(".") if above else [])
    info = section.model_fields.get(name) if section is not None else None
    said = info.description if info is not None else None
    inner = section_at(key.split("."))
    said = said or (inner.__doc__ if inner is not None else None)
    return f" ({said.splitlines()[0].rstrip('.')})" if said else ""


def _subject(text: str) -> str:
    """The key that a fault of the whole file begins with, if it does."""
    first = re.match(r"[\w.]+", text)
    return first[0] if first and first[0].partition(".")[0] in Run.model_fields else ""


def _expected(found: ErrorDetails) -> str:
    if found["type"] in _EXPECTED:
        return _EXPECTED[found["type"]]
    context = found.get("ctx", {})
    if found["type"] == "too_short":
        return f"must have at least {context['min_length']} entry"
    if found["type"] == "too_long":
        return f"must have at most {context['max_length']} entries"
    if found["type"] == "string_pattern_mismatch":
        return f"must match {context['pattern']}"
    return found["msg"].replace("Input should be", "must be")


def _advice(found: ErrorDetails) -> str:
    quotes = found["type"] == "string_type" and not isinstance(found["input"], dict | list | None)
    return "; put quotes around it" if quotes else ""


def _got(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a section"
    spelled = str(value).lower() if isinstance(value, bool) else repr(value)
    return spelled if len(spelled) <= 60 else f"{spelled[:57]}..."


def _order(fault: Fault) -> tuple[bool, int]:
    """The file from top to bottom, then the command line."""
    line = fault.place.rpartition(":")[2]
    return fault.place == COMMAND_LINE, int(line) if line.isdecimal() else 0
