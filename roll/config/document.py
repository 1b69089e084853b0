"""YAML text as plain values, with the file and line of every key.

Scalars follow YAML 1.2: `1e-3` is a number, `no` and `2024-01-01` are text.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import yaml

from roll.config.knobs import section_at
from roll.config.section import SpecConfig
from roll.errors import ConfigError, did_you_mean

COMMAND_LINE = "command line"
MAX_BYTES = 1_000_000
"""Largest configuration file."""
_MAX_VALUES = 20_000
_MAX_CHARS = 10_000_000
"""Characters of all keys and values, with aliases and variables written out."""
_MAX_DEPTH = 50
_MAX_DIGITS = 100
INTEGER = re.compile(r"[-+]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+")
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map")}
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One error in a file or on the command line."""

    key: str
    where: str
    """`file:line` or `command line`."""
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


class TooLarge(ConfigError):
    """A configuration beyond the limits; no further faults are collected."""


@dataclass(slots=True)
class Document:
    """Contents of a file: plain values, the location of every dotted key, and the faults so far."""

    label: str
    """File name or `command line`."""
    tree: Any = None
    locations: dict[str, str] = field(default_factory=dict[str, str])
    faults: list[Fault] = field(default_factory=list[Fault])
    num_values: int = 0
    num_chars: int = 0

    def grow(self, num_chars: int, depth: int = 0) -> None:
        """Count a value of so many characters, with its key, at a depth; raises TooLarge beyond the limits."""
        self.num_values += 1
        self.num_chars += num_chars
        if self.num_values > _MAX_VALUES or self.num_chars > _MAX_CHARS:
            limits = f"{_MAX_VALUES:,} values or {_MAX_CHARS:,} characters"
            raise TooLarge(f"{self.label}: has more than {limits}, aliases and variables written out; shorten it")
        if depth > _MAX_DEPTH:
            raise TooLarge(f"{self.label}: is nested more than {_MAX_DEPTH} levels deep; write it flatter")

    def where(self, key: str) -> str:
        """Location of `key`, else of the innermost section around it, else of its first subkey."""
        below = (where for known, where in self.locations.items() if known.startswith(f"{key}."))
        return nearest(self.locations, key) or next(below, self.label)

    def fault(self, key: str, text: str, where: str = "") -> None:
        """Record a fault at `key`; its location is `where` if that is not empty."""
        self.faults.append(Fault(key, where or self.where(key), text))


def nearest(locations: Mapping[str, str], key: str) -> str:
    """Location of `key` or of the innermost section around it that has one; empty if none has."""
    while key and key not in locations:
        key = key.rpartition(".")[0]
    return locations.get(key, "")


def parse(text: str, label: str, key: str = "") -> Document:
    """The document in `text`, with `key` as the prefix of its keys. Invalid YAML raises ConfigError."""
    try:
        node = _Composer(text, label).get_single_node()
    except yaml.MarkedYAMLError as error:
        raise ConfigError(_describe_broken(text, label, error)) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{label}: not a text file ({str(error).splitlines()[0]}); give a YAML file") from None
    document = Document(label)
    document.tree = None if node is None else _Builder(document).build(node, key)
    return document


def override(document: Document, assignment: str) -> None:
    """Set `key.sub=value` in the document; an invalid assignment becomes a fault of the command line."""
    key, equals, text = assignment.partition("=")
    parts = key.split(".")
    if not equals or not all(parts) or len(parts) > _MAX_DEPTH:
        document.fault(key, f"{assignment!r} is not an override; write key.sub=value", COMMAND_LINE)
        return
    try:
        value = parse(text, COMMAND_LINE, key)
        retained = _retained_model_keys(document.tree, parts, value.tree)
        _put(document.tree, parts, {**retained, **value.tree} if retained else value.tree)
    except ConfigError as error:
        message = str(error).removeprefix(f"{COMMAND_LINE}: ")
        document.fault(key, f"{key}: {message}", COMMAND_LINE)
        return
    retained_keys = {_join(key, name) for name in retained}
    for known in [known for known in document.locations if known == key or known.startswith(f"{key}.")]:
        if known not in retained_keys:
            del document.locations[known]
    document.locations |= {**value.locations, key: COMMAND_LINE}
    document.faults += value.faults


class _Composer(yaml.BaseLoader):
    """Composes nodes, no more and no deeper than the limits."""

    def __init__(self, text: str, label: str) -> None:
        super().__init__(text)
        self.counts = Document(label)
        self.depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.depth += 1
        self.counts.grow(0, self.depth)
        node = cast("yaml.Node | None", cast(Any, super()).compose_node(parent, index))
        self.depth -= 1
        return node


