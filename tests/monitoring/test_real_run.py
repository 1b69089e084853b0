"""A real run with a fixed port, what it serves, and a real Prometheus that scrapes it and has its alerts."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from roll.monitoring.catalogue import FAMILIES

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("monitored run")]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "monitoring"
ALERTS = EXAMPLES / "alerts.yml"
RUN = """\
name: watched
threads: 1
steps: 1000000
model:
  shape: {alphabet: "0123456789+=", hidden: 32, layers: 1, heads: 2, kv_heads: 1, mlp: 64, max_seq_len: 64}
algorithm: grpo
tasks:
  - {name: sums, data: {kind: arithmetic, count: 200}, reward: exact}
rollout: {groups_per_step: 4, group_size: 4, max_seq_len: 32, max_new_tokens: 6}
actor_train: {optimizer: {lr: 1e-3}}
actor_infer: {max_num_seqs: 16}
validation:
  tasks: [{name: held_out, data: {kind: arithmetic, split: held_out, count: 20}, reward: exact}]
checkpoint: {every: 2}
journal: {keep_steps: 2}
metrics: {port: 0}
logging: {format: json}
"""
DEADLINE_S = 300.0
T = TypeVar("T")


def wait_for(poll: Callable[[], T | None], what: str) -> T:
    """The first result of `poll` that is not None."""
    deadline = time.monotonic() + DEADLINE_S
    while (result := poll()) is None:
        assert time.monotonic() < deadline, what
        time.sleep(0.2)
    return result


def fetch(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("watched")


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    """Address of the server of a run that has finished a few steps and goes on."""
    (folder / "run.yaml").write_text(RUN)
    with (folder / "out").open("w") as out:
        run = subprocess.Popen(
            [sys.executable, "-m", "roll", "train", "run.yaml"], cwd=folder, stdout=out, stderr=out, env=os.environ
        )
        try:

            def address() -> str | None:
                assert run.poll() is None, (folder / "out").read_text()
                match = re.search(r"http://[\d.:]+", (folder / "out").read_text())
                return match and match[0]

            base = wait_for(address, "the run prints the address")
            assert fetch(f"{base}/readyz")[0] == 503, "a run that has just begun is not ready"
            wait_for(lambda: fetch(f"{base}/readyz")[0] == 200 or None, "the run becomes ready")
            wait_for(lambda: value(base, "roll_checkpoint_step") or None, "the run writes a checkpoint")
            yield base
            run.send_signal(signal.SIGINT)
            assert run.wait(DEADLINE_S) == 130, (folder / "out").read_text()
        finally:
            run.kill()
            run.wait()


def value(base: str, name: str) -> float | None:
    match = re.search(rf"^{name} (\S+)$", fetch(f"{base}/metrics")[1], re.MULTILINE)
    return match and float(match[1])


def served_names(base: str) -> set[str]:
    return set(re.findall(r"^(roll_\w+)", fetch(f"{base}/metrics")[1], re.MULTILINE))


def test_a_run_serves_its_catalogue_except_what_it_does_not_measure(url: str) -> None:
    missing = set(FAMILIES) - served_names(url)
    devices = {name for name in FAMILIES if name.startswith("roll_device_")}
    others = {"roll_reference_kl_nats", "roll_sft_loss", "roll_sft_accuracy_ratio", "roll_proxy_refusals_total"}
    assert missing <= devices | others
    status, line = fetch(f"{url}/healthz")
    assert status == 200 and line.startswith("ok: progress ")


def test_a_scrape_has_what_the_run_does_now(url: str) -> None:
    _, text = fetch(f"{url}/metrics")
    assert 'roll_run_info{algorithm="grpo",model="new",run="watched",version="' in text
    assert 'roll_domain_held_out_accuracy_ratio{domain="held_out"}' in text
    before = value(url, "roll_step")
    assert before is not None
    wait_for(lambda: (value(url, "roll_step") or 0) > before or None, "the step rises")
    assert (value(url, "roll_groups_admitted_total") or 0) >= 4 * before
    ended = re.findall(r'^roll_attempts_total\{status="(?:finished|truncated)"\} (\S+)$', text, re.MULTILINE)
    step = re.search(r"^roll_step (\S+)$", text, re.MULTILINE)
    assert step and sum(map(float, ended)) >= 16 * float(step[1])
    slots = value(url, "roll_group_slots")
    assert slots == 4 and 0 <= (value(url, "roll_groups_in_flight") or 0) <= slots
    resident = re.search(r'^roll_resident_memory_bytes\{process="controller"\} (\S+)$', text, re.MULTILINE)
    limit = value(url, "roll_memory_limit_bytes")
    assert resident and limit and 1e7 < float(resident[1]) < limit


def test_a_run_in_json_prints_and_logs_nothing_else(url: str, folder: Path) -> None:
    printed = (folder / "out").read_text().splitlines()[:-1]
    logged = (folder / "runs/watched/controller.log").read_text().splitlines()[:-1]
    for line in (*printed, *logged):
        entry = json.loads(line)
        assert {"time", "level", "run", "role", "rank", "message"} <= set(entry), line
        assert (entry["run"], entry["role"], entry["rank"]) == ("watched", "controller", 0)
    last = json.loads(next(line for line in reversed(logged) if "| reward" in line))
    assert last["message"].startswith(f"step {last['step']}/")


def expressions() -> list[str]:
    """All queries of the dashboard and the alerts, with the dashboard's variables filled in."""
    panels = json.loads((EXAMPLES / "grafana.json").read_text())["panels"]
    drawn = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    assert len(drawn) > 30
    return [each.replace('instance="$instance"', 'job="roll"').replace("$__rate_interval", "1m") for each in drawn]


