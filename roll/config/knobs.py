"""Which keys there are: the schema read as a list of dotted names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

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
        inner, many = _sections_of(info.annotation)
        default = "required" if info.is_required() else _spelled(info)
        yield Knob(key, _type_name(info.annotation), default)
        below = [found for each in inner if each is not Named for found in knobs(each, f"{key}.N" if many else key)]
        yield from dict.fromkeys(below)  # what sections to choose from have in common, once


def section_at(parts: Sequence[str]) -> type[Section] | None:
    """The section that a dotted key leads to, the first if there is a choice; None where it leads to none."""
    return next(iter(sections_at(parts)), None)


def sections_at(parts: Sequence[str]) -> tuple[type[Section], ...]:
    """The sections that a dotted key may lead to; none where it leads to a plain value or nowhere."""
    sections: tuple[type[Section], ...] = (Run,)
    many = False
    for part in parts:
        if many:
            many = False  # this part counts the entries of a list
            continue
        infos = [section.model_fields[part] for section in sections if part in section.model_fields]
        found = [_sections_of(info.annotation) for info in infos]
        sections = tuple(dict.fromkeys(inner for inners, _ in found for inner in inners))
        many = any(several for _, several in found)
    return () if many else sections


def choice_at(parts: Sequence[str]) -> bool:
    """Whether a dotted key takes plain values of several types."""
    section = section_at(parts[:-1]) if parts else None
    info = section.model_fields.get(parts[-1]) if section is not None else None
    if info is None or get_origin(info.annotation) not in (Union, UnionType) or _sections_of(info.annotation)[0]:
        return False
    return len([kind for kind in get_args(info.annotation) if kind is not NoneType]) > 1


def _sections_of(annotation: Any) -> tuple[tuple[type[Section], ...], bool]:
    """The sections to choose from inside an annotation, and whether there may be several of them."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return (annotation,), False
    found = [_sections_of(argument) for argument in get_args(annotation)]
    inner = tuple(dict.fromkeys(section for sections, _ in found for section in sections))
    return inner, bool(inner) and (get_origin(annotation) is tuple or any(many for _, many in found))


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
    if get_origin(annotation) is Annotated:
        return _type_name(get_args(annotation)[0])
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__name__
    return str(annotation).replace("typing.", "").replace(f"{Run.__module__}.", "")
