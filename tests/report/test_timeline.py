import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.errors import ConfigError
from roll.journal.events import GroupAdmitted, RunStarted, StepStarted, WeightsPublished
from roll.journal.store import Journal
from roll.report.timeline import write
from roll.types import Finish, Score, Segment, Status, Task, Trajectory, Turn

SECOND = 1_000_000


def attempt(*turns: tuple[float, float], status: Status = Status.FINISHED, queued_s: float = 0.0) -> Trajectory:
    made = [
        Turn(
            observation=np.zeros(1, np.int32),
            sampled=np.zeros(2, np.int32),
            sampler_logprobs=np.zeros(2, np.float32),
            versions=np.zeros(2, np.int32),
            finish=Finish.STOP,
            generated_s=generated_s,
            queued_s=queued_s,
            waited_s=waited_s,
        )
        for generated_s, waited_s in turns
    ]
    return Trajectory(
        task=Task(id="t", domain="math"),
        sibling=1,
        segments=(Segment(turns=tuple(made)),),
        status=status,
        score=Score(0.0) if status.valid else None,
    )


def run(directory: Path, num_groups: int = 3) -> None:
    """Group g is trained in step g + 1; each has a failed attempt before the good one."""
    journal = Journal(directory / "journal.db")
    journal.record(RunStarted(config_digest=""))
    journal.record(WeightsPublished(version=0, step=0, digest=""))
    for group in range(num_groups):
        began = time.time()
        journal.record(GroupAdmitted(group=group, task="t", domain="math", birth=0))
        time.sleep(0.02)
        journal.record_trajectory(group, attempt((0.005, 0.0), status=Status.ENV_FAILED))
        time.sleep(0.03)
        journal.record_trajectory(group, attempt((0.010, 0.004), (0.006, 0.0)))
        journal.record(StepStarted(step=group + 1, groups=(group,)))
        journal.record_span("generator 0", "generate", began, time.time())
        journal.record_span("trainer 0", "idle: groups", began, time.time())
        journal.record(WeightsPublished(version=group + 1, step=group + 1, digest=""))
    journal.close()


