"""YAML text as plain values that remember where each of them stands.

Scalars are read by YAML 1.2's rules: `1e-3` is a number, `no` and `2024-01-01` are text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import yaml

from roll.config.knobs import section_at
from roll.config.schema import Named
from roll.errors import ConfigError, did_you_mean

COMMAND_LINE = "command line"
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
    """One thing that is wrong, at the key it is about."""

    key: str
    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


@dataclass(slots=True)
class Document:
    """What a file says: plain values, the place of every dotted key, and the faults found so far."""

    label: str
    """What places are called: a file's name, or `command line`."""
    tree: Any = None
    places: dict[str, str] = field(default_factory=dict[str, str])
    faults: list[Fault] = field(default_factory=list[Fault])

    def place(self, key: str) -> str:
        """Where `key` stands, or the nearest section around it that is written down."""
        return nearest(self.places, key) or self.label

    def fault(self, key: str, text: str) -> None:
        """Note that something is wrong at `key`."""
        self.faults.append(Fault(key, self.place(key), text))


def nearest(places: Mapping[str, str], key: str) -> str:
    """The place of `key` or of the innermost section around it that has one; empty if none has."""
    while key and key not in places:
        key = key.rpartition(".")[0]
    return places.get(key, "")


def parse(text: str, label: str, key: str = "") -> Document:
    """The document that `text` spells, its keys counted from `key`. Text that is no YAML raises ConfigError."""
    try:
        node = cast("yaml.Node | None", cast(Any, yaml).compose(text, yaml.BaseLoader))
    except yaml.MarkedYAMLError as error:
        raise ConfigError(_broken(text, label, error)) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{label}: not a text file ({str(error).splitlines()[0]}); give a YAML file") from None
    document = Document(label)
    document.tree = None if node is None else _Builder(document).build(node, key)
    return document


def override(document: Document, assignment: str) -> None:
    """Lay `key.sub=value` over the document; what cannot be laid becomes a fault of the command line."""
    key, equals, text = assignment.partition("=")
    parts = key.split(".")
    if not equals or not all(parts):
        wrong = f"{assignment!r} is not an override; write key.sub=value"
        document.faults.append(Fault(key, COMMAND_LINE, wrong))
        return
    try:
        value = parse(text, COMMAND_LINE, key)
        kept = _kept(document.tree, parts, value.tree)
        _put(document.tree, parts, {**kept, **value.tree} if kept else value.tree)
    except ConfigError as error:
        wrong = str(error).removeprefix(f"{COMMAND_LINE}: ")
        document.faults.append(Fault(key, COMMAND_LINE, f"{key}: {wrong}"))
        return
    stays = {_join(key, name) for name in kept}
    for known in [known for known in document.places if known == key or known.startswith(f"{key}.")]:
        if known not in stays:
            del document.places[known]
    document.places |= {**value.places, key: COMMAND_LINE}
    document.faults += value.faults


