"""Builds the search for reward hacking from the configuration."""

from __future__ import annotations

from pathlib import Path

from roll.config.schema import Run
from roll.data.templates import Template
from roll.journal.store import Journal
from roll.rewards.vocabulary import Vocabulary
from roll.rollout.hacks import HackDetector
from roll.tracking.directory import METRICS
from roll.tracking.sinks import read_lines


def build_hack_detector(
    run: Run, template: Template, journal: Journal, directory: Path, *, resumed: bool
) -> HackDetector:
    """The search for reward hacking in a run. A resumed run takes earlier steps into account."""
    detector = HackDetector(
        decode=template.decode,
        vocabularies={
            source.name: Vocabulary(entry.kind for entry in source.reward.entries)
            for source in run.tasks
            if source.reward is not None
        },
        journal=journal,
        directory=directory,
    )
    for line in read_lines(directory / METRICS) if resumed else ():
        detector.monitor.observe(line["step"], line)
    return detector
