"""Which keys there are: the schema read as a list of dotted names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from roll.config.schema import Named, Run, Section


@dataclass(frozen=True, slots=True)
class Knob:
    """One key that a file may set; `N` stands for any entry of a list."""

    key: str
    type: str
    default: str


def knobs(section: type[Section] = Run, above: str = "") -> Iterator[Knob]:
    """Every knob below `section`, in the order of the schema."""
    for name, info in section.model_fields.items():
        key = f"{above}.{name}" if above else name
        inner, many = _section_of(info.annotation)
        default = "required" if info.is_required() else _spelled(info)
        yield Knob(key, _type_name(info.annotation), default)
        if inner is not None and inner is not Named:
            yield from knobs(inner, f"{key}.N" if many else key)


def section_at(parts: Sequence[str]) -> type[Section] | None:
    """The section that a dotted key leads to; None where it leads to a plain value or nowhere."""
    section: type[Section] | None = Run
    many = False
    for part in parts:
        if many:
            many = False  # this part counts the entries of a list
            continue
        info = section.model_fields.get(part) if section is not None else None
        if info is None:
            return None
        section, many = _section_of(info.annotation)
    return None if many else section


def _section_of(annotation: Any) -> tuple[type[Section] | None, bool]:
    """The section inside an annotation, and whether there may be several of it."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation, False
    for argument in get_args(annotation):
        inner, many = _section_of(argument)
        if inner is not None:
            return inner, many or get_origin(annotation) is tuple
    return None, False


def _spelled(info: FieldInfo) -> str:
    """The default; of a section, only what it sets apart from its own defaults."""
    if not isinstance(info.default, Section):
        return repr(info.default)
    apart = ", ".join(f"{name}={getattr(info.default, name)!r}" for name in sorted(info.default.model_fields_set))
    return f"{type(info.default).__name__}({apart})"


def _type_name(annotation: Any) -> str:
    if annotation is NoneType:
        return "none"
    if get_origin(annotation) in (Union, UnionType):
        return " | ".join(_type_name(argument) for argument in get_args(annotation))
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__name__
    return str(annotation).replace("typing.", "").replace(f"{Run.__module__}.", "")
