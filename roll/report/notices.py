"""Notices about problems of a run, as lines with what to look at; the journal has them as events."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from roll.config.notices import NoticeKind
from roll.journal.events import Event, ProblemEnded, ProblemNoticed, RolledBack
from roll.tracking.notices.catalogue import CATALOGUE
from roll.tracking.notices.monitor import Notice


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem that was noticed in steps that were not rolled back."""

    noticed: ProblemNoticed
    ended: ProblemEnded | None
    """None: it is still there."""


def to_event(notice: Notice) -> ProblemNoticed | ProblemEnded:
    """The event of a notice, with the metrics and keys to look at."""
    if notice.since is not None:
        return ProblemEnded(
            step=notice.step,
            kind=notice.kind,
            metric=notice.metric,
            reason=notice.text,
            since=notice.since,
            domain=notice.domain,
        )
    entry = CATALOGUE[notice.kind]
    metrics = [name.format(domain=notice.domain) for name in entry.metrics]
    return ProblemNoticed(
        step=notice.step,
        kind=notice.kind,
        metric=notice.metric,
        reason=notice.text,
        domain=notice.domain,
        metrics=tuple(dict.fromkeys([notice.metric, *metrics])),
        keys=entry.keys,
    )


def format_notice(event: ProblemNoticed | ProblemEnded, directory: Path) -> str:
    """The event in one line."""
    known = CATALOGUE.get(cast(NoticeKind, event.kind))
    title = known.title if known else event.kind  # a later release may have other kinds
    where = f" in {event.domain!r}" if event.domain else ""
    if isinstance(event, ProblemEnded):
        return f"step {event.step}: {title}{where} since step {event.since} is over: {event.reason}"
    return (
        f"step {event.step}: {title}{where}: {event.reason}; look at the metrics {', '.join(event.metrics)}, at the "
        f"keys {', '.join(event.keys)}, and at `{command(event, directory)}`"
    )


def command(event: ProblemNoticed, directory: Path) -> str:
    """The command that shows attempts with the problem."""
    known, run = CATALOGUE.get(cast(NoticeKind, event.kind)), shlex.quote(str(directory))
    if known is not None and known.held_out:
        return f"roll compare {run}"
    domain = f" --domain {shlex.quote(event.domain)}" if event.domain else ""
    return f"roll samples {run} --step {event.step}{domain}"


@dataclass(slots=True)
class ProblemList:
    """Collects the problems from events in the order of the journal."""

    _events: list[ProblemNoticed | ProblemEnded] = field(default_factory=list[ProblemNoticed | ProblemEnded])

    def apply(self, event: Event) -> None:
        """Add an event; a rollback removes those of later steps."""
        if isinstance(event, ProblemNoticed | ProblemEnded):
            self._events.append(event)
        elif isinstance(event, RolledBack):
            self._events = [each for each in self._events if each.step <= event.to_step]

    def of_step(self, step: int) -> list[ProblemNoticed | ProblemEnded]:
        """The events of a step."""
        return [event for event in self._events if event.step == step]

    def problems(self) -> Iterator[Problem]:
        """The problems in the order they were noticed."""
        ended = {(each.kind, each.metric, each.since): each for each in self._events if isinstance(each, ProblemEnded)}
        for event in self._events:
            if isinstance(event, ProblemNoticed):
                yield Problem(noticed=event, ended=ended.get((event.kind, event.metric, event.step)))
