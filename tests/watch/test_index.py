import sqlite3
from pathlib import Path

from roll.journal.events import Event
from roll.journal.store import Journal
from roll.report.samples import SampleQuery, sample_rows
from roll.types import Trajectory
from roll.watch.folder import RunFolder
from roll.watch.samples import list_samples, parse_filter, parse_order
from roll.watch.view import RunView
from tests.watch.runs import DEADLINE_S, RunWriter, attempt, column, eventful, turn, viewing, wait_until

EVERYTHING = {"limit": ["500"], "sort": ["id"]}


def all_rows(rows: sqlite3.Connection, **query: str) -> list[dict]:
    parameters = {**EVERYTHING, **{name: [value] for name, value in query.items()}}
    return list_samples(rows, parse_filter(parameters), parse_order(parameters))["rows"]


def test_steps_and_advantages_are_those_of_the_transcripts(tmp_path: Path) -> None:
    eventful(tmp_path / "run")
    expected = list(sample_rows(tmp_path / "run", SampleQuery(last=None)))
    with viewing(tmp_path / "run") as view, view.indexed_rows(DEADLINE_S) as rows:
        table = all_rows(rows)
    assert len(table) == len(expected) == 14
    for name in ("group", "sibling", "step", "reward", "status", "advantage"):
        assert column(table, name) == column(expected, name), name


def test_the_outcome_of_every_attempt_is_known(tmp_path: Path) -> None:
    eventful(tmp_path / "run")
    with viewing(tmp_path / "run") as view, view.indexed_rows(DEADLINE_S) as rows:
        outcomes = column(all_rows(rows), "outcome")
        staleness = column(all_rows(rows, outcome="trained"), "staleness")
    ended = ["trained"] * 2 + ["failed"] + ["filtered"] * 2 + ["trained"] * 2 + ["aborted", "stale"]
    assert outcomes[:9] == ended
    assert outcomes[9:] == ["rolled_back"] * 2 + ["trained", "refused", "waiting"]
    assert staleness == [0, 0, 1, 1, 0]


def test_an_index_that_follows_a_run_equals_one_that_is_built_afterwards(tmp_path: Path) -> None:
    """Each event arrives in an update of its own."""
    eventful(tmp_path / "run")
    with viewing(tmp_path / "run") as view, view.indexed_rows(DEADLINE_S) as rows:
        whole = all_rows(rows)
    names = ("outcome", "step", "staleness", "advantage", "surplus", "rolled_back")
    view = RunView("followed", tmp_path / "followed")

    class FollowedJournal(Journal):
        """Waits after each event until the index has it."""

        def record(self, event: Event) -> int:
            return self._follow(super().record(event))

        def record_trajectory(self, group: int, trajectory: Trajectory) -> int:
            return self._follow(super().record_trajectory(group, trajectory))

        def _follow(self, id: int) -> int:
            self.flush()
            view.wait_current(DEADLINE_S)
            assert view.index is not None and view.index.position == id
            return id

    eventful(tmp_path / "followed", FollowedJournal)
    with view.indexed_rows(DEADLINE_S) as rows:
        followed = all_rows(rows)
    view.close()
    for name in names:
        assert column(followed, name) == column(whole, name), name


def test_search_finds_text_of_prompts_and_responses_in_any_case(tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run")
    run.group(attempt(turn("x", "The Answer is 42."), prompt="What?"))
    run.group(attempt(turn("x", "nothing"), prompt='Why "quoted" * AND (odd)?'))
    run.close()
    with viewing(tmp_path / "run") as view, view.indexed_rows(DEADLINE_S) as rows:
        texts = {"answer IS 4": [0], "42": [0], "a": [0, 1], 'why "Quoted" * and (odd)': [1], "missing": [], "2.": [0]}
        for text, groups in texts.items():
            assert column(all_rows(rows, text=text), "group") == groups, text


def test_attempts_whose_tokens_are_pruned_stay_in_the_table(tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run")
    run.step(1, run.group(attempt()))
    run.step(2, run.group(attempt()))
    run.journal.prune(2)
    run.close()
    with viewing(tmp_path / "run") as view, view.indexed_rows(DEADLINE_S) as rows:
        table = all_rows(rows)
    assert column(table, "prompt") == [None, "1+1="] and column(table, "step") == [1, 2]


def test_nothing_is_written_to_the_directory_of_a_run(tmp_path: Path) -> None:
    eventful(tmp_path / "run")

    def contents() -> dict[str, bytes]:
        """All files but those by which SQLite's readers and writers coordinate."""
        files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
        return {str(path): path.read_bytes() for path in files if not path.name.endswith(("-shm", "-wal"))}

    before = contents()
    with viewing(tmp_path / "run") as view, view.indexed_rows(DEADLINE_S) as rows:
        all_rows(rows)
    folder = RunFolder(tmp_path)
    folder.list_runs()
    folder.close()
    assert contents() == before


def test_a_run_that_ends_while_it_is_shown_leaves_its_journal_in_one_file(tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run")
    run.group(attempt())
    run.journal.flush()
    with viewing(tmp_path / "run") as view:
        run.group(attempt())
        run.close()
        view.wait_current(DEADLINE_S)
        assert view.index is not None and view.index.num_samples == 2
        content = (tmp_path / "run" / "journal.db").read_bytes()
        (tmp_path / "copy").mkdir()
        (tmp_path / "copy" / "journal.db").write_bytes(content)
    with viewing(tmp_path / "copy") as copy:
        assert copy.index is not None and copy.index.num_samples == 2


def test_a_run_that_starts_again_from_nothing_is_shown_from_nothing(tmp_path: Path) -> None:
    eventful(tmp_path / "run")
    with viewing(tmp_path / "run") as view:
        for path in (tmp_path / "run").glob("journal.db*"):
            path.unlink()
        fresh = RunWriter(tmp_path / "run")
        fresh.group(attempt(prompt="fresh"))
        fresh.close()
        view.wait_current(DEADLINE_S)
        wait_until(lambda: view.index is not None and view.index.num_samples == 1 and view.index.num_texts == 1)
        with view.indexed_rows(DEADLINE_S) as rows:
            assert column(all_rows(rows), "prompt") == ["fresh"]