def test_every_metric_of_the_dashboard_and_the_alerts_is_served(url: str) -> None:
    text = ALERTS.read_text() + (EXAMPLES / "grafana.json").read_text()
    used = set(re.findall(r"\broll_[a-z_]+", text))
    assert used and used <= served_names(url)


needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="prometheus is not installed; `make programs` installs the package where it can",
)


def promtool(*arguments: str | Path) -> None:
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_prometheus
def test_promtool_accepts_the_configuration_the_rules_and_the_metrics(url: str) -> None:
    promtool("check", "config", EXAMPLES / "prometheus.yml")
    promtool("check", "rules", ALERTS)
    text = fetch(f"{url}/metrics")[1]
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, ""), "names and units as Prometheus wants them"


CASES: dict[str, dict[str, str]] = {
    "RollDown": {'up{job="roll"}': "'1 0x300'"},
    "RollNoProgress": {"roll_progress_age_seconds": "'0+60x300'"},
    "RollRewardCollapse": {"roll_reward_mean": "'0.6x270 0.1x30'"},
    "RollHeldOutFall": {"roll_held_out_accuracy_ratio": "'0.7x250 0.5x50'"},
    "RollReplacementsRising": {'roll_worker_replacements_total{role="actor_infer"}': "'0+0.1x300'"},
    "RollControllerRestarts": {"roll_controller_restarts_total": "'0+0.1x300'"},
    "RollAttemptsFail": {
        'roll_attempts_total{status="finished"}': "'0+70x300'",
        'roll_attempts_total{status="env_failed"}': "'0+30x300'",
    },
    "RollUpdatesRefused": {'roll_updates_total{result="refused"}': "'0+1x300'"},
    "RollJournalLag": {"roll_journal_lag_seconds": "'0+1x300'"},
    "RollCheckpointOld": {"roll_checkpoint_timestamp_seconds": "'0x300'"},
    "RollMemory": {
        'roll_resident_memory_bytes{process="controller"}': "'60x300'",
        'roll_resident_memory_bytes{process="workers"}': "'35x300'",
        "roll_memory_limit_bytes": "'100x300'",
    },
}
QUIET = {
    'up{job="roll"}': "'1x300'",
    "roll_progress_age_seconds": "'5x300'",
    "roll_reward_mean": "'0.5x300'",
    "roll_held_out_accuracy_ratio": "'0.5+0.001x300'",
    'roll_worker_replacements_total{role="actor_infer"}': "'0+0.01x300'",
    'roll_attempts_total{status="finished"}': "'0+90x300'",
    'roll_attempts_total{status="env_failed"}': "'0+10x300'",
    "roll_journal_lag_seconds": "'1x300'",
    "roll_checkpoint_timestamp_seconds": "'0+60x300'",
    'roll_resident_memory_bytes{process="controller"}': "'60x300'",
    "roll_memory_limit_bytes": "'100x300'",
}


