"""Composition of a Hydra configuration: the files of its `defaults` list, then `${...}`. Evaluates no code.

Supported: `${a.b}`, relative `${.b}`, `${a[0]}`, nested ones, and `${oc.env:NAME,default}`. A value with another
resolver stays as it is and is reported.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from roll.config.document import Document, parse
from roll.config.faults import raise_all
from roll.config.load import read_text
from roll.errors import ConfigError, did_you_mean

KeyPath = tuple[str, ...]
_MOST_FILES = 50
_INNERMOST = re.compile(r"\$\{([^${}]*)\}")
_RESOLVER = re.compile(r"([\w.]+):(.*)", re.DOTALL)
_PACKAGE = re.compile(r"^# *@package +(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """A configuration without `defaults` and `${...}`."""

    tree: dict[str, Any]
    files: tuple[Path, ...]
    """The file itself and all that its defaults list names."""
    skipped: tuple[str, ...]
    """Entries of defaults lists that are about Hydra itself."""
    unresolved: Mapping[KeyPath, str]
    """Keys whose `${...}` cannot be replaced here, with the reason."""
    referenced: frozenset[KeyPath]
    """Keys that `${...}` names."""

    @property
    def resolved(self) -> dict[str, Any]:
        """The tree without the unresolved keys."""
        tree: dict[str, Any] = {}
        for parts, value in leaves(self.tree):
            if parts and parts not in self.unresolved:
                *above, name = parts
                here = tree
                for part in above:
                    here = here.setdefault(part, {})
                here[name] = value
        return tree


def compose(path: Path) -> Composed:
    """The configuration in `path`; raises ConfigError with one line."""
    reader = _Reader(root=path.parent)
    tree: dict[str, Any] = {}
    for package, section in reader.pieces(path, (), ()):
        for name in reversed(package):
            section = {name: section}
        _merge(tree, section)
    resolver = _Resolver(tree, Document(str(path)))
    try:
        resolved = cast("dict[str, Any]", resolver.resolve_all())
    except RecursionError:
        raise ConfigError(f"{path}: ${{...}} is nested too deeply; write it flatter") from None
    return Composed(
        tree=resolved,
        files=tuple(reader.files),
        skipped=tuple(reader.skipped),
        unresolved=resolver.unresolved,
        referenced=frozenset(resolver.referenced),
    )


def leaves(value: Any, above: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Every key that holds no further keys, with its value; a list is one value."""
    if isinstance(value, dict) and value:
        for name, inner in cast("dict[str, Any]", value).items():
            yield from leaves(inner, (*above, name))
    else:
        yield above, value


def _merge(tree: dict[str, Any], section: dict[str, Any]) -> None:
    """Merge `section` into `tree`; its values take precedence, and lists replace lists."""
    for name, value in section.items():
        old = tree.get(name)
        if isinstance(old, dict) and isinstance(value, dict):
            _merge(cast("dict[str, Any]", old), cast("dict[str, Any]", value))
        else:
            tree[name] = value


@dataclass(slots=True)
class _Reader:
    """Reads a file and, recursively, those of its defaults list."""

    root: Path
    files: list[Path] = field(default_factory=list[Path])
    skipped: list[str] = field(default_factory=list[str])

    def pieces(self, path: Path, package: KeyPath, above: tuple[Path, ...]) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
        """Sections with the packages they belong to, in the order in which they override each other."""
        if path.resolve() in above:
            raise ConfigError(f"{path}: its defaults list leads back to itself; remove that entry")
        self.files.append(path)
        if len(self.files) > _MOST_FILES:
            raise ConfigError(f"{path}: defaults lists name more than {_MOST_FILES} files; import a smaller one")
        text = read_text(path)
        header = _PACKAGE.search(text.partition("\n\n")[0])
        if header and above:
            package = () if header[1] == "_global_" else tuple(header[1].split("."))
        tree = _parse_section(text, path)
        entries: Any = tree.pop("defaults", None) or []
        if not isinstance(entries, list):
            raise ConfigError(f"{path}: defaults: must be a list (got {entries!r}); write one entry per line")
        names = cast("list[Any]", entries)
        for entry in names if "_self_" in names else [*names, "_self_"]:
            if entry == "_self_":
                yield package, tree
            else:
                yield from self._entry(entry, path, package, (*above, path.resolve()))

    def _entry(
        self, entry: Any, path: Path, package: KeyPath, above: tuple[Path, ...]
    ) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
        """The pieces of `file@package`, or of `group@package: file`."""
        pairs = list(cast("dict[str, Any]", entry).items()) if isinstance(entry, dict) else []
        key, option = pairs[0] if len(pairs) == 1 else ("", cast(Any, entry))
        if str(key or option).startswith(("override ", "hydra/")):
            self.skipped.append(str(key or option))
            return
        group, _, target = key.removeprefix("optional ").partition("@")
        for name in cast("list[Any]", option) if isinstance(option, list) else [option]:
            if name is None:
                continue
            if not isinstance(name, str):
                raise ConfigError(f"{path}: defaults: an entry is a file, or 'group: file' (got {entry!r}); correct it")
            file, _, place = (f"{group}/{name}", "", target) if group else name.partition("@")
            folder = self.root if file.startswith("/") else path.parent
            location = folder / f"{file.lstrip('/').removesuffix('.yaml')}.yaml"
            if location.is_file():
                yield from self.pieces(location, _package(place, file, package, path), above)
            elif not key.startswith("optional "):
                raise ConfigError(f"{path}: defaults: no such file: {location}; correct the entry {name!r}")


