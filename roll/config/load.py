"""Reads a YAML file, its recipe and command-line overrides into one valid `Run`, or raises all faults at once."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, cast

import yaml
from pydantic import ValidationError

from roll.config.backends import change_backend
from roll.config.document import FLOAT, INTEGER, MAX_BYTES, Document, nearest, override, parse
from roll.config.faults import add_faults, raise_all
from roll.config.schema import Run
from roll.config.variables import escape, substitute
from roll.errors import ConfigError, did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRun:
    """A valid run with the location of each of its keys."""

    run: Run
    path: Path
    """The YAML file; `config` for a dictionary."""
    locations: Mapping[str, str]
    """Dotted key (`tasks.0.reward`) to `file:line` or `command line`."""
    objects: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Python objects that the run names and that cannot be imported, by name."""

    def where(self, key: str) -> str:
        """Location of `key`, or of the innermost section around it that the file has."""
        return nearest(self.locations, key) or str(self.path)


def load(source: Path | Mapping[str, Any], overrides: Sequence[str] = (), *, resumed: bool = False) -> LoadedRun:
    """The run in a file or dictionary with `overrides` (`key.sub=value`). Raises all faults at once.

    `resumed`: the file has every key of a run, so an override with another backend removes the keys that it lacks.
    """
    document = read(source)
    path = Path(document.label)
    tree: object = document.tree
    if not isinstance(tree, dict):
        got = "nothing" if tree is None else "a list" if isinstance(tree, list) else repr(tree)
        raise ConfigError(f"{path}: must hold keys and values at its top level (got {got}); begin with 'model:'")
    for assignment in overrides:
        if resumed:
            change_backend(document.tree, assignment)
        override(document, assignment)
    substitute(document)
    _merge_recipe(document)
    run: Run | None = None
    num_more = 0
    try:
        run = Run.model_validate_json(json.dumps(document.tree))
    except ValidationError as error:
        num_more = add_faults(document, error)
    raise_all(document.faults, num_more)
    assert run is not None
    return LoadedRun(run=run, path=path, locations=document.locations)


def read(source: Path | Mapping[str, Any]) -> Document:
    """Contents of a YAML file, within the limits of size, or of a dictionary; faults are collected, not raised."""
    if isinstance(source, Path):
        return parse(read_text(source), str(source))
    return Document("config", json.loads(json.dumps(source)))


def source_keys(source: Path | Mapping[str, Any]) -> dict[str, list[str]]:
    """The dotted keys of all task sources in a file or dictionary, by the name of the source."""
    keys: dict[str, list[str]] = {}
    tree = read(source).tree
    for above in ("tasks", "validation.tasks", "sft.tasks"):
        entries: Any = tree
        for part in above.split("."):
            entries = cast("dict[str, Any]", entries).get(part) if isinstance(entries, dict) else None
        for index, entry in enumerate(cast("list[Any]", entries) if isinstance(entries, list) else []):
            if isinstance(entry, dict) and "name" in entry:
                keys.setdefault(str(cast("dict[str, Any]", entry)["name"]), []).append(f"{above}.{index}")
    return keys


def tree_of(run: Run) -> dict[str, Any]:
    """The run as plain values; `load` reads them back to an equal run."""
    return escape(run.model_dump(mode="json"))


def dump(run: Run) -> str:
    """The run as YAML; `load` reads it back to an equal run."""
    return dump_tree(run.model_dump(mode="json"))


def dump_tree(tree: dict[str, Any]) -> str:
    """The sections of a run file as YAML."""
    return yaml.dump(escape(tree), Dumper=_YamlWriter, sort_keys=False, allow_unicode=True, width=120)


class _YamlWriter(yaml.SafeDumper):
    """Quotes text that YAML 1.1 or 1.2 would read as another type."""


for _tag, _pattern in (("int", INTEGER), ("float", FLOAT)):
    cast(Any, _YamlWriter).add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern.pattern})$"), list("-+.0123456789")
    )


def read_text(path: Path) -> str:
    """The text of a configuration file; ConfigError if it cannot be read or is too large."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ConfigError(f"{path}: has more than {MAX_BYTES:,} bytes; give the YAML file of a run")
        return data.decode("utf-8-sig")
    except FileNotFoundError:
        others = [other.name for other in path.parent.glob("[!.]*.y*ml")]
        advice = did_you_mean(path.name, others) or "; give the path of a YAML file"
        raise ConfigError(f"no such file: {path}{advice}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 (byte {error.start}); save it as UTF-8 text") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a directory; give the path of a YAML file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from None


def recipes() -> dict[str, str]:
    """The text of every recipe, by name."""
    folder = resources.files("roll") / "recipes"
    files = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".yaml")), key=lambda entry: entry.name)
    return {entry.name.removesuffix(".yaml"): entry.read_text(encoding="utf-8") for entry in files}


def _merge_recipe(document: Document) -> None:
    """Fill the section `algorithm` from the recipe that it names; keys of the file take precedence."""
    value = document.tree.get("algorithm")
    section = {"recipe": value} if isinstance(value, str) else _as_section(value)
    if section is None or not isinstance(section.get("recipe"), str):
        return
    name, known = section["recipe"], recipes()
    if name not in known:
        document.fault("algorithm", f"algorithm: no recipe named {name!r}{did_you_mean(name, known)}")
        return
    recipe = parse(known[name], f"recipe {name}", "algorithm").tree
    document.tree["algorithm"] = _merge(recipe, section)


def _merge(recipe: dict[str, Any], section: dict[str, Any]) -> dict[str, Any]:
    """The recipe with the keys of `section`, merged per argument; a part of another `kind` keeps no argument."""
    merged = dict(recipe)
    for name, value in section.items():
        old, new = _as_section(recipe.get(name)), _as_section(value)
        if old is not None and new is not None and new.get("kind", old.get("kind")) == old.get("kind"):
            merged[name] = {**old, **new}
        else:
            merged[name] = value
    return merged


def _as_section(value: Any) -> dict[str, Any] | None:
    """A part of a recipe, short or in full, as a section; None for other values."""
    if isinstance(value, str):
        return {"kind": value}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None
