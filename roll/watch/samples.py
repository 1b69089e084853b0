"""The table of attempts: filters, order and pages, as queries of the index."""

from __future__ import annotations

import base64
import json
import math
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from roll.errors import ConfigError

COLUMNS = (
    *("id", "group", "sibling", "task", "domain", "ended", "status", "reward", "reason", "tokens", "oldest", "newest"),
    *("step", "staleness", "outcome", "advantage", "surplus", "rolled_back"),
)
SORTS = ("id", "reward", "tokens", "staleness", "step", "advantage", "group")
_RANGES = ("reward", "tokens", "staleness", "advantage", "step")
_NAMES = ("domain", "status", "outcome", "task")
_MAX_COUNT = 10_000
"""Most matches of a text search that are counted."""
_TRIGRAMS = 12
"""Trigrams of a search that narrow it down before the whole text is compared."""
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")
_MAX_LIMIT = 500
Conditions = list[tuple[str, list[Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFilter:
    """Conditions on attempts, as SQL with values."""

    conditions: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    text: str = ""
    """Lower-case text that the attempts contain."""

    def where(self) -> tuple[str, list[Any]]:
        """All conditions, but the one on the text."""
        parts = [condition for condition, _ in self.conditions]
        return " AND ".join(parts) or "1", [value for _, values in self.conditions for value in values]


def parse_filter(query: Mapping[str, Sequence[str]]) -> SampleFilter:
    """The filter in the parameters of an address; empty parameters are ignored."""
    conditions: list[tuple[str, tuple[Any, ...]]] = []
    for name in _NAMES:
        values = [value for text in query.get(name, ()) for value in ([text] if name == "task" else text.split(","))]
        if chosen := [_clean(value) for value in values if value]:
            conditions.append((f"samples.{name} IN ({', '.join('?' * len(chosen))})", tuple(chosen)))
    for name in _RANGES:
        conditions += _range(name, _single(query, name))
    for name, condition in (("group", 'samples."group" = ?'), ("version", "? BETWEEN oldest AND newest")):
        if text := _single(query, name):
            conditions.append((condition, (_integer(name, text),)))
    return SampleFilter(conditions=tuple(conditions), text=_clean(_single(query, "text")).lower())


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _single(query: Mapping[str, Sequence[str]], name: str) -> str:
    return next((text for text in query.get(name, ()) if text), "")


def _range(name: str, text: str) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Conditions of `5`, `A:B`, `A:` or `:B`; both ends are included."""
    if not text:
        return
    low, colon, high = text.partition(":")
    if not colon:
        yield f"samples.{name} = ?", (_number(name, low),)
        return
    if low.strip():
        yield f"samples.{name} >= ?", (_number(name, low),)
    if high.strip():
        yield f"samples.{name} <= ?", (_number(name, high),)


def _number(name: str, text: str) -> float:
    if not _NUMBER.fullmatch(text.strip()) or not math.isfinite(float(text)):
        raise ConfigError(f"{name}: expected a number or a range such as 0:0.5 (got {_shown(text)}); change it")
    return float(text)


def _integer(name: str, text: str) -> int:
    number = _number(name, text)
    if number != int(number) or abs(number) > 2**53:
        raise ConfigError(f"{name}: expected a whole number (got {_shown(text)}); change it")
    return int(number)


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 40 else f"{text[:40]}...")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOrder:
    """Order of a table, and where its page begins."""

    column: str = "id"
    descending: bool = True
    limit: int = 100
    after: tuple[float | None, int] | None = None
    """Value and id of the last row of the page before."""


def parse_order(query: Mapping[str, Sequence[str]]) -> SampleOrder:
    """Order, limit and cursor in the parameters of an address."""
    sort = _single(query, "sort") or "-id"
    column = sort.removeprefix("-")
    if column not in SORTS:
        raise ConfigError(
            f"sort: no such column (got {_shown(sort)}); use {', '.join(SORTS)}, or -{SORTS[0]} and so on"
        )
    limit = _integer("limit", _single(query, "limit") or "100")
    if not 1 <= limit <= _MAX_LIMIT:
        raise ConfigError(f"limit: expected 1 to {_MAX_LIMIT} (got {limit}); change it")
    cursor = _single(query, "cursor")
    return SampleOrder(
        column=column, descending=sort.startswith("-"), limit=limit, after=_parse_cursor(cursor) if cursor else None
    )


def _parse_cursor(text: str) -> tuple[float | None, int]:
    try:
        value, id = cast(list[Any], json.loads(base64.urlsafe_b64decode(text.encode("ascii"))))
        if isinstance(id, int) and (value is None or isinstance(value, int | float)):
            return value, id
    except (ValueError, TypeError):
        pass
    raise ConfigError(f"cursor: not one of a page before (got {_shown(text)}); leave it out")


def list_samples(rows: sqlite3.Connection, chosen: SampleFilter, order: SampleOrder) -> dict[str, Any]:
    """One page of the table."""
    where, values = _with_text(chosen)
    total = _count(rows, chosen, where, values)
    column = f'samples."{order.column}"'
    direction = "DESC" if order.descending else "ASC"
    if order.after is not None:
        condition, more = _after(column, order)
        where, values = f"({where}) AND {condition}", [*values, *more]
    ending = f"{direction}, samples.id {direction}" if order.column != "id" else direction
    nulls = "" if order.column == "id" else f"{column} IS NULL, "
    ids = [
        row[0]
        for row in rows.execute(
            f"SELECT samples.id FROM samples {_JOIN if chosen.text else ''} WHERE {where} "
            f"ORDER BY {nulls}{column} {ending} LIMIT ?",
            [*values, order.limit + 1],
        )
    ]
    page = read_rows(rows, ids[: order.limit])
    cursor = None
    if len(ids) > order.limit:
        last = page[-1]
        cursor = base64.urlsafe_b64encode(json.dumps([last[order.column], last["id"]]).encode()).decode()
    return {"total": total, "next": cursor, "rows": page}


_JOIN = "JOIN texts ON texts.id = samples.id"


def _with_text(chosen: SampleFilter) -> tuple[str, list[Any]]:
    where, values = chosen.where()
    if not chosen.text:
        return where, values
    if grams := _trigrams(chosen.text):
        where, values = f"samples.id IN (SELECT rowid FROM words WHERE words MATCH ?) AND {where}", [grams, *values]
    return f"({where}) AND instr(texts.text, ?) > 0", [*values, chosen.text]


def _trigrams(text: str) -> str:
    """A query for some trigrams of the text; empty if it is too short to have one."""
    grams = list(dict.fromkeys(text[start : start + 3] for start in range(len(text) - 2)))
    usable = [gram for gram in grams if "\0" not in gram]
    some = usable[:: max(1, -(-len(usable) // _TRIGRAMS))]
    return " AND ".join('"' + gram.replace('"', '""') + '"' for gram in some)


def _count(rows: sqlite3.Connection, chosen: SampleFilter, where: str, values: list[Any]) -> int | None:
    """Number of matches; None if a text has too many."""
    if not chosen.text:
        return int(rows.execute(f"SELECT COUNT(*) FROM samples WHERE {where}", values).fetchone()[0])
    query = f"SELECT COUNT(*) FROM (SELECT 1 FROM samples {_JOIN} WHERE {where} LIMIT {_MAX_COUNT + 1})"
    number = int(rows.execute(query, values).fetchone()[0])
    return None if number > _MAX_COUNT else number


def _after(column: str, order: SampleOrder) -> tuple[str, list[Any]]:
    """Condition for the rows behind the cursor; rows without the value come last."""
    assert order.after is not None
    value, id = order.after
    sign = "<" if order.descending else ">"
    if order.column == "id":
        return f"samples.id {sign} ?", [id]
    if value is None:
        return f"({column} IS NULL AND samples.id {sign} ?)", [id]
    return f"({column} {sign} ? OR ({column} = ? AND samples.id {sign} ?) OR {column} IS NULL)", [value, value, id]


def read_rows(rows: sqlite3.Connection, ids: Sequence[int]) -> list[dict[str, Any]]:
    """Rows of the table, in the order of `ids`."""
    names = ", ".join(f'samples."{name}"' for name in COLUMNS)
    query = f"""SELECT {names}, prompt, response, comment FROM samples LEFT JOIN texts ON texts.id = samples.id
        WHERE samples.id IN ({", ".join("?" * len(ids))})"""
    by_id = {row[0]: _row(row) for row in rows.execute(query, list(ids))}
    return [by_id[id] for id in ids if id in by_id]


def _row(values: Sequence[Any]) -> dict[str, Any]:
    row = dict(zip((*COLUMNS, "prompt", "response", "comment"), values, strict=True))
    oldest, newest = row.pop("oldest"), row.pop("newest")
    flags = {name: bool(row[name]) for name in ("surplus", "rolled_back")}
    return {**row, **flags, "versions": None if oldest is None else [oldest, newest]}


def facets(rows: sqlite3.Connection) -> dict[str, Any]:
    """Values to filter by, with the number of attempts."""
    counts = {
        plural: dict(rows.execute(f"SELECT {name}, COUNT(*) FROM samples GROUP BY 1 ORDER BY 2 DESC").fetchall())
        for name, plural in (("domain", "domains"), ("status", "statuses"), ("outcome", "outcomes"))
    }
    names = ("step", "reward", "tokens", "staleness")
    columns = ", ".join(f"MIN({name}), MAX({name})" for name in names)
    limits = rows.execute(f"SELECT {columns}, COUNT(*) FROM samples").fetchone()
    ends = {name: _ends(limits[2 * index : 2 * index + 2]) for index, name in enumerate(names)}
    ends["steps"] = ends.pop("step")
    return {**counts, **ends, "total": limits[-1]}


def _ends(pair: Sequence[Any]) -> list[Any] | None:
    return None if pair[0] is None else list(pair)


def reward_histogram(rows: sqlite3.Connection, chosen: SampleFilter, bins: int = 20) -> dict[str, Any]:
    """Numbers of the chosen attempts by reward, in equal bins from the lowest to the highest reward of all attempts."""
    low, high = rows.execute("SELECT MIN(reward), MAX(reward) FROM samples").fetchone()
    if low is None:
        return {"edges": [], "counts": []}
    width = (high - low) / bins or 1.0
    where, values = _with_text(chosen)
    query = f"""SELECT MIN(CAST((reward - ?) / ? AS INTEGER), ?), COUNT(*)
        FROM samples {_JOIN if chosen.text else ""} WHERE reward IS NOT NULL AND {where} GROUP BY 1"""
    counts = [0] * bins
    for index, number in rows.execute(query, [low, width, bins - 1, *values]):
        counts[index] = number
    return {"edges": [low + width * index for index in range(bins + 1)], "counts": counts}