def _package(target: str, file: str, package: KeyPath, path: Path) -> KeyPath:
    """Where the keys of an included file go."""
    if target == "_global_":
        return ()
    if target == "_here_":
        return package
    if target:
        return (*package, *target.split("."))
    folder = tuple(part for part in file.split("/")[:-1] if part)
    if ".." in folder:
        raise ConfigError(f"{path}: defaults: {file!r} names no package; write {file}@_here_")
    return (*package, *folder)


def _parse_section(text: str, path: Path) -> dict[str, Any]:
    document = parse(text, str(path))
    raise_all(document.faults)
    tree: Any = {} if document.tree is None else document.tree
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: must hold keys and values at its top level; give a configuration of ROLL")
    return cast("dict[str, Any]", tree)


class _UnresolvedError(Exception):
    """A value that only another program can give."""


class _Resolver:
    """Replaces `${...}` in a tree; bounded in size, and refuses circles."""

    def __init__(self, tree: dict[str, Any], limits: Document) -> None:
        self.tree, self.limits = tree, limits
        self.unresolved: dict[KeyPath, str] = {}
        self.referenced: set[KeyPath] = set()
        self._values: dict[KeyPath, Any] = {}
        self._inside: list[KeyPath] = []

    def resolve_all(self) -> Any:
        return self._keep_unresolved(self.tree, ())

    def _keep_unresolved(self, value: Any, at: KeyPath) -> Any:
        if isinstance(value, dict):
            entries = cast("dict[str, Any]", value).items()
            return {name: self._keep_unresolved(inner, (*at, name)) for name, inner in entries}
        try:
            return self._deep(value, at)
        except _UnresolvedError as error:
            self.unresolved[at] = str(error)
            return value

    def _deep(self, value: Any, at: KeyPath) -> Any:
        if isinstance(value, dict):
            return {name: self._deep(inner, (*at, name)) for name, inner in cast("dict[str, Any]", value).items()}
        if isinstance(value, list):
            entries = cast("list[Any]", value)
            return [self._deep(inner, (*at, str(index))) for index, inner in enumerate(entries)]
        return self._text(value, at) if isinstance(value, str) else value

    def _text(self, text: str, at: KeyPath) -> Any:
        while match := _INNERMOST.search(text):
            value = self._refer(match[1].strip(), at)
            if match.span() == (0, len(text)):
                return value
            if isinstance(value, dict | list):
                raise ConfigError(self._fault(at, f"{match[0]} is a list or a section and cannot be part of a text"))
            word = str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)
            text = text[: match.start()] + word + text[match.end() :]
            self.limits.grow(len(text))
        return text

    def _refer(self, name: str, at: KeyPath) -> Any:
        """The value of what stands between the braces of `${...}`."""
        if match := _RESOLVER.fullmatch(name):
            if match[1] != "oc.env":
                raise _UnresolvedError(f"resolver {match[1]!r} of ${{{name}}} is not supported; write the value")
            return _environment(match[2])
        target = _target(name, at)
        if target in self._inside:
            circle = " -> ".join(".".join(each) for each in (*self._inside, target))
            raise ConfigError(self._fault(at, f"${{...}} leads in a circle: {circle}; write a value"))
        self.referenced.add(target)
        if target not in self._values:
            self._inside.append(target)
            try:
                self._values[target] = self._look_up(target, name, at)
            finally:
                self._inside.pop()
        value = self._values[target]
        self._count(value, 1)
        return value

    def _look_up(self, target: KeyPath, name: str, at: KeyPath) -> Any:
        here: Any = self.tree
        for index, part in enumerate(target):
            if isinstance(here, str):
                here = self._text(here, target[:index])
            entries = dict(enumerate(cast("list[Any]", here))) if isinstance(here, list) else here
            key = int(part) if isinstance(here, list) and part.isdecimal() else part
            if not isinstance(entries, dict) or key not in entries:
                known = [str(each) for each in cast("dict[Any, Any]", entries)] if isinstance(entries, dict) else []
                raise ConfigError(self._fault(at, f"${{{name}}} names no key{did_you_mean(part, known)}"))
            here = cast("dict[Any, Any]", entries)[key]
        return self._deep(here, target)

    def _count(self, value: Any, depth: int) -> None:
        """Count a value towards the limits of size and depth."""
        self.limits.grow(len(value) if isinstance(value, str) else 1, depth)
        inner = cast("dict[str, Any]", value).values() if isinstance(value, dict) else value
        for each in cast("list[Any]", inner) if isinstance(value, dict | list) else ():
            self._count(each, depth + 1)

    def _fault(self, at: KeyPath, text: str) -> str:
        return f"{self.limits.label}: {'.'.join(at)}: {text}"


def _target(name: str, at: KeyPath) -> KeyPath:
    """The key that `${name}` in the value of the key `at` names."""
    parts = re.sub(r"\[(\w+)\]", r".\1", name)
    rest = parts.lstrip(".")
    num_dots = len(parts) - len(rest)
    above = at[: max(0, len(at) - num_dots)] if num_dots else ()
    return (*above, *rest.split("."))


def _environment(arguments: str) -> Any:
    name, comma, default = (part.strip() for part in arguments.partition(","))
    if name in os.environ:
        return os.environ[name]
    if not comma:
        raise _UnresolvedError(f"environment variable {name} is not set here; set it, or write the value")
    return None if default == "null" else default.strip("'\"")
