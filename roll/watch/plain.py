"""The same data as HTML tables, made here: for browsers without JavaScript. All text from a run is escaped."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any
from urllib.parse import quote, unquote, urlencode

from roll.errors import ConfigError, RollError, one_line
from roll.report.html import block, table
from roll.watch.folder import RunFolder
from roll.watch.lineage import trace
from roll.watch.notices import list_notices
from roll.watch.sample import describe_sample, find_body
from roll.watch.samples import SORTS, list_samples, parse_filter, parse_order
from roll.watch.token_columns import TokenRange
from roll.watch.view import NotFound, RunView

_FIELDS = ("step", "domain", "status", "outcome", "reward", "tokens", "staleness", "text", "sort")
_FIRST_S = 5.0
Parameters = Mapping[str, Sequence[str]]


class PlainPages:
    """Pages of the runs of a folder."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def page(self, path: str, parameters: Parameters) -> tuple[int, str]:
        """Status and HTML of a page below `/plain`; every error is a page, too."""
        try:
            title, body = self._build(path, parameters)
        except NotFound as error:
            return 404, _page("Not found", [_paragraph(str(error))])
        except ConfigError as error:
            return 400, _page("Not possible", [_paragraph(str(error))])
        except (RollError, sqlite3.Error, OSError) as error:
            return 503, _page("Not readable now", [_paragraph(one_line(str(error)))])
        return 200, _page(title, body)

    def _build(self, path: str, parameters: Parameters) -> tuple[str, Iterable[str]]:
        match [part for part in path.split("/")[2:] if part]:
            case []:
                return "Runs", self._runs()
            case [run]:
                view = self._open(run)
                return view.name, _run_page(view, parameters)
            case [run, id] if id.isascii() and id.isdecimal() and len(id) < 16:
                view = self._open(run)
                return f"{view.name}: sample {id}", _sample_page(view, int(id))
            case _:
                raise NotFound("no such page; begin at /plain")

    def _open(self, run: str) -> RunView:
        view = self._folder.view(unquote(run))
        view.wait_current(_FIRST_S)
        return view

    def _runs(self) -> Iterable[str]:
        runs = self._folder.list_runs()["runs"]
        cells = [
            [_link(f"/plain/{quote(run['run'], safe='')}", run["run"])]
            + [escape(visible(run[name])) for name in ("state", "step", "reward", "held_out", "error")]
            for run in runs
        ]
        yield _table(("run", "state", "step", "reward", "held-out", "error"), cells)


def _run_page(view: RunView, parameters: Parameters) -> Iterable[str]:
    state = view.state()
    yield f'<p><a href="/plain">All runs</a></p>{_paragraph(_headline(state))}'
    if view.index is None:
        yield _paragraph(view.error or "No journal is read yet.")
    last = sorted(view.metrics.last().items())
    metrics = [[visible(name), str(step), f"{value:.5g}"] for name, (step, value) in last]
    yield _details("Metrics", table(("metric", "step", "value"), metrics))
    if view.index is None:
        return
    with view.indexed_rows(_FIRST_S) as rows:
        notices = list_notices(rows, before=None, limit=50)
        names = ("step", "level", "kind", "text")
        lines = [[_clock(each["time"]), *(visible(each[name]) for name in names)] for each in notices]
        yield _details("Notices", table(("time", "step", "level", "kind", "text"), lines))
        answer = list_samples(rows, parse_filter(parameters), parse_order(parameters))
    yield _form(parameters)
    yield _paragraph("matches: " + ("more than 10,000" if answer["total"] is None else f"{answer['total']:,}"))
    yield _samples_table(view.name, answer["rows"])
    if answer["next"]:
        query = {name: list(values) for name, values in parameters.items()} | {"cursor": [answer["next"]]}
        yield f'<p><a href="?{escape(urlencode(query, doseq=True))}">next page</a></p>'


def _headline(state: Mapping[str, Any]) -> str:
    index = state["index"]
    text = f"{state['state']}, step {visible(state['step'])} of {visible(state['steps'])}"
    if state["end"]:
        text += f", ended: {state['end']['reason']}"
    if index["phase"] in ("records", "texts"):
        text += f"; reading {index['phase']}: {index[index['phase']]:,} of {index['total']:,} attempts"
    return text + (f"; {state['salvaged']}" if state["salvaged"] else "")


def _form(parameters: Parameters) -> str:
    values = {name: escape(visible(next(iter(parameters.get(name, ())), ""))) for name in _FIELDS}
    fields = [f'<label>{name} <input name="{name}" value="{value}"></label>' for name, value in values.items()]
    hint = f"ranges: 3, 2:5, :0; sort: {', '.join(SORTS)}, - before it: descending"
    return f'<form method="get">{" ".join(fields)} <button>filter</button></form>{_paragraph(hint)}'


_COLUMNS = ("id", "step", "domain", "task", "group", "status", "outcome", "reward", "tokens", "staleness")
_TEXTS = ("comment", "prompt", "response")


def _samples_table(run: str, samples: Sequence[Mapping[str, Any]]) -> str:
    cells = [
        [_link(f"/plain/{quote(run, safe='')}/{row['id']}", str(row["id"]))]
        + [escape(visible(row[name])) for name in (*_COLUMNS[1:], *_TEXTS)]
        for row in samples
    ]
    return _table((*_COLUMNS, *_TEXTS), cells)


def _sample_page(view: RunView, id: int) -> Iterable[str]:
    with view.indexed_rows(_FIRST_S) as rows:
        sample = describe_sample(rows, id, view.decoder, TokenRange(limit=0), view.metrics)
        lineage = trace(rows, sample["sample"], find_body(rows, id))
    address = f"/plain/{quote(view.name, safe='')}"
    links = [_link(address, "all samples")]
    links += [_link(f"{address}/{sample[name]}", name) for name in ("previous", "next") if sample[name] is not None]
    yield f"<p>{' '.join(links)}</p>"
    yield table(("field", "value"), [[name, visible(value)] for name, value in sample["sample"].items()])
    if sample["pruned"]:
        yield _paragraph("Its tokens were pruned (journal.keep_steps).")
    for message in sample["conversation"]:
        yield block(str(message["role"]), visible(message["text"]))
    yield block("reference", visible(sample["reference"]) if sample["reference"] is not None else "")
    if sample["score"]:
        yield block("score", visible(sample["score"]))
    rows_of = [[_clock(entry["time"]), entry["title"], visible(entry["text"])] for entry in lineage]
    yield "<h2>Lineage</h2>" + table(("time", "what", "details"), rows_of)
    yield "<h2>Siblings</h2>" + _samples_table(view.name, sample["siblings"])


def visible(value: Any) -> str:
    """A value as text, with control characters as escapes."""
    if value is None:
        return ""
    text = f"{value:.5g}" if isinstance(value, float) else str(value)
    return "".join(each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in text)


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def _paragraph(text: str) -> str:
    return f"<p>{escape(visible(text))}</p>"


def _link(address: str, text: str) -> str:
    return f'<a href="{escape(address)}">{escape(visible(text))}</a>'


def _details(title: str, body: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of cells that are markup."""
    lines = ["<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in header) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows]
    return "\n".join(["<table>", *lines, "</table>"])


def _page(title: str, body: Iterable[str]) -> str:
    head = (
        f'<meta charset="utf-8"><title>{escape(visible(title))}</title><link rel="stylesheet" href="/assets/plain.css">'
    )
    start = f'<!doctype html><html lang="en"><head>{head}</head><body><h1>{escape(visible(title))}</h1>'
    return "\n".join([start, *body, "</body></html>", ""])
