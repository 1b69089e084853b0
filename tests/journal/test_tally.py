"""Numbers of events without the events themselves."""

import sqlite3
from contextlib import closing
from pathlib import Path

from roll.journal.events import RolledBack, RunStarted, WeightsPublished
from roll.journal.records import KindCount
from roll.journal.store import KINDS_SINCE, STATUSES_SINCE, Journal


def test_a_tally_has_the_number_and_the_newest_event_of_each_kind(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / "journal.db")) as journal:
        assert journal.tally().position == 0 and journal.tally().kinds == {}
        journal.record(RunStarted(config_digest="x"))
        for version, step in ((4, 9), (5, 3)):  # the newest is not the one with the highest step
            journal.record(WeightsPublished(version=version, step=step, digest="d"))
        journal.record(RolledBack(to_step=2, reason="r"))
        tally = journal.tally()
        newest = tally.kinds["WeightsPublished"]
        assert (tally.position, set(tally.kinds)) == (4, {"RunStarted", "WeightsPublished", "RolledBack"})
        assert newest == KindCount(number=2, id=3, time=newest.time, step=3, version=5)
        assert (tally.kinds["RolledBack"].step, tally.kinds["RolledBack"].version) == (None, None)
        later = journal.tally(after=3)
        assert (later.position, list(later.kinds)) == (4, ["RolledBack"])
        assert journal.tally(after=4).position == 4


def test_a_tally_reads_the_new_rows_alone(tmp_path: Path) -> None:
    """A scrape per second of a run of weeks would otherwise read all of its events each time."""
    Journal(tmp_path / "journal.db").close()
    with closing(sqlite3.connect(tmp_path / "journal.db")) as connection:
        for query in (KINDS_SINCE, STATUSES_SINCE):
            plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", (7,))]
            assert plan[0].endswith("USING INTEGER PRIMARY KEY (rowid>?)"), plan