class _Builder:
    """Turns YAML nodes into values, and records locations and faults in a document."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.unfinished: set[int] = set()

    def build(self, node: yaml.Node, key: str) -> Any:
        if id(node) in self.unfinished:
            self.document.fault(key, f"{key}: the alias is inside the value that it names; write the value out")
            return None
        if node.tag not in _TAGS:
            self.document.fault(key, f"{key}: tags are not supported (got {node.tag!r}); write the plain value")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, key)
        self.unfinished.add(id(node))
        self.document.grow(len(key), len(self.unfinished))
        value = self._mapping(node, key) if isinstance(node, yaml.MappingNode) else self._sequence(node, key)
        self.unfinished.discard(id(node))
        return value

    def _scalar(self, node: yaml.ScalarNode, key: str) -> Any:
        text = str(node.value)
        self.document.grow(len(key) + len(text))
        if node.style is not None:
            return text
        if len(text) > _MAX_DIGITS and INTEGER.fullmatch(text):
            advice = "put quotes around it if it is text"
            self.document.fault(
                key, f"{key}: a whole number has at most {_MAX_DIGITS} digits (got {len(text)}); {advice}"
            )
            return None
        return _read_plain(text)

    def _mapping(self, node: yaml.MappingNode, key: str) -> dict[str, Any]:
        pairs = cast("list[tuple[yaml.Node, yaml.Node]]", node.value)
        values: dict[str, Any] = {}
        for name, child in pairs:
            if name.value == "<<":
                values |= self._merge_value(child, key)
        lines: dict[str, str] = {}
        for name, child in pairs:
            if name.value == "<<":
                continue
            where = self._line(name)
            text = str(name.value) if isinstance(name, yaml.ScalarNode) else "?"
            inner = _join(key, text)
            if not isinstance(name, yaml.ScalarNode):
                self.document.fault(inner, "a key must be plain text (got a list or a section)", where)
            elif text in lines:
                self.document.fault(inner, f"key {inner!r} is given twice (first: {lines[text]}); delete one", where)
            lines[text] = self.document.locations[inner] = where
            values[text] = self.build(child, inner)
        return values

    def _merge_value(self, node: yaml.Node, key: str) -> dict[str, Any]:
        """The pairs of a `<<` value; in a list of sections, earlier ones take precedence."""
        value = self.build(node, key)
        sections = cast("list[Any]", value if isinstance(value, list) else [value])
        values: dict[str, Any] = {}
        for section in reversed(sections):
            if not isinstance(section, dict):
                text = f"'<<' takes a section or a list of sections (got {section!r})"
                self.document.fault(key, text, self._line(node))
                return {}
            values |= cast("dict[str, Any]", section)
        return values

    def _sequence(self, node: yaml.Node, key: str) -> list[Any]:
        values: list[Any] = []
        for index, child in enumerate(cast("list[yaml.Node]", node.value)):
            inner = _join(key, str(index))
            self.document.locations[inner] = self._line(child)
            values.append(self.build(child, inner))
        return values

    def _line(self, node: yaml.Node) -> str:
        label = self.document.label
        return label if label == COMMAND_LINE else f"{label}:{node.start_mark.line + 1}"


def _read_plain(text: str) -> Any:
    """The value of a scalar without quotes."""
    if text in _WORDS:
        return _WORDS[text]
    if INTEGER.fullmatch(text):
        return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
    if FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


def _describe_broken(text: str, label: str, error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark
    problem = error.problem or error.context or "cannot be read"
    if mark is None or label == COMMAND_LINE:
        return f"{label}: broken YAML: {problem}"
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    advice = (
        "put text with '${' in quotes" if "${" in line else "check brackets, quotes and indentation (spaces, no tabs)"
    )
    return f"{label}:{mark.line + 1}:{mark.column + 1}: broken YAML: {problem}; {advice}"


def _put(tree: Any, parts: Sequence[str], value: Any) -> None:
    if parts[0] == "vars" and len(parts) > 1:
        known = cast("dict[str, Any]", tree["vars"] if isinstance(tree.get("vars"), dict) else {})
        if parts[1] not in known:
            raise ConfigError(f"no variable {parts[1]!r} under 'vars'{did_you_mean(parts[1], known)}")
    node = tree
    for depth, part in enumerate(parts[:-1], start=1):
        index = _index(node, part, parts[: depth - 1])
        value_there = node[index] if index in node or isinstance(index, int) else None
        node[index] = node = _as_section(value_there, parts[:depth])
    node[_index(node, parts[-1], parts[:-1])] = value


def _retained_model_keys(tree: Any, parts: Sequence[str], value: Any) -> dict[str, Any]:
    """Keys of `model` that stay when an override replaces `path` or `shape`; empty for other sections."""
    model = cast("dict[str, Any]", tree).get("model") if isinstance(tree, dict) else None
    if list(parts) != ["model"] or not isinstance(model, dict) or not isinstance(value, dict):
        return {}
    replaced = {"path", "shape"} if value.keys() & {"path", "shape"} else set[str]()
    return {name: entry for name, entry in cast("dict[str, Any]", model).items() if name not in replaced}


def _index(node: Any, part: str, above: Sequence[str]) -> Any:
    """The key or list index of `part` in `node`."""
    if isinstance(node, dict):
        return part
    if not isinstance(node, list):
        raise ConfigError(f"{'.'.join(above)!r} is a single value (got {node!r}); it has no {part!r}")
    entries = cast("list[Any]", node)
    if not part.isdecimal() or len(part) > _MAX_DIGITS or int(part) >= len(entries):
        raise ConfigError(f"{'.'.join(above)!r} has entries 0 to {len(entries) - 1} (got {reprlib.repr(part)})")
    return int(part)


def _as_section(value: Any, parts: Sequence[str]) -> Any:
    """The section for which a value is the short form, so that a key can be set in it."""
    if value is None:
        return {}
    if not isinstance(value, str):
        return value
    if tuple(parts) == ("algorithm",):
        return {"recipe": value}
    section = section_at(parts)
    if section is None or not issubclass(section, SpecConfig):
        return value
    return {"kind": "jsonl", "path": value} if value.endswith((".jsonl", ".jsonl.gz")) else {"kind": value}


def _join(key: str, part: str) -> str:
    return f"{key}.{part}" if key else part
