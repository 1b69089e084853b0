"""All keys of the schema, as a list of dotted names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from roll.config.schema import Run
from roll.config.section import Section, SpecConfig


@dataclass(frozen=True, slots=True)
class Knob:
    """One key that a file may set; `N` is any index of a list."""

    key: str
    type: str
    default: str
    limits: str = field(default="", compare=False)
    """Bounds of its value, such as `> 0`."""
    doc: str = field(default="", compare=False)
    """Text below the field in the schema."""


def knobs(section: type[Section] = Run, above: str = "") -> Iterator[Knob]:
    """Every knob in `section` and the sections inside it, in the order of the schema."""
    for name, info in section.model_fields.items():
        key = f"{above}.{name}" if above else name
        inner, many = _sections_of(info.annotation)
        default = "required" if info.is_required() else _format_default(info)
        limits = _limits([*info.metadata, *_metadata(info.annotation)])
        yield Knob(key, _type_name(info.annotation), default, limits, info.description or "")
        below = [knob for each in inner if each is not SpecConfig for knob in knobs(each, f"{key}.N" if many else key)]
        yield from dict.fromkeys(below)  # a key that several backends share appears once


def section_at(parts: Sequence[str]) -> type[Section] | None:
    """The section of a dotted key, the first one if there is a choice; None for a plain value or an unknown key."""
    return next(iter(sections_at(parts)), None)


def sections_at(parts: Sequence[str]) -> tuple[type[Section], ...]:
    """The sections that a dotted key may have; empty for a plain value or an unknown key."""
    sections: tuple[type[Section], ...] = (Run,)
    many = False
    for part in parts:
        if many:
            many = False  # this part is an index of a list
            continue
        infos = [section.model_fields[part] for section in sections if part in section.model_fields]
        choices = [_sections_of(info.annotation) for info in infos]
        sections = tuple(dict.fromkeys(inner for inners, _ in choices for inner in inners))
        many = any(several for _, several in choices)
    return () if many else sections


def choice_at(parts: Sequence[str]) -> bool:
    """Whether a dotted key accepts plain values of several types."""
    section = section_at(parts[:-1]) if parts else None
    info = section.model_fields.get(parts[-1]) if section is not None else None
    if info is None or get_origin(info.annotation) not in (Union, UnionType) or _sections_of(info.annotation)[0]:
        return False
    return len([kind for kind in get_args(info.annotation) if kind is not NoneType]) > 1


def _sections_of(annotation: Any) -> tuple[tuple[type[Section], ...], bool]:
    """The alternative sections of an annotation, and whether it is a list of them."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return (annotation,), False
    arguments = [_sections_of(argument) for argument in get_args(annotation)]
    inner = tuple(dict.fromkeys(section for sections, _ in arguments for section in sections))
    return inner, bool(inner) and (get_origin(annotation) is tuple or any(many for _, many in arguments))


def _format_default(info: FieldInfo) -> str:
    """The default value; for a section, only the keys that differ from its own defaults."""
    if not isinstance(info.default, Section):
        return repr(info.default)
    changed = ", ".join(f"{name}={getattr(info.default, name)!r}" for name in sorted(info.default.model_fields_set))
    return f"{type(info.default).__name__}({changed})"


_LIMITS = {
    "gt": "> {:g}",
    "ge": ">= {:g}",
    "lt": "< {:g}",
    "le": "<= {:g}",
    "min_length": "length >= {:g}",
    "max_length": "length <= {:g}",
}


def _limits(metadata: Sequence[Any]) -> str:
    """The bounds in the metadata of a field, as text."""
    bounds = [(form, getattr(each, name, None)) for each in metadata for name, form in _LIMITS.items()]
    return ", ".join(form.format(bound) for form, bound in bounds if bound is not None)


def _metadata(annotation: Any) -> Iterator[Any]:
    """The metadata inside an annotation, such as the bound in `Annotated[float, Field(gt=0)] | None`."""
    if get_origin(annotation) is Annotated:
        for each in get_args(annotation)[1:]:
            yield from each.metadata if isinstance(each, FieldInfo) else (each,)
    elif get_origin(annotation) in (Union, UnionType):
        for argument in get_args(annotation):
            yield from _metadata(argument)


def _type_name(annotation: Any) -> str:
    if annotation is NoneType:
        return "none"
    if get_origin(annotation) in (Union, UnionType):
        return " | ".join(_type_name(argument) for argument in get_args(annotation))
    if get_origin(annotation) is Annotated:
        return _type_name(get_args(annotation)[0])
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__name__
    return str(annotation).replace("typing.", "").replace(f"{Run.__module__}.", "")