class _Builder:
    """Turns the nodes of one YAML text into values, noting places and faults in a document."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.unfinished: set[int] = set()

    def build(self, node: yaml.Node, key: str) -> Any:
        if id(node) in self.unfinished:
            self.document.fault(key, f"{key}: the alias stands inside what it names; write the value out")
            return None
        if node.tag not in _TAGS:
            self.document.fault(key, f"{key}: tags are not read here (got {node.tag!r}); write the plain value")
        if isinstance(node, yaml.ScalarNode):
            return str(node.value) if node.style is not None else _plain(str(node.value))
        self.unfinished.add(id(node))
        value = self._mapping(node, key) if isinstance(node, yaml.MappingNode) else self._sequence(node, key)
        self.unfinished.discard(id(node))
        return value

    def _mapping(self, node: yaml.MappingNode, key: str) -> dict[str, Any]:
        pairs = cast("list[tuple[yaml.Node, yaml.Node]]", node.value)
        values: dict[str, Any] = {}
        for name, child in pairs:
            if name.value == "<<":
                values |= self._merged(child, key)
        own: dict[str, str] = {}
        for name, child in pairs:
            if name.value == "<<":
                continue
            place = self._line(name)
            spelled = str(name.value) if isinstance(name, yaml.ScalarNode) else "?"
            inner = _join(key, spelled)
            if not isinstance(name, yaml.ScalarNode):
                self.document.faults.append(Fault(inner, place, "a key must be plain text (got a list or a section)"))
            elif spelled in own:
                wrong = f"key {inner!r} is given twice (first: {own[spelled]}); delete one"
                self.document.faults.append(Fault(inner, place, wrong))
            own[spelled] = self.document.places[inner] = place
            values[spelled] = self.build(child, inner)
        return values

    def _merged(self, node: yaml.Node, key: str) -> dict[str, Any]:
        """The pairs that a `<<` brings in; in a list, what comes first wins."""
        found = self.build(node, key)
        sections = cast("list[Any]", found if isinstance(found, list) else [found])
        values: dict[str, Any] = {}
        for section in reversed(sections):
            if not isinstance(section, dict):
                wrong = f"'<<' takes a section or a list of sections (got {section!r})"
                self.document.faults.append(Fault(key, self._line(node), wrong))
                return {}
            values |= cast("dict[str, Any]", section)
        return values

    def _sequence(self, node: yaml.Node, key: str) -> list[Any]:
        values: list[Any] = []
        for index, child in enumerate(cast("list[yaml.Node]", node.value)):
            inner = _join(key, str(index))
            self.document.places[inner] = self._line(child)
            values.append(self.build(child, inner))
        return values

    def _line(self, node: yaml.Node) -> str:
        label = self.document.label
        return label if label == COMMAND_LINE else f"{label}:{node.start_mark.line + 1}"


def _plain(text: str) -> Any:
    """The value of a scalar that stands without quotes."""
    if text in _WORDS:
        return _WORDS[text]
    if INTEGER.fullmatch(text):
        return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
    if FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


def _broken(text: str, label: str, error: yaml.MarkedYAMLError) -> str:
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
        slot = _slot(node, part, parts[: depth - 1])
        node[slot] = node = _opened(node[slot] if slot in node or isinstance(slot, int) else None, parts[:depth])
    node[_slot(node, parts[-1], parts[:-1])] = value


def _kept(tree: Any, parts: Sequence[str], value: Any) -> dict[str, Any]:
    """What a file says of its model that another origin of the weights does not change; nothing of other sections."""
    before = cast("dict[str, Any]", tree).get("model") if isinstance(tree, dict) else None
    if list(parts) != ["model"] or not isinstance(before, dict) or not isinstance(value, dict):
        return {}
    replaced = {"path", "shape"} if value.keys() & {"path", "shape"} else set[str]()
    return {name: held for name, held in cast("dict[str, Any]", before).items() if name not in replaced}


def _slot(node: Any, part: str, above: Sequence[str]) -> Any:
    """What to index `node` with to reach `part`."""
    if isinstance(node, dict):
        return part
    if not isinstance(node, list):
        raise ConfigError(f"{'.'.join(above)!r} is a single value (got {node!r}); it has no {part!r}")
    entries = cast("list[Any]", node)
    if not part.isdecimal() or int(part) >= len(entries):
        raise ConfigError(f"{'.'.join(above)!r} has entries 0 to {len(entries) - 1} (got {part!r})")
    return int(part)


def _opened(held: Any, parts: Sequence[str]) -> Any:
    """A value as the section that it is short for, so that a key can be set inside it."""
    if held is None:
        return {}
    if not isinstance(held, str):
        return held
    if tuple(parts) == ("algorithm",):
        return {"recipe": held}
    section = section_at(parts)
    if section is None or not issubclass(section, Named):
        return held
    return {"kind": "jsonl", "path": held} if held.endswith((".jsonl", ".jsonl.gz")) else {"kind": held}


def _join(key: str, part: str) -> str:
    return f"{key}.{part}" if key else part
