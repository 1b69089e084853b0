"""The answers about one run, over HTTP."""

import json
from pathlib import Path

import pytest

from roll.journal.events import GeneratorReplaced, ProblemEnded, ProblemNoticed, RunEnded, WorkerReplaced
from roll.types import Status
from roll.watch.faults import generalise
from roll.watch.scheduler import join_short
from tests.watch.runs import Client, RunWriter, attempt, column, eventful, serving, turn


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("runs")
    eventful(folder / "run")
    eventful(folder / "other")
    (folder / "other" / "config.yaml").write_text("name: other\nsteps: 12\n")
    with serving(folder) as client:
        client.settle("run")
        client.settle("other")
        yield client


def titles(client: Client, **sample: str) -> list[str]:
    query = "&".join(f"{name}={value}" for name, value in sample.items())
    row = client.json(f"/api/runs/run/samples?sort=id&{query}")["rows"][0]
    return column(client.json(f"/api/runs/run/samples/{row['id']}")["lineage"], "title")


def test_the_lineage_of_an_attempt_goes_from_admission_to_publication(client: Client) -> None:
    assert sorted(titles(client, group="0")) == sorted(
        [
            *("admitted", "turn 1 sampled", "ended: finished", "group complete", "trained in step 1", "advantage"),
            *("update applied", "published as version 1"),
        ]
    )
    assert "update refused" in titles(client, outcome="refused")
    assert "group filtered, not trained" in titles(client, outcome="filtered")
    assert "group too old, not trained" in titles(client, outcome="stale")
    assert "group abandoned" in titles(client, outcome="failed")
    assert "rolled back" in titles(client, outcome="rolled_back")


def test_a_sample_has_its_conversation_tokens_and_siblings(client: Client) -> None:
    row = client.json("/api/runs/run/samples?text=seven&sort=id")["rows"][0]
    sample = client.json(f"/api/runs/run/samples/{row['id']}")
    said = [(each["role"], each["text"]) for each in sample["conversation"]]
    assert said == [("user", "1+1="), ("assistant", "seven")]
    assert "".join(sample["tokens"]["text"]) == "1+1=seven"
    assert sample["tokens"]["logprob"] == [None] * 4 + [-0.5] * 5
    assert sample["tokens"]["advantage"] == [None] * 4 + [-1, -1, 0, 0, None]
    assert sample["tokens"]["mismatch"] == [None] * 4 + [0.25] * 5
    assert sample["tokens"]["trained"] == [False] * 4 + [True] * 4 + [False]
    part = client.json(f"/api/runs/run/samples/{row['id']}?tokens_from=5&tokens_limit=2")["tokens"]
    assert part["advantage"] == [-1, 0] and part["total"] == 9
    sibling = client.json(f"/api/runs/run/samples/{sample['siblings'][0]['id']}")["tokens"]
    assert sibling["advantage"][-1] is None and sibling["trained"][-1] is True
    assert column(sample["siblings"], "sibling") == [0, 1] and sample["group_mean"] == 0.5
    assert sample["sample"]["advantage"] == -0.5 and sample["score"]["value"] == 0.0
    assert client.get("/api/runs/run/samples/999999").status == client.get("/api/runs/run/samples/x").status == 404


def test_versions_have_their_digest_canary_and_whether_a_rollback_made_them_void(client: Client) -> None:
    versions = client.json("/api/runs/run/versions")["versions"]
    assert column(versions, "version") == [5, 4, 3, 2, 1, 0] and column(versions, "step") == [4, 3, 3, 2, 1, 0]
    assert column(versions, "void") == [False, False, True, False, False, False]
    assert versions[0]["digest"] == "d5" and versions[0]["canary"] is True and versions[0]["refused_updates"] == 1
    page = client.json("/api/runs/run/versions?limit=2&before=4")
    assert column(page["versions"], "version") == [3, 2] and page["next"] == 2


def test_groups_in_flight_are_those_without_an_outcome(client: Client) -> None:
    scheduler = client.json("/api/runs/run/scheduler")
    assert [(group["group"], group["phase"]) for group in scheduler["groups"]] == [(5, "ready"), (8, "ready")]
    assert scheduler["queues"]["ready"] == 2 and scheduler["groups"][0]["siblings"][0]["status"] == "finished"


def test_the_overview_has_series_with_errors_domains_and_outcomes(client: Client) -> None:
    overview = client.json("/api/runs/run/overview")
    assert {domain["domain"]: domain["failed"] for domain in overview["domains"]} == {"math": 0, "code": 1}
    assert overview["numbers"]["trained"] == 5 and overview["state"]["step"] == 4
    assert overview["series"]["step"] == [1, 2, 3, 3, 4]


def test_runs_are_compared_over_steps_tokens_and_time_with_the_keys_that_differ(client: Client) -> None:
    answer = client.json("/api/compare?runs=run,other")
    assert answer["config"] == [{"key": "steps", "values": [9, 12]}]
    assert [run["run"] for run in answer["runs"]] == ["run", "other"] and answer["names"] == ["reward"]
    run = answer["runs"][0]
    assert len(run["step"]) == len(run["wall_s"]) == len(run["tokens"]) == len(run["series"]["reward"]["mean"])
    assert client.get("/api/compare?runs=run,run").status == 400 and client.get("/api/compare?runs=no").status == 404


