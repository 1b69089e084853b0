"""Self-contained HTML pages: no scripts, fonts or styles from elsewhere; all text from a run is escaped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from roll.types import POLICY

_STYLE = """
:root { color-scheme: light dark; --line: #8886; --soft: #8881; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--soft); padding: .5em .7em; margin: .2em 0 .7em;
  border-radius: 6px; }
section { border: 1px solid var(--line); border-radius: 8px; padding: .6em 1em; margin: 1em 0; }
h2 { font-size: 1.05em; margin: .2em 0; } h3 { font-size: .85em; margin: .6em 0 0; opacity: .7; }
table { border-collapse: collapse; } td, th { padding: .2em .8em .2em 0; text-align: left; vertical-align: top; }
.facts { opacity: .8; } input { font: inherit; width: 100%; padding: .3em; } .sides { display: flex; gap: 1em; }
.sides > div { flex: 1; min-width: 0; }
"""
_FILTER = """<p><input placeholder="show only sections with this text" oninput="
for (const each of document.querySelectorAll('section'))
  each.hidden = !each.textContent.toLowerCase().includes(this.value.toLowerCase())"></p>"""


def page(title: str, body: Iterable[str]) -> str:
    """A whole document with a box that filters its sections; `body` is markup."""
    head = f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
    parts = [f"{head}<style>{_STYLE}</style></head><body>", f"<h1>{escape(title)}</h1>", _FILTER, *body]
    return "\n".join([*parts, "</body></html>", ""])


def block(title: str, text: Any) -> str:
    """A titled text with its line breaks; nothing if the text is empty."""
    if text is None or text == "":
        return ""
    return f"<h3>{escape(title)}</h3><pre>{escape(plain(text))}</pre>"


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of texts."""
    lines = ["<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in header) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    return "\n".join(["<table>", *lines, "</table>"])


def sample_section(row: Mapping[str, Any]) -> str:
    """One row of `roll samples --json` as a section."""
    facts = [f"{name} {value:g}" for name, value in row["parts"].items()]
    facts += [f"{name} {row[name]:g}" for name in ("group_mean",) if row[name] is not None]
    facts += ["versions " + " to ".join(map(str, row["versions"]))] if row["versions"] else ["no tokens"]
    reward = "no reward" if row["reward"] is None else f"reward {row['reward']:g}"
    head = f"{row['source']} | task {row['id']} | group {row['group']}, sibling {row['sibling']} | {reward}"
    turns: list[dict[str, Any]] = row["turns"] if len(row["turns"]) > 1 else []
    return "\n".join(
        [
            f"<section><h2>{escape(head)}</h2>",
            f'<p class="facts">{escape(" | ".join([row["outcome"], row["status"], *facts]))}</p>',
            block("reason", row["reason"]),
            block("prompt", row["prompt"]),
            *(_turn(number, turn) for number, turn in enumerate(turns, 1)),
            block("response", row["response"] if not turns else ""),
            block("reference", row["reference"]),
            block("comment", row["comment"]),
            "</section>",
        ]
    )


def plain(value: Any) -> str:
    """Text as it is, other values as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _turn(number: int, turn: Mapping[str, Any]) -> str:
    name = f"turn {number}" + ("" if turn["agent"] == POLICY else f", {turn['agent']}")
    observation = block(f"{name}: observation", turn["observation"])
    return observation + block(f"{name}: response ({turn['finish']}, reward {turn['reward']:g})", turn["response"])
