"""`roll verify`: clean runs have no violation, and each invariant that is broken on purpose is caught."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.crash_points import MODES, RUN, STEPS, train
from roll.checkpoint import Checkpoints
from roll.errors import ConfigError
from roll.journal.events import DevicesLent, GeneratorJoined, GeneratorLeft
from roll.journal.store import Journal
from roll.report.verify import Verification, verify

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("verify")]
ROOT = Path(__file__).parents[2]


PUBLISHED = "SELECT MAX(step) FROM events WHERE kind = 'WeightsPublished'"


def _newest(directory: Path) -> int:
    return max(Checkpoints(directory / "checkpoints", keep=1).steps(), default=0)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished asynchronous run, and one that was killed and resumed."""
    folder = tmp_path_factory.mktemp("runs")
    code, num_points = train(folder / "whole", "asynchronous", None)
    assert code == 0
    middle = num_points * 3 // 4
    for point in (*range(middle, num_points, 3), *range(middle - 1, num_points // 2, -3)):
        shutil.rmtree(folder / "resumed", ignore_errors=True)
        code, _ = train(folder / "resumed", "asynchronous", point)
        if code == 0:  # it had fewer points than the run before
            continue
        assert code == 9, "it was killed"
        if _newest(folder / "resumed/runs/short") < query(folder / "resumed/runs/short", PUBLISHED)[0]:
            break  # weights were published after the last checkpoint
    shutil.copytree(folder / "resumed", folder / "killed")
    assert train(folder / "resumed", "asynchronous", None)[0] == 0
    return folder


@pytest.fixture
def whole(runs: Path, tmp_path: Path) -> Path:
    return copy(runs, tmp_path, "whole")


def copy(runs: Path, folder: Path, name: str) -> Path:
    return shutil.copytree(runs / name / "runs/short", folder / name)


def violated(verification: Verification) -> dict[str, list[str]]:
    return {each.name: each.examples for each in verification.invariants if each.violations}


def change(directory: Path, statement: str, *values: Any) -> None:
    """Change rows of the journal; fails if there are none."""
    with closing(sqlite3.connect(directory / "journal.db")) as connection, connection:
        assert connection.execute(statement, values).rowcount > 0, statement


def query(directory: Path, statement: str) -> Any:
    with closing(sqlite3.connect(directory / "journal.db")) as connection:
        return connection.execute(statement).fetchone()


def set_field(directory: Path, where: str, name: str, value: str) -> None:
    """Change a field of the events that `where` selects; `value` is an SQL expression."""
    change(directory, f"UPDATE events SET body = json_set(body, '$.{name}', {value}) WHERE {where}")


@pytest.mark.parametrize("name", ["whole", "killed", "resumed"])
def test_clean_runs_have_no_violation(runs: Path, tmp_path: Path, name: str) -> None:
    directory = copy(runs, tmp_path, name)
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file() and "journal" not in path.name}
    verification = verify(directory)
    assert violated(verification) == {} and verification.violations == 0
    assert verification.state == ("not ended" if name == "killed" else "finished")
    if name != "killed":
        unchecked = {each.name for each in verification.invariants if not each.checked}
        assert verification.steps == STEPS
        assert unchecked == {"generators that join attest the served version", "attempts are stopped at most once"}
    assert before == {path: path.read_bytes() for path in before}, "nothing is written"


@pytest.mark.sweep
@pytest.mark.parametrize("mode", ["synchronous", "redundant", "lora", "agents"])
def test_other_kinds_of_runs_have_no_violation_either_when_killed_and_resumed(mode: str, tmp_path: Path) -> None:
    code, num_points = train(tmp_path / "whole", mode, None)
    assert code == 0 and violated(verify(tmp_path / "whole/runs/short")) == {}
    assert train(tmp_path / "killed", mode, num_points * 2 // 3)[0] == 9
    assert violated(verify(tmp_path / "killed/runs/short")) == {}, "as the kill left it"
    assert train(tmp_path / "killed", mode, None)[0] == 0
    assert violated(verify(tmp_path / "killed/runs/short")) == {}


def step_event(kind: str, step: int) -> str:
    return f"kind = '{kind}' AND step = {step}"


def train_twice(directory: Path) -> None:
    first = query(
        directory, f"SELECT json_extract(body, '$.groups[0]') FROM events WHERE {step_event('StepStarted', 2)}"
    )
    set_field(directory, step_event("StepStarted", 3), "groups[0]", str(first[0]))


def lose_a_group(directory: Path) -> None:
    change(directory, "DELETE FROM events WHERE id = (SELECT MIN(id) FROM events WHERE kind = 'GroupFiltered')")


def forget_the_reason(directory: Path) -> None:
    set_field(directory, "id = (SELECT MIN(id) FROM events WHERE kind = 'GroupFiltered')", "reason", "''")


def of_last_step() -> str:
    return f"(SELECT MAX(value) FROM step_groups, json_each(attempts) WHERE step = {STEPS})"


def lose_an_attempt(directory: Path) -> None:
    change(directory, f"DELETE FROM trajectories WHERE id = {of_last_step()}")


def train_on_a_failure(directory: Path) -> None:
    change(directory, f"UPDATE trajectories SET status = 'env_failed', reward = NULL WHERE id = {of_last_step()}")


def drop_and_train(directory: Path) -> None:
    id, group = query(
        directory,
        'SELECT id - 1, "group" FROM events WHERE kind = \'GroupReady\' AND "group" = '
        f"(SELECT json_extract(body, '$.groups[0]') FROM events WHERE {step_event('StepStarted', 3)})",
    )
    body = json.dumps({"group": group, "reason": "planted"})
    change(directory, "UPDATE trajectories SET id = -id WHERE id = ?", id) if query(
        directory, f"SELECT COUNT(*) FROM trajectories WHERE id = {id}"
    )[0] else change(directory, "DELETE FROM events WHERE id = ?", id)
    change(directory, "INSERT INTO events VALUES (?, 0, 'GroupStale', NULL, NULL, ?, ?)", id, group, body)


def shrink_a_step(directory: Path) -> None:
    set_field(directory, step_event("StepStarted", STEPS), "groups", "json_array()")


def repeat_a_version(directory: Path) -> None:
    set_field(directory, step_event("WeightsPublished", 3), "version", "1")


def go_back(directory: Path) -> None:
    set_field(directory, step_event("WeightsPublished", 3), "step", "1")


def skip_a_step(directory: Path) -> None:
    change(directory, f"DELETE FROM events WHERE {step_event('StepStarted', 2)}")


def end_early(directory: Path) -> None:
    set_field(directory, "kind = 'RunEnded'", "step", "2")


def publish_before_training(directory: Path) -> None:
    change(directory, f"DELETE FROM events WHERE {step_event('WeightsUpdated', STEPS)}")


def free_slots_early(directory: Path) -> None:
    set_field(directory, step_event("SlotsReleased", 2), "step", "3")


def age_tokens(directory: Path) -> None:
    change(directory, f"UPDATE trajectories SET versions = json_object('0', tokens) WHERE id = {of_last_step()}")


def invent_a_version(directory: Path) -> None:
    change(directory, f"UPDATE trajectories SET versions = json_object('99', tokens) WHERE id = {of_last_step()}")


def sample_before_publication(directory: Path) -> None:
    first = "(SELECT MIN(id) FROM trajectories WHERE tokens)"
    change(directory, f"UPDATE trajectories SET versions = json_object('3', tokens) WHERE id = {first}")


def leave_progress(directory: Path) -> None:
    group = query(directory, 'SELECT MIN("group") FROM step_groups')[0]
    change(directory, "INSERT INTO progress VALUES (NULL, ?, 0, 0, 0, 0, ?, ?, 0)", group, b"\0" * 4, b"\0" * 4)


def stop_an_attempt(directory: Path) -> None:
    change(directory, f"UPDATE trajectories SET status = 'aborted', reward = NULL WHERE id = {of_last_step()}")


def join_with_other_weights(directory: Path) -> None:
    with closing(Journal(directory / "journal.db")) as journal:
        journal.record(GeneratorJoined(generator=1, node="", version=1, digest="float32:1:1", seconds=1.0))


def lend_with_other_weights(directory: Path) -> None:
    with closing(Journal(directory / "journal.db")) as journal:
        journal.record(DevicesLent(generators=(0, 1), version=1, digest="float32:1:1", seconds=1.0))


def leave_unexplained(directory: Path) -> None:
    with closing(Journal(directory / "journal.db")) as journal:
        journal.record(GeneratorLeft(generator=1, reason="", num_requests=1, num_tokens=1))


def lose_tokens(directory: Path) -> None:
    where = "id = (SELECT MAX(id) FROM events WHERE kind = 'TokensGenerated')"
    set_field(directory, where, "tokens", "json_extract(body, '$.tokens') + 7")


def delete_metrics(directory: Path) -> None:
    lines = (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (directory / "metrics.jsonl").write_text("".join(line for line in lines if json.loads(line)["step"] != 2))


def change_state(directory: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    path = directory / f"checkpoints/step-{STEPS}/state.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    edit(content["state"])
    path.write_text(json.dumps(content), encoding="utf-8")


def name_a_later_position(directory: Path) -> None:
    change_state(directory, lambda state: state.update(journal=10**6))


def name_an_earlier_position(directory: Path) -> None:
    change_state(directory, lambda state: state.update(journal=10))


def name_another_step(directory: Path) -> None:
    change_state(directory, lambda state: state.update(step=1))


def damage_a_checkpoint(directory: Path) -> None:
    (directory / f"checkpoints/step-{STEPS}/state.json").write_text("{", encoding="utf-8")


def flip_a_bit(directory: Path) -> None:
    path = directory / f"checkpoints/step-{STEPS}/model.safetensors"
    body = bytearray(path.read_bytes())
    body[-1] ^= 1
    path.write_bytes(body)


def delete_a_checkpoint(directory: Path) -> None:
    shutil.rmtree(directory / f"checkpoints/step-{STEPS}")


def scramble_an_event(directory: Path) -> None:
    change(directory, f"UPDATE events SET body = '{{' WHERE {step_event('StepStarted', 3)}")


PLANTED = {
    "groups are trained at most once": [train_twice],
    "groups are trained, or dropped with a reason": [lose_a_group, forget_the_reason, drop_and_train],
    "trained groups are complete": [lose_an_attempt, train_on_a_failure, shrink_a_step],
    "versions grow, and steps go back only by a rollback": [repeat_a_version, go_back],
    "steps are contiguous": [skip_a_step, end_early],
    "steps are taken, then trained, then published": [publish_before_training, free_slots_early],
    "trained tokens are within the staleness bound": [age_tokens],
    "tokens were sampled by published versions": [invent_a_version, sample_before_publication],
    "trained groups leave no progress behind": [leave_progress],
    "attempts are stopped at most once": [stop_an_attempt],
    "generators that join attest the served version": [
        join_with_other_weights,
        lend_with_other_weights,
        leave_unexplained,
    ],
    "tokens, attempts and groups are accounted for": [lose_tokens],
    "metrics have one line per step": [delete_metrics],
    "checkpoints match the journal": [
        name_a_later_position, name_an_earlier_position, name_another_step, damage_a_checkpoint, delete_a_checkpoint,
    ],
    "files of checkpoints are as they were written": [flip_a_bit],
    "the journal can be read": [scramble_an_event],
}  # fmt: skip
CASES = [(name, plant) for name, plants in PLANTED.items() for plant in plants]


@pytest.mark.parametrize(("name", "plant"), CASES, ids=[plant.__name__ for _, plant in CASES])
def test_a_planted_fault_is_caught_by_the_invariant_that_it_breaks(
    name: str, plant: Callable[[Path], None], whole: Path
) -> None:
    plant(whole)
    verification = verify(whole)
    assert name in violated(verification) and verification.violations > 0
    assert violated(verification)[name], "with an example"


def test_every_invariant_has_a_planted_fault(whole: Path) -> None:
    assert {each.name for each in verify(whole).invariants} == PLANTED.keys()


def test_tokens_of_weights_that_a_rollback_made_void_are_caught(runs: Path, tmp_path: Path) -> None:
    directory = copy(runs, tmp_path, "resumed")
    to_step, at = query(
        directory, "SELECT json_extract(body, '$.to_step'), id FROM events WHERE kind = 'RolledBack' ORDER BY id DESC"
    )
    void = (
        f"SELECT CAST(version AS TEXT) FROM events WHERE kind = 'WeightsPublished' AND step > {to_step} AND id < {at}"
    )
    assert query(directory, void), "weights were published after the checkpoint"
    change(directory, f"UPDATE trajectories SET versions = json_object(({void}), tokens) WHERE id = {of_last_step()}")
    (example,) = violated(verify(directory))["tokens were sampled by published versions"]
    assert "a rollback made void" in example


def roll(*arguments: str, cwd: Path = ROOT) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "roll.cli", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def test_the_command_prints_a_table_or_json_and_its_exit_code_shows_violations(whole: Path) -> None:
    code, text, _ = roll("verify", str(whole))
    assert code == 0 and text.splitlines()[0].startswith(f"{whole}: finished, {STEPS} steps, ")
    age_tokens(whole)
    code, text, error = roll("verify", str(whole))
    assert code == 1 and f"trained tokens are within the staleness bound: step {STEPS}: attempt " in text and not error
    code, text, _ = roll("verify", str(whole), "--json")
    found = json.loads(text)
    assert code == 1 and found["violations"] == sum(each["violations"] for each in found["invariants"]) > 0
    assert roll("verify", str(whole), "rollout.max_staleness=3")[0] == 0, "the bound of a resumed run"


def test_a_damaged_or_missing_journal_is_one_line_and_the_intact_part_is_checked(whole: Path) -> None:
    scramble_an_event(whole)
    code, text, error = roll("verify", str(whole))
    assert code == 1 and ": not ended, 2 steps, " in text.splitlines()[0] and not error
    assert text.splitlines()[1].startswith("the journal is damaged (")
    with closing(sqlite3.connect(whole / "journal.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (page_size,) = connection.execute("PRAGMA page_size").fetchone()
    body = bytearray((whole / "journal.db").read_bytes())
    pages = len(body) // page_size
    for page in range(pages // 2, pages):
        body[page * page_size : page * page_size + 100] = b"\xff" * 100
    (whole / "journal.db").write_bytes(body)
    code, text, error = roll("verify", str(whole))
    assert code == 1 and "the journal is damaged (" in text and "Traceback" not in error
    (whole / "journal.db").write_bytes(b"x" * 5000)
    code, _, error = roll("verify", str(whole))
    assert code == 2 and error.count("\n") == 1 and "not a journal" in error
    (whole / "journal.db").unlink()
    code, _, error = roll("verify", str(whole))
    assert code == 2 and error.count("\n") == 1 and "no journal.db" in error


def test_a_directory_without_a_run_of_training_is_refused(whole: Path) -> None:
    for path in whole.glob("journal.db*"):
        path.unlink()
    Journal(whole / "journal.db").close()
    with pytest.raises(ConfigError, match="has no run of `roll train` yet; give the directory of one"):
        verify(whole)


def test_a_run_can_be_verified_while_it_runs(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(RUN), encoding="utf-8")
    command = [sys.executable, "-m", "roll.cli", "train", "run.yaml", *MODES["asynchronous"], "steps=40"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # for the reward, a function of the benchmark
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    try:
        seen, deadline = set[int](), time.monotonic() + 120
        while process.poll() is None:
            assert time.monotonic() < deadline
            if (tmp_path / "runs/short/journal.db").is_file() and (tmp_path / "runs/short/metrics.jsonl").is_file():
                with suppress(ConfigError):  # before its first event
                    verification = verify(tmp_path / "runs/short")
                    assert violated(verification) == {}
                    seen.add(verification.steps)
            time.sleep(0.05)
        assert process.returncode == 0 and len(seen) > 2
        assert verify(tmp_path / "runs/short").violations == 0
    finally:
        process.kill()
        process.wait()
