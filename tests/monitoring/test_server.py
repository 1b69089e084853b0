"""What the server answers over real connections, from a real journal, to clients that behave and to others."""

import asyncio
import http.client
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from roll.errors import ConfigError
from roll.journal.events import (
    CheckpointSaved,
    Event,
    GeneratorReplaced,
    GroupAdmitted,
    GroupFailed,
    ProxyRequestRefused,
    RunStarted,
    TokensGenerated,
    WeightsPublished,
    WeightsUpdated,
    WorkerReplaced,
)
from roll.journal.store import Journal
from roll.monitoring.catalogue import FAMILIES
from roll.monitoring.monitor import LiveState, Monitor, RunLabels
from roll.monitoring.server import MetricsServer, bind
from roll.tracking.log import controller_log
from roll.tracking.phases import PhaseWatch

LABELS = RunLabels(run="tiny", version="1.2", algorithm="grpo", model="new", steps=9, trajectories_per_step=8)
EVENTS: tuple[Event, ...] = (
    RunStarted(config_digest="x"),
    WeightsPublished(version=3, step=2, digest="d", seconds={"send": 0.25}),
    GroupAdmitted(group=0, task="t", domain="sums", birth=0),
    GroupAdmitted(group=1, task="t", domain="sums", birth=0),
    GroupFailed(group=0, reason="r"),
    WeightsUpdated(step=1, refused=False),
    WeightsUpdated(step=2, refused=True),
    GeneratorReplaced(generator=0, version=1, reason="r"),
    WorkerReplaced(worker="reward worker 1", reason="r", seconds=1.0, num_updates=0),
    ProxyRequestRefused(session="s", status=429, reason="r", count=5),
    TokensGenerated(step=1, tokens=70, unrecorded=0, discarded=3, late=0, bad=0, redispatched=2),
    CheckpointSaved(step=2, path="p"),
)
COUNTS = {
    "roll_weights_version": 3,
    "roll_weight_sync_seconds{part=send}": 0.25,
    "roll_groups_admitted_total": 2,
    "roll_groups_dropped_total{cause=failed}": 1,
    "roll_updates_total{result=applied}": 1,
    "roll_updates_total{result=refused}": 1,
    "roll_worker_replacements_total{role=actor_infer}": 1,
    "roll_worker_replacements_total{role=reward worker}": 1,
    "roll_worker_replacements_total{role=actor_train}": 0,
    "roll_proxy_refusals_total{status=429}": 5,
    "roll_tokens_sampled_total": 70,
    "roll_tokens_discarded_total": 3,
    "roll_requests_redispatched_total": 2,
    "roll_checkpoint_step": 2,
    "roll_starts_total": 1,
    "roll_journal_events_total": len(EVENTS),
    "roll_journal_lag_events": 0,
}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def serving(clock: Callable[[], float] = time.monotonic, *, stalled_after_s: float = 60.0) -> Iterator[MetricsServer]:
    monitor = Monitor(LABELS, stalled_after_s=stalled_after_s, clock=clock)
    with closing(MetricsServer(monitor, bind("127.0.0.1", 0))) as server:
        server.start()
        yield server


def get(server: MetricsServer, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    host = server.url.removeprefix("http://")
    with closing(http.client.HTTPConnection(host, timeout=60)) as connection:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read().decode()


def values(server: MetricsServer) -> dict[str, float]:
    """All samples of a scrape that is not shared with an earlier one."""
    server._shared = None
    status, text = get(server, "/metrics")
    assert status == 200, text
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sample.labels.items())
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_counters_are_those_of_the_journal_and_continue_after_a_restart(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / "journal.db")) as journal, serving() as server:
        server.monitor.attach(journal)
        for event in EVENTS:
            journal.record(event)
        journal.flush()
        found = values(server)
        assert {name: found[name] for name in COUNTS} == COUNTS
        journal.record(GroupAdmitted(group=2, task="t", domain="sums", birth=0))
        journal.flush()
        assert values(server)["roll_groups_admitted_total"] == 3
    with closing(Journal(tmp_path / "journal.db")) as journal, serving() as server:
        assert "roll_groups_admitted_total" not in values(server), "0 would look like a counter that starts again"
        server.monitor.attach(journal)
        assert values(server)["roll_groups_admitted_total"] == 3