def test_an_explanation_that_is_refused_shows_the_reason(client: Client) -> None:
    from tests.watch.runs import wait_until

    def computed():
        explain = client.json("/api/runs/run/config")["explain"]
        return explain if explain["state"] == "done" else None

    explain = wait_until(computed)
    assert explain["text"] is None and "model" in explain["error"] and "Traceback" not in explain["error"]


def test_failures_are_grouped_by_cause_with_the_first_and_the_last_example(tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run")
    for number in range(5):
        reason = f"agent of 'seed-{number}': exit code {number}"
        run.group(attempt(turn("q", "x"), status=Status.ENV_FAILED, reason=reason), ready=False)
    run.journal.record(GeneratorReplaced(generator=1, version=0, reason="killed", seconds=2.0))
    run.journal.record(WorkerReplaced(worker="reward 0", reason="killed", seconds=1.0, num_updates=0))
    run.journal.record(RunEnded(step=0, reason="it was enough"))
    run.close()
    with serving(tmp_path) as client:
        client.settle("run")
        faults = client.json("/api/runs/run/faults")
        state = client.json("/api/runs/run/state")
    (cause,) = faults["causes"]
    assert (cause["kind"], cause["count"], cause["cause"]) == ("env_failed", 5, "agent of '...': exit code #")
    assert (cause["first"]["group"], cause["last"]["group"], cause["domains"]) == (0, 4, {"math": 5})
    assert faults["counts"]["GeneratorReplaced"] == faults["counts"]["WorkerReplaced"] == 1
    assert column(faults["events"], "title") == ["worker replaced", "generator replaced"]
    assert faults["rates"] == [{"domain": "math", "status": "env_failed", "count": 5, "of": 5}]
    assert state["state"] == "ended" and state["end"]["reason"] == "it was enough" and state["failures"] == 5


def test_numbers_addresses_and_quoted_parts_do_not_separate_causes() -> None:
    assert generalise("task 'a b' at 0xff: 3.5 s, \"x\"") == "task '...' at #: # s, '...'"


def test_spans_shorter_than_a_point_become_the_activity_with_the_largest_share() -> None:
    spans = [(0.0, 2.0, "wait"), (2.0, 2.1, "a"), (2.1, 2.5, "b"), (2.5, 2.6, "a"), (3.0, 5.0, "wait")]
    assert join_short(spans, 1.0) == [(0.0, 2.0, "wait"), (2.0, 2.6, "b"), (3.0, 5.0, "wait")]


def test_every_answer_has_what_the_run_has_written_before_the_request(tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run")
    run.journal.flush()
    with serving(tmp_path) as client:
        assert client.json("/api/runs/run/samples")["total"] == 0
        run.step(1, run.group(attempt()))
        run.journal.flush()
        state = client.json("/api/runs/run/state")
        assert (state["position"], state["lines"]) == (run.journal.position(), 1)
        assert client.json("/api/runs/run/samples")["total"] == 1
        assert client.json("/api/runs/run/overview")["numbers"]["trained"] == 1
    run.close()


def test_a_problem_is_one_notice_which_is_no_warning_after_its_end(tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run")
    for step, domain in ((3, "math"), (4, "code")):
        reason = f"{domain} fell to 0"
        event = ProblemNoticed(step=step, kind="domain_break", metric="reward", reason=reason, domain=domain)
        run.journal.record(event)
    end = ProblemEnded(step=9, kind="domain_break", metric="reward", reason="it is over", since=3, domain="math")
    run.journal.record(end)
    run.close()
    with serving(tmp_path) as client:
        state = client.settle("run")
        code, math = client.json("/api/runs/run/notices")["notices"]
    assert (math["step"], math["level"], math["ended"]) == (3, "info", {"step": 9, "text": "it is over"})
    assert (code["step"], code["level"], code["ended"]) == (4, "warning", None)
    assert state["notices"] == 1


def test_kinds_of_events_that_this_release_does_not_know_are_shown(tmp_path: Path) -> None:
    import sqlite3

    run = RunWriter(tmp_path / "run")
    run.close()
    with sqlite3.connect(tmp_path / "run" / "journal.db") as connection:
        body = json.dumps({"step": 3, "domain": "math", "text": "the reward is constant"})
        insert = "INSERT INTO events VALUES (?, 1.5, ?, 3, NULL, NULL, ?)"
        connection.execute(insert, (99, "ThingNoticed", body))
    with serving(tmp_path) as client:
        state = client.settle("run")
        (notice,) = client.json("/api/runs/run/notices")["notices"]
    assert state["notices"] == 1 and notice["kind"] == "ThingNoticed" and notice["level"] == "warning"
    assert notice["text"] == "the reward is constant" and notice["step"] == 3 and notice["domain"] == "math"