def read(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["traceEvents"]


def tracks(events: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        if event["ph"] in "be":
            found.setdefault(event["id"], []).append(event)
    return found


def test_a_trace_has_the_format_of_the_viewers(tmp_path: Path):
    run(tmp_path)
    assert write(tmp_path, tmp_path / "trace.json") == 6
    events = read(tmp_path / "trace.json")
    assert {event["ph"] for event in events} == {"M", "X", "b", "e"}
    for event in events:
        assert isinstance(event["ts"], int) and isinstance(event["pid"], int) and isinstance(event["name"], str)
        assert event["ph"] != "X" or event["dur"] >= 0
    names = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["ph"] == "M"}
    assert set(names.values()) == {"workers", "samples", "generator 0", "trainer 0"}
    assert {names[event["pid"], event["tid"]] for event in events if event["ph"] == "X"} == {"generator 0", "trainer 0"}
    for track in tracks(events).values():
        times = [event["ts"] for event in track]
        assert times == sorted(times)
        opened: list[str] = []
        for event in track:
            if event["ph"] == "b":
                opened.append(event["name"])
            else:
                assert opened.pop() == event["name"]
        assert opened == []


def test_each_attempt_shows_its_phases_in_order(tmp_path: Path):
    run(tmp_path, 1)
    write(tmp_path, tmp_path / "trace.json")
    failed, good = tracks(read(tmp_path / "trace.json")).values()
    assert [event["name"] for event in failed if event["ph"] == "b"] == [
        "group 0.1",
        "generating turn 1",
        "the controller",
    ]
    assert [event["name"] for event in good if event["ph"] == "b"] == [
        "group 0.1",
        "generating turn 1",
        "environment",
        "generating turn 2",
        "scoring",
        "ready",
        "trained in step 1",
    ]
    starts = {event["name"]: event["ts"] for event in good if event["ph"] == "b"}
    assert starts["environment"] - starts["generating turn 1"] == pytest.approx(10_000, abs=2)
    assert starts["generating turn 2"] - starts["environment"] == pytest.approx(4_000, abs=2)
    assert starts["group 0.1"] >= failed[-1]["ts"]  # the second attempt begins where the first ended
    assert good[0]["args"] == {
        "task": "t",
        "domain": "math",
        "status": "finished",
        "reward": 0.0,
        "tokens": 4,
        "step": 1,
    }


def test_queueing_for_a_generator_is_a_separate_phase(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    journal.record(GroupAdmitted(group=0, task="t", domain="math", birth=0))
    time.sleep(0.03)
    journal.record_trajectory(0, attempt((0.010, 0.004), (0.006, 0.0), queued_s=0.003))
    journal.close()
    write(tmp_path, tmp_path / "trace.json")
    (track,) = tracks(read(tmp_path / "trace.json")).values()
    marks = [(event["name"], event["ph"], event["ts"] - track[0]["ts"]) for event in track[1:-1]]
    expected = [
        ("queued for turn 1", 0, 3_000),
        ("generating turn 1", 3_000, 10_000),
        ("environment", 10_000, 14_000),
        ("queued for turn 2", 14_000, 17_000),
        ("generating turn 2", 17_000, 20_000),
    ]
    for index, (name, began, ended) in enumerate(expected):
        assert marks[2 * index] == (name, "b", pytest.approx(began, abs=2))
        assert marks[2 * index + 1] == (name, "e", pytest.approx(ended, abs=2))


def test_turns_of_an_earlier_process_do_not_reach_past_the_attempts_end(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    journal.record(RunStarted(config_digest=""))
    journal.record(GroupAdmitted(group=0, task="t", domain="math", birth=0))
    time.sleep(0.01)
    journal.record_trajectory(0, attempt((500.0, 0.0), (1.0, 0.0)))
    journal.close()
    write(tmp_path, tmp_path / "trace.json")
    (track,) = tracks(read(tmp_path / "trace.json")).values()
    assert [event["name"] for event in track if event["ph"] == "b"] == ["group 0.1", "generating turn 1"]
    assert max(event["ts"] for event in track) == track[-1]["ts"] < SECOND


def test_spans_have_their_times(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    journal.record(RunStarted(config_digest=""))
    began = next(journal.events()).time
    journal.record_span("w", "update", began + 2, began + 5)
    journal.close()
    write(tmp_path, tmp_path / "trace.json")
    (span,) = [event for event in read(tmp_path / "trace.json") if event["ph"] == "X"]
    assert (span["name"], span["ts"], span["dur"]) == ("update", 2 * SECOND, 3 * SECOND)


def test_steps_select_samples_and_their_window_of_time(tmp_path: Path):
    run(tmp_path)
    assert write(tmp_path, tmp_path / "trace.json", "2:3") == 4
    events = read(tmp_path / "trace.json")
    assert {event["name"] for event in events if event["name"].startswith("group")} == {"group 1.1", "group 2.1"}
    assert sum(event["ph"] == "X" for event in events) == 4  # two workers while two groups lived
    for wrong in ("2", "a:b", "3:2", "-1:2"):
        with pytest.raises(ConfigError, match="--steps: expected the first and the last step"):
            write(tmp_path, tmp_path / "trace.json", wrong)
    with pytest.raises(ConfigError, match="nothing was trained on in steps 8 to 9"):
        write(tmp_path, tmp_path / "trace.json", "8:9")


def test_pruned_attempts_are_one_phase(tmp_path: Path):
    run(tmp_path, 1)
    journal = Journal(tmp_path / "journal.db")
    journal.prune(before_step=9)
    journal.close()
    write(tmp_path, tmp_path / "trace.json")
    names = {event["name"] for event in read(tmp_path / "trace.json")}
    assert "attempt (pruned)" in names


def test_a_file_that_cannot_be_written_is_refused_in_one_line(tmp_path: Path):
    run(tmp_path)
    with pytest.raises(ConfigError, match=r"--output .*trace.json: cannot be written \(No such file or directory\)"):
        write(tmp_path, tmp_path / "nowhere" / "trace.json")
