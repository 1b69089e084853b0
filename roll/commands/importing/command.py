"""`roll import roll`: a run file from a configuration of Alibaba's ROLL, with an outcome for every key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from roll.commands.importing import agentic, algorithm, rlvr, roles, run, trainers
from roll.commands.importing.hydra import Composed, compose, leaves
from roll.commands.importing.outcome import Outcome, Status
from roll.commands.importing.source import MISSING, Pipeline, Source
from roll.commands.importing.table import KeyTable, Row
from roll.config.load import dump_tree
from roll.errors import ConfigError

_SECRET = ("api_key", "password", "secret", "token")
_ORDER = (
    *("name", "directory", "seed", "steps", "executor", "model", "algorithm", "tasks", "rollout"),
    *("actor_train", "actor_infer", "weight_sync", "critic", "reference", "validation", "checkpoint", "tracking"),
)
_TABLES: dict[Pipeline, KeyTable] = {
    "rlvr": KeyTable(*run.ROWS, *algorithm.ROWS, *rlvr.ROWS, *trainers.ROWS, *roles.ROWS),
    "agentic": KeyTable(*run.ROWS, *algorithm.ROWS, *agentic.ROWS, *trainers.ROWS, *roles.ROWS),
}
_BAD_VALUES = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A run file and the outcome of every key of its source."""

    tree: dict[str, Any]
    outcomes: tuple[Outcome, ...]

    @property
    def num_unknown(self) -> int:
        return sum(outcome.status is Status.UNKNOWN for outcome in self.outcomes)


def import_roll(path: Path) -> Imported:
    """Convert the configuration in `path`; raises ConfigError with one line."""
    return convert(compose(path), str(path))


def convert(composed: Composed, label: str) -> Imported:
    """Convert a configuration; `label` locates errors."""
    pipeline = _pipeline(composed.tree, label)
    table = _TABLES[pipeline]
    source = Source(label=label, pipeline=pipeline, tree=composed.resolved, defaults=table.defaults)
    converter = _Converter(source, composed, table)
    outcomes = (*_defaults_list(composed), *converter.keys(), *converter.absent_keys())
    for key, value in _built(source).items():
        _put(converter.tree, key, value)
    tree = converter.tree
    ordered = {name: tree[name] for name in (*_ORDER, *sorted(tree.keys() - set(_ORDER))) if name in tree}
    return Imported(tree=ordered, outcomes=outcomes)


def _pipeline(tree: dict[str, Any], label: str) -> Pipeline:
    if {"train_env_manager", "custom_envs"} & tree.keys():
        return "agentic"
    if {"rewards", "actor_train"} & tree.keys():
        return "rlvr"
    raise ConfigError(f"{label}: no pipeline of ROLL that can be imported; give an rlvr or agentic configuration")


def _built(source: Source) -> dict[str, Any]:
    """What follows from several keys together."""
    try:
        special = rlvr.build_rlvr(source) if source.pipeline == "rlvr" else agentic.build_agentic(source)
        parts = {f"algorithm.{name}": value for name, value in algorithm.build_algorithm(source).items()}
        return {**parts, **special, **roles.build_roles(source)}
    except _BAD_VALUES as error:
        raise _fault(source.label, error) from None


def _defaults_list(composed: Composed) -> Iterator[Outcome]:
    files = [str(file) for file in composed.files[1:]]
    if files or composed.skipped:
        note = f"left out: {', '.join(composed.skipped)} (settings of Hydra)" if composed.skipped else ""
        yield Outcome(key="defaults", status=Status.DIFFERS if note else Status.TAKEN, value=files, note=note)