def test_metrics_of_a_step_are_those_that_the_sink_received() -> None:
    with serving() as server:
        server.monitor.steps.write(1, {"time/step": 2.0, "time/update": 0.5, "time/validate": 1.0, "reward/mean": 0.5})
        newest = {"time/step": 4.0, "time/update": 0.25, "reward/mean": 0.75, "domain/a b/reward": 0.5, "unknown": 1.0}
        server.monitor.steps.write(2, newest | {"validation/accuracy": 0.5, "validation/held/accuracy": 0.25})
        server.monitor.steps.write(3, newest)
        found = values(server)
    expected = {
        "roll_step": 3,
        "roll_step_seconds": 4,
        "roll_reward_mean": 0.75,
        "roll_domain_reward_mean{domain=a b}": 0.5,
        "roll_held_out_accuracy_ratio": 0.5,
        "roll_domain_held_out_accuracy_ratio{domain=held}": 0.25,
        "roll_step_phase_seconds{phase=update}": 0.25,
        "roll_phase_seconds_total{phase=update}": 1.0,
        "roll_phase_seconds_total{phase=validate}": 1.0,
        "roll_trajectories_per_second": 2.0,
    }
    assert {name: found[name] for name in expected} == expected
    assert "roll_step_phase_seconds{phase=validate}" not in found, "the newest step has no validation"


def test_the_page_has_help_and_type_of_each_metric_and_escapes_labels(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / "journal.db")) as journal, serving() as server:
        server.monitor.attach(journal)
        server.monitor.live = LiveState(
            num_slots=lambda: 8,
            num_free=lambda: 3,
            num_ready=lambda: 2,
            num_tokens=lambda: 0,
            attempts=lambda: {"reward": 4},
        )
        server.monitor.steps.write(1, {'domain/"quoted"\n\\/reward': 1.0})
        status, text = get(server, "/metrics")
    assert status == 200
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for family in families.values():
        known = FAMILIES[family.name] if family.name in FAMILIES else FAMILIES[f"{family.name}_total"]
        assert family.documentation == known.help
        assert family.type == ("counter" if known.kind == "counter" else "gauge")
    (sample,) = families["roll_domain_reward_mean"].samples
    assert sample.labels == {"domain": '"quoted"\n\\'}
    assert [each.value for each in families["roll_groups_in_flight"].samples] == [5]
    assert families["roll_attempts_in_flight"].samples[0].labels == {"state": "reward"}