def firing(folder: Path, series: dict[str, str], name: str, *, fires: bool) -> None:
    """Let promtool play five hours of these series, and check at their end whether the alert fires."""
    rows = "".join(f"      - {{series: '{each}', values: {values}}}\n" for each, values in series.items())
    expected = "alerts" if fires else "none"
    count = f'count(ALERTS{{alertname="{name}", alertstate="firing"}}) or vector(0)'
    (folder / f"{name}-{expected}.yml").write_text(
        f"rule_files: [{ALERTS}]\nevaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n{rows}"
        f"    promql_expr_test:\n      - expr: '{count}'\n        eval_time: 299m\n"
        f"        exp_samples: [{{labels: '{{}}', value: {int(fires)}}}]\n"
    )
    promtool("test", "rules", folder / f"{name}-{expected}.yml")


@needs_prometheus
@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires_when_it_should_and_not_otherwise(name: str, tmp_path: Path) -> None:
    assert name in ALERTS.read_text()
    firing(tmp_path, CASES[name], name, fires=True)
    firing(tmp_path, QUIET, name, fires=False)


def test_every_alert_has_a_case() -> None:
    assert set(re.findall(r"alert: (\w+)", ALERTS.read_text())) == set(CASES)


@contextlib.contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """The address of a Prometheus with the example's configuration, which scrapes the target each second."""
    config = (EXAMPLES / "prometheus.yml").read_text().replace("127.0.0.1:9400", target).replace("15s", "1s")
    (folder / "prometheus.yml").write_text(config)
    shutil.copy(ALERTS, folder)
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "prometheus.log").open("w+") as log:
        server = subprocess.Popen([*command, "--web.listen-address=127.0.0.1:0"], stdout=log, stderr=log)
        try:

            def address() -> str | None:
                assert server.poll() is None, (folder / "prometheus.log").read_text()
                for link in Path(f"/proc/{server.pid}/fd").iterdir():
                    with contextlib.suppress(OSError):
                        if (match := re.match(r"socket:\[(\d+)\]", os.readlink(link))) and match[
                            1
                        ] in listening_ports():
                            return f"http://127.0.0.1:{listening_ports()[match[1]]}"
                return None

            yield wait_for(address, "Prometheus listens")
        finally:
            server.terminate()
            server.wait(60)


def listening_ports() -> dict[str, int]:
    """Ports of listening sockets by inode."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {row[9]: int(row[1].partition(":")[2], 16) for row in rows if row[3] == "0A"}


def query(server: str, expression: str) -> list[Any]:
    """The result of a query, now; empty while Prometheus starts."""
    try:
        status, text = fetch(f"{server}/api/v1/query?query={urllib.parse.quote(expression)}")
    except urllib.error.URLError:
        return []
    assert status == 200 or status == 503, f"{expression}: {text}"
    return json.loads(text)["data"]["result"] if status == 200 else []


@needs_prometheus
def test_a_real_prometheus_scrapes_the_run_and_answers_every_query_of_the_dashboard(url: str, tmp_path: Path) -> None:
    first = value(url, "roll_step")
    assert first is not None
    with prometheus(tmp_path, url.removeprefix("http://")) as server:

        def stepped() -> float | None:
            rows = query(server, 'roll_step{job="roll"}')
            return float(rows[0]["value"][1]) if rows and float(rows[0]["value"][1]) > first else None

        step = wait_for(stepped, "Prometheus has a later step")
        assert first < step <= (value(url, "roll_step") or 0)
        assert query(server, "up")[0]["value"][1] == "1"
        assert query(server, "roll_run_info")[0]["metric"]["run"] == "watched"
        missing = set(expressions())

        def answered() -> bool | None:
            missing.difference_update([each for each in missing if query(server, each)])
            return None if missing else True

        wait_for(answered, f"queries of the dashboard without an answer: {missing}")
        rules = json.loads(fetch(f"{server}/api/v1/rules")[1])["data"]["groups"][0]["rules"]
        assert [rule["name"] for rule in rules if rule["health"] not in ("ok", "unknown")] == []
        assert len(rules) == len(CASES)
