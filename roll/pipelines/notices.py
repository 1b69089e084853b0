"""Shows and records notices about problems that the metrics of a run reveal."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

from roll.journal.events import ProblemEnded, ProblemNoticed, RolledBack
from roll.journal.store import Journal
from roll.report.notices import ProblemList, format_notice, to_event
from roll.tracking.log import announce
from roll.tracking.notices.monitor import NoticeMonitor

_LOG = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class NoticeRecorder:
    """Gives the metrics of each step to the detectors; logs their notices and records them in the journal."""

    monitor: NoticeMonitor
    journal: Journal
    directory: Path
    """The run directory, for the command in a notice."""
    _missing: list[ProblemNoticed | ProblemEnded] = field(default_factory=list[ProblemNoticed | ProblemEnded])
    """Events of the step that the run was resumed from, which the process before could not record any more."""

    def observe(self, step: int, metrics: Mapping[str, float]) -> None:
        """Report what begins and what ends with this step."""
        events, self._missing = [*self._missing, *map(to_event, self.monitor.observe(step, metrics))], []
        for event in events:
            self.journal.record(event)
            line = format_notice(event, self.directory)
            if isinstance(event, ProblemNoticed):
                _LOG.warning("%s", line)
            else:
                announce(line)

    def resume(self, lines: Iterable[Mapping[str, Any]], resumed_from: int) -> None:
        """Take the metrics of earlier steps into account; only what no process has recorded is reported."""
        recorded = self._read().of_step(resumed_from)
        for line in lines:
            events = map(to_event, self.monitor.observe(line["step"], line))
            self._missing += [each for each in events if each.step == resumed_from and each not in recorded]

    def _read(self) -> ProblemList:
        kinds = (ProblemNoticed, ProblemEnded, RolledBack)
        entries = [(entry.id, entry.event) for kind in kinds for entry in self.journal.events(kind)]
        problems = ProblemList()
        for _, event in sorted(entries, key=itemgetter(0)):
            problems.apply(event)
        return problems