def test_a_client_may_ask_for_openmetrics() -> None:
    with serving() as server:
        status, text = get(server, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
        assert (status, text[-6:]) == (200, "# EOF\n")
        assert "# EOF" not in get(server, "/metrics")[1]


def test_a_run_is_ready_once_its_own_process_has_published_a_version(tmp_path: Path) -> None:
    clock = Clock()
    with closing(Journal(tmp_path / "journal.db")) as journal:
        journal.record(WeightsPublished(version=0, step=0, digest="of an earlier process"))
    with closing(Journal(tmp_path / "journal.db")) as journal, serving(clock) as server:
        clock.now += 7
        assert get(server, "/readyz") == (503, "not ready: load, for 7 s\n")
        watch = PhaseWatch(clock=clock)
        watch.enter("start")
        server.monitor.watch = watch
        server.monitor.attach(journal)
        clock.now += 2
        assert get(server, "/readyz") == (503, "not ready: start, for 2 s\n")
        journal.record(RunStarted(config_digest="x"))
        journal.flush()
        assert get(server, "/readyz") == (503, "not ready: first weight sync, for 2 s\n")
        assert values(server)["roll_ready"] == 0
        journal.record(WeightsPublished(version=1, step=0, digest="d"))
        journal.flush()
        assert get(server, "/readyz") == (200, "ready\n") and values(server)["roll_ready"] == 1


def test_a_run_is_unhealthy_after_a_time_without_events_steps_tokens_or_phases(tmp_path: Path) -> None:
    clock, tokens = Clock(), [0]
    with closing(Journal(tmp_path / "journal.db")) as journal, serving(clock, stalled_after_s=60) as server:
        monitor = server.monitor
        monitor.watch = watch = PhaseWatch(clock=clock)
        monitor.attach(journal)
        monitor.live = LiveState(
            num_slots=lambda: 1,
            num_free=lambda: 1,
            num_ready=lambda: 0,
            num_tokens=lambda: tokens[0],
            attempts=dict[str, int],
        )

        def progress(what: str) -> None:
            match what:
                case "event":
                    journal.record(RunStarted(config_digest="x"))
                case "step":
                    monitor.steps.write(1, {})
                case "token":
                    tokens[0] += 1
                case _:
                    watch.enter("update")

        for what in ("event", "step", "token", "phase"):
            progress(what)
            assert get(server, "/healthz")[0] == 200, what
            clock.now += 59
            assert get(server, "/healthz")[0] == 200
            clock.now += 2
            status, line = get(server, "/healthz")
            assert (status, line.startswith("stalled: no progress for 61 s, in phase ")) == (503, True)
        clock.now += 9
        limit = "metrics.stalled_after_s is 60"
        assert get(server, "/healthz")[1] == f"stalled: no progress for 70 s, in phase update for 70 s; {limit}\n"
        assert values(server)["roll_progress_age_seconds"] == 70


def test_the_lag_of_the_journal_is_what_the_file_does_not_have_yet(tmp_path: Path) -> None:
    clock = Clock()
    with closing(Journal(tmp_path / "journal.db")) as journal, serving(clock) as server:
        server.monitor.attach(journal)
        journal.record(RunStarted(config_digest="x"))
        journal.flush()
        assert values(server)["roll_journal_lag_events"] == 0
        position = journal.position()
        server.monitor._lag._position = lambda: position + 40  # as if the disk had stopped here
        assert values(server)["roll_journal_lag_events"] == 40
        clock.now += 25
        found = values(server)
        assert (found["roll_journal_lag_events"], found["roll_journal_lag_seconds"]) == (40, 25)


def test_the_journal_closes_without_leftovers_while_it_is_scraped(tmp_path: Path) -> None:
    with serving() as server:
        with closing(Journal(tmp_path / "journal.db")) as journal:
            server.monitor.attach(journal)
            journal.record(RunStarted(config_digest="x"))
            journal.flush()
            assert values(server)["roll_starts_total"] == 1
        assert [path.name for path in tmp_path.iterdir()] == ["journal.db"]
        assert values(server)["roll_starts_total"] == 1, "the last counts stay"


def test_broken_clients_do_not_matter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with controller_log(tmp_path / "log"), serving() as server:
        capsys.readouterr()
        host, port = server.url.removeprefix("http://").split(":")
        open_ones = [socket.create_connection((host, int(port))) for _ in range(80)]
        for number, each in enumerate(open_ones):
            each.sendall(
                (b"GET /metrics HTT", b"\x16\x03\x01\xff\xfe\r\n\r\n", b"GET /metrics HTTP/1.1\r\n\r\n")[number % 3]
            )
        for each in open_ones[::2]:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset instead of an end
            each.close()
        assert get(server, "/healthz")[0] == 200 and get(server, "/metrics")[0] == 200
        for each in open_ones[1::2]:
            each.close()
    assert capsys.readouterr() == ("", ""), "the terminal is for the run"


def test_other_paths_and_methods_are_refused_and_a_fault_of_the_monitor_is_an_answer() -> None:
    with serving() as server:
        assert get(server, "/")[0] == 404 and get(server, "/metrics", "POST")[0] == 405
        assert get(server, "/healthz", "HEAD") == (200, "")

        def fail() -> int:
            raise RuntimeError("no number")

        server.monitor.live = LiveState(
            num_slots=lambda: 1, num_free=fail, num_ready=fail, num_tokens=lambda: 0, attempts=dict[str, int]
        )
        assert get(server, "/metrics") == (500, "RuntimeError: no number\n")
        assert get(server, "/readyz")[0] == 503


def test_a_port_that_is_taken_is_refused_in_one_line() -> None:
    with closing(bind("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError) as raised:
            bind("127.0.0.1", port)
    assert str(raised.value) == (
        f"metrics: 127.0.0.1:{port}: cannot listen there (Address already in use); "
        "choose another metrics.port, or 0 for any"
    )


def test_an_event_loop_that_is_blocked_does_not_block_the_answers() -> None:
    async def block(server: MetricsServer) -> list[int]:
        return [get(server, path)[0] for path in ("/metrics", "/healthz")]  # a blocking call: nothing else runs here

    with serving() as server:
        assert asyncio.run(block(server)) == [200, 200]


def test_without_a_port_nothing_is_served_and_nothing_is_announced(capsys: pytest.CaptureFixture[str]) -> None:
    monitor: Any = Monitor(LABELS, stalled_after_s=60)
    with closing(MetricsServer(monitor, None)) as server:
        assert server.start() is monitor
    assert capsys.readouterr() == ("", "")
