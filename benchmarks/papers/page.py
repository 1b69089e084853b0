"""Rewrites the picture and the table of one experiment on the page `docs/papers.md`; the prose around them stays."""

from __future__ import annotations

from pathlib import Path

from benchmarks.papers.figure import Figure, table
from roll.errors import ConfigError


def rewrite(page: Path, name: str, figure: Figure) -> None:
    """Replace the block of the experiment on the page."""
    page.write_text(with_block(page.read_text(encoding="utf-8"), name, figure), encoding="utf-8")


def with_block(text: str, name: str, figure: Figure) -> str:
    """The text of the page with a new block for the experiment; an error if the page has no markers for it."""
    begin, end = f"<!-- {name}: written by `roll bench paper {name}` -->", f"<!-- end of {name} -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ConfigError(f"docs/papers.md: no markers for {name}; restore the lines {begin!r} and {end!r}, once each")
    before, after = text.partition(begin)[0], text.partition(end)[2]
    claims = [f"- {'Shown' if claim.shown else '**Not shown**'}: {claim.text}." for claim in figure.claims]
    picture = f"![{figure.title}](papers/{name}.svg)"
    return before + "\n".join([begin, "", picture, "", *table(figure), "", *claims, "", end]) + after