class _Converter:
    """Applies the table to a source, key by key."""

    def __init__(self, source: Source, composed: Composed, table: KeyTable) -> None:
        self.source, self.composed, self.table = source, composed, table
        self.tree: dict[str, Any] = {}

    def keys(self) -> Iterator[Outcome]:
        """The outcome of every key of the file."""
        for parts, value in leaves(self.composed.tree):
            key = ".".join(parts)
            row = self.table.find(key)
            secret = bool(parts) and parts[-1].endswith(_SECRET) and value is not None
            if parts in self.composed.unresolved:
                outcome = Outcome(key=key, status=Status.UNSUPPORTED, note=self.composed.unresolved[parts])
            elif row is not None:
                outcome = self._apply(row, key, value)
            elif any(parts[: len(used)] == used for used in self.composed.referenced):
                outcome = Outcome(key=key, status=Status.VARIABLE, note="other keys refer to it")
            else:
                outcome = Outcome(key=key, status=Status.UNKNOWN)
            yield replace(outcome, value="***" if secret else value)

    def absent_keys(self) -> Iterator[Outcome]:
        """ROLL's defaults of keys that the file leaves out, as far as they have an effect."""
        for key, value in self.table.defaults.items():
            if self.source.given(key) is MISSING:
                outcome = self._apply(self.table.exact[key], key, value)
                if outcome.status in (Status.TAKEN, Status.RENAMED, Status.DIFFERS):
                    yield replace(outcome, value=value, absent=True)

    def _apply(self, row: Row, key: str, value: Any) -> Outcome:
        try:
            effect = row.convert(self.source, key, value)
        except _BAD_VALUES as error:
            raise _fault(f"{self.source.label}: {key}", error) from None
        for ours, converted in effect.values.items():
            _put(self.tree, ours, converted)
        becomes = effect.becomes or tuple(effect.values)
        return Outcome(key=key, status=effect.status, becomes=becomes, note=effect.note)


def _fault(where: str, error: Exception) -> ConfigError:
    """The fault of a value of the wrong type, which a converter could not use."""
    return (
        error if isinstance(error, ConfigError) else ConfigError(f"{where}: cannot be converted ({error}); correct it")
    )


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    *above, name = key.split(".")
    for part in above:
        tree = tree.setdefault(part, {})
    tree[name] = value


def write_import(path: Path, *, output: Path | None, overwrite: bool, as_json: bool) -> tuple[str, str, int]:
    """Text for stdout, text for stderr, and the number of unknown keys; writes the run file to `output`."""
    if output is not None and output.exists() and (not overwrite or output.resolve() == path.resolve()):
        raise ConfigError(
            f"{output}: exists already; choose another --output, or replace an earlier one by --overwrite"
        )
    imported = import_roll(path)
    text = dump_tree(imported.tree)
    report = _json_report(imported) if as_json else "\n".join(_table(imported, output))
    if output is None:
        return text, report, imported.num_unknown
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{output}: cannot be written ({error.strerror}); choose another --output") from None
    return "", report, imported.num_unknown


def _json_report(imported: Imported) -> str:
    return json.dumps([asdict(outcome) for outcome in imported.outcomes], default=str)


def _table(imported: Imported, output: Path | None) -> Iterator[str]:
    """One section per outcome with a line per key, then the keys that the file leaves out, then a summary."""
    outcomes = imported.outcomes
    present = [outcome for outcome in outcomes if not outcome.absent]
    sections = {str(status): [each for each in present if each.status is status] for status in Status}
    sections["left out of the file, with ROLL's defaults"] = [each for each in outcomes if each.absent]
    width = min(40, max((len(outcome.key) for outcome in outcomes), default=0))
    for title, members in sections.items():
        if members:
            yield f"{title} ({len(members)})"
            yield from (_line(outcome, width) for outcome in members)
            yield ""
    counts = {status: sum(each.status is status for each in present) for status in Status}
    total = len(present)
    yield f"{total} keys: " + "; ".join(f"{status} {count}" for status, count in counts.items() if count)
    advice = f"run 'roll check {output}'" if output else "write it to a file with --output, then run 'roll check'"
    missing = f"{imported.num_unknown} unknown keys were not imported; " if imported.num_unknown else ""
    tasks = "" if imported.tree["tasks"] else "no task could be imported, so add some; "
    yield f"{missing}{tasks}{advice}"


def _line(outcome: Outcome, width: int) -> str:
    value = json.dumps(outcome.value, ensure_ascii=False, default=str)
    shown = value if len(value) <= 30 else f"{value[:27]}..."
    target = f" -> {', '.join(outcome.becomes)}" if outcome.becomes else ""
    note = f"; {outcome.note}" if outcome.note else ""
    return f"  {outcome.key:<{width}}  {shown}{target}{note}"
