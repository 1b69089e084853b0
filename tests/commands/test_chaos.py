"""`roll chaos`: real runs whose processes are killed and stopped; only processes of the run are signalled."""

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from roll.cluster.process_state import is_stopped
from roll.cluster.process_tree import find_by_environment, send_signal, track
from roll.commands.chaos.faults import inject
from roll.commands.chaos.outcome import ChaosPlan, ChaosReport, InjectedFault, format_chaos
from roll.commands.chaos.run import run_chaos
from roll.commands.chaos.workers import Target, recovers
from roll.journal.events import (
    AttemptRetried,
    ControllerRestarted,
    GeneratorReplaced,
    RunStarted,
    WeightsPublished,
    WorkerReplaced,
)
from roll.planted import plant
from roll.types import Status

RUN = """\
name: run
threads: 1
steps: 100000
model:
  shape: {alphabet: "0123456789-?+=ehiglortw", hidden: 16, layers: 1, heads: 2, kv_heads: 1, mlp: 32, max_seq_len: 64}
algorithm: grpo
tasks:
  - {name: sums, data: {kind: arithmetic, count: 50}, reward: "scored:score", share: 0.5}
  - {name: guess, env: {kind: guess_number, max_turns: 3}, share: 0.5}
rollout: {groups_per_step: 2, group_size: 3, max_seq_len: 64, max_new_tokens: 4, request_timeout_s: 8}
checkpoint: {every: 5}
tracking: {tensorboard: false}
"""
SCORED = """\
import time


def score(task, response):
    time.sleep(0.02)
    return sum(letter in "02468" for letter in response) / 4
"""
SERVICES = ("rewards.workers=2", "rewards.timeout_s=4", "envs.workers=2", "envs.grace_s=3", "rollout.env_timeout_s=4")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run.yaml").write_text(RUN, encoding="utf-8")
    (tmp_path / "scored.py").write_text(SCORED, encoding="utf-8")
    return tmp_path


def under_chaos(folder: Path, plan: ChaosPlan, *overrides: str) -> ChaosReport:
    settings = [f"directory={folder}", "rollout.max_failed_groups=100", *overrides]
    with (folder / "output").open("w") as output:
        return run_chaos(Path("run.yaml"), settings, plan, output=output, folder=folder)


def check(report: ChaosReport, folder: Path, *expected: tuple[str, str]) -> None:
    text = f"{format_chaos(report)}\n{(folder / 'output').read_text()}"
    assert [(fault.kind, fault.fault) for fault in report.faults] == list(expected), text
    assert all(fault.recovered_s is not None for fault in report.faults) and report.violations == 0, text
    assert report.verification is not None and report.verification.steps > 0
    assert not report.orphans and not report.leaked


def plan(*kinds: str, faults: tuple[str, ...] = ("KILL",), num: int) -> ChaosPlan:
    return ChaosPlan(
        kinds=kinds, every_s=1.0, faults=faults, num_faults=num, in_turn=True, limit_s=1200, hang_timeout_s=20
    )


@pytest.mark.slow
def test_a_controller_killed_before_the_first_checkpoint_starts_a_new_journal(folder: Path) -> None:
    report = under_chaos(folder, plan("controller", num=1), "checkpoint.every=0")
    check(report, folder, ("controller", "KILL"))
    assert report.faults[0].recovery == "ControllerRestarted"
    assert "has no checkpoint yet; starts again from step 0" in (folder / "output").read_text()


@pytest.mark.slow
def test_reward_and_environment_workers_are_killed_and_stopped_and_a_foreign_process_is_not(folder: Path) -> None:
    foreign = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(500)", "3", "reward worker 0"])
    try:
        report = under_chaos(folder, plan("reward", "environment", faults=("KILL", "STOP"), num=4), *SERVICES)
        assert foreign.poll() is None and foreign.pid not in {fault.pid for fault in report.faults}
    finally:
        foreign.kill()
        foreign.wait()
    check(report, folder, *((kind, name) for kind in ("reward", "environment") for name in ("KILL", "STOP")))
    causes = [fault.cause for fault in report.faults]
    assert "killed by SIGKILL" in causes[0] and "it was killed" in causes[1], causes
    assert "killed by SIGKILL" in causes[2] and "did not respond within 3 s" in causes[3], causes


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_generators_are_killed_and_stopped_with_cause_and_seconds_from_the_journal(folder: Path) -> None:
    ray = ("executor=ray", "actor_infer.workers=2", "actor_infer.max_num_seqs=3", "ray.max_replacements=10")
    report = under_chaos(folder, plan("generator", faults=("KILL", "STOP"), num=2), *ray, "rollout.max_staleness=1")
    check(report, folder, ("generator", "KILL"), ("generator", "STOP"))
    killed, stopped = report.faults
    assert killed.recovered_s is not None and "ended during" in killed.cause
    assert stopped.recovered_s is not None and "was stopped by a signal" in stopped.cause
    assert f"{killed.worker}: {killed.cause.partition(';')[0]}" in format_chaos(report)


@pytest.mark.slow
def test_a_killed_controller_is_started_again_and_resumes(folder: Path) -> None:
    report = under_chaos(folder, plan("controller", num=1), "checkpoint.every=1")
    check(report, folder, ("controller", "KILL"))
    fault = report.faults[0]
    assert fault.recovery == "ControllerRestarted"
    assert fault.cause == f"the controller (pid {fault.pid}) was killed by SIGKILL"


@pytest.mark.slow
def test_exceptions_and_slow_workers_cost_an_attempt_or_time_and_no_restart(folder: Path) -> None:
    faults = ("exception", "slow")
    report = under_chaos(folder, plan("reward", "environment", faults=faults, num=4), *SERVICES)
    check(report, folder, *((kind, name) for kind in ("reward", "environment") for name in faults))
    scored, _, stepped, _ = report.faults
    assert scored.recovery == stepped.recovery == "AttemptRetried"
    assert "RuntimeError: fault 1 of roll chaos" in scored.cause and "reward 'scored:score'" in scored.cause
    assert "RuntimeError: fault 3 of roll chaos" in stepped.cause and "environment" in stepped.cause
    for slow in report.faults[1::2]:
        assert slow.recovery in ("WeightsPublished", "WorkerReplaced") and slow.recovered_s is not None


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_a_transfer_whose_sender_is_killed_is_repeated_and_a_killed_raylet_restarts_the_run(folder: Path) -> None:
    ray = ("executor=ray", "weight_sync.transport=gloo", "ray.max_replacements=10", "checkpoint.every=1")
    report = under_chaos(folder, plan("transfer", "raylet", num=2), *ray)
    check(report, folder, ("transfer", "KILL"), ("raylet", "KILL"))
    cut, gone = report.faults
    assert cut.worker == "actor_train 0" and cut.recovery == "WorkerReplaced" and "ended during send" in cut.cause
    assert gone.recovery == "ControllerRestarted" and "is gone" in gone.cause


LEAVES = """\
import mmap, subprocess

def score(task, response):
    global left, memory
    if "left" not in globals():
        left = subprocess.Popen(["sleep", "500"], start_new_session=True)
        memory = open("/dev/shm/roll-test-NAME", "w+b")
        memory.truncate(4096)
        memory = mmap.mmap(memory.fileno(), 4096)
    return 0.0
"""


@pytest.mark.slow
def test_shared_memory_that_outlives_the_run_is_reported_and_the_supervisor_leaves_no_process(folder: Path) -> None:
    memory = Path(f"/dev/shm/roll-test-{os.getpid()}")
    (folder / "scored.py").write_text(LEAVES.replace("NAME", str(os.getpid())), encoding="utf-8")
    try:
        report = under_chaos(folder, plan("environment", num=1), *SERVICES[2:])
        assert report.leaked == (str(memory),) and report.violations == 1 and not report.orphans
    finally:
        memory.unlink(missing_ok=True)


def test_a_signal_reaches_only_the_process_that_was_found() -> None:
    environment = {**os.environ, "ROLL_TEST_FOUND": "1"}
    child = subprocess.Popen(["sleep", "500"], env=environment)
    try:
        while not (processes := find_by_environment("ROLL_TEST_FOUND=1")):
            assert child.poll() is None
        assert [process.pid for process in processes] == [child.pid] and find_by_environment("ROLL_TEST_FOUND=") == []
        other = type(processes[0])(child.pid, "1")
        assert not send_signal(other, 9) and child.poll() is None, "its start time differs"
        assert send_signal(processes[0], 9) and child.wait(60) == -9 and not send_signal(processes[0], 9)
    finally:
        child.kill()
        child.wait()


def test_a_planted_fault_is_met_once_and_only_at_its_place(tmp_path: Path) -> None:
    script = "from roll.planted import fail_if_planted as fail\nfor place in ('a', 'b', 'b'):\n    " + (
        "input()\n    try: fail('x', place)\n    except RuntimeError as error: print(error, flush=True)\n"
        "    else: print('nothing', flush=True)"
    )
    outcomes: list[str] = []
    for folder in (str(tmp_path), None):
        environment = {**os.environ, **({"ROLL_CHAOS": folder} if folder else {})}
        child = subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        path = plant(tmp_path, child.pid, "b", "planted")
        output, _ = child.communicate("1\n2\n3\n", timeout=120)
        outcomes.append(output)
        assert path.exists() == (folder is None)
    assert outcomes == ["nothing\nplanted\nnothing\n", "nothing\n" * 3], "without the variable nothing is met"


def test_the_time_of_a_planted_fault_is_before_its_effects(tmp_path: Path) -> None:
    script = "import time\nfrom roll.planted import fail_if_planted as fail\nwhile True:\n    fail('score')"
    script = script.replace("    fail", "    try: fail").replace("'score')", "'score')\n    except RuntimeError: break")
    child = subprocess.Popen(
        [sys.executable, "-c", f"{script}\nprint(time.time(), flush=True)"],
        stdout=subprocess.PIPE,
        env={**os.environ, "ROLL_CHAOS": str(tmp_path)},
    )
    try:
        process = track(child.pid)
        assert process is not None
        at = inject(Target("reward", "x 0", process), "exception", name="planted", folder=tmp_path, slow_s=1.0)
        output, _ = child.communicate(timeout=120)
        assert at is not None and at < float(output)
    finally:
        child.kill()
        child.wait()


def test_a_slowed_process_is_stopped_most_of_the_time_and_runs_afterwards(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "500"])
    try:
        process, num_threads = track(child.pid), threading.active_count()
        assert process is not None
        assert inject(Target("reward", "x 0", process), "slow", name="", folder=tmp_path, slow_s=1.0) is not None
        deadline = time.monotonic() + 60
        while not is_stopped(child.pid):
            assert time.monotonic() < deadline
        while threading.active_count() > num_threads and time.monotonic() < deadline:
            time.sleep(0.1)
        assert child.poll() is None and not is_stopped(child.pid)
    finally:
        child.kill()
        child.wait()


def test_a_recovery_is_matched_by_kind_and_rank() -> None:
    fault = InjectedFault(kind="generator", worker="actor_infer 1", pid=1, fault="KILL", at_s=0.0, time=0.0)
    assert recovers(GeneratorReplaced(generator=1, version=0, reason=""), fault)
    assert not recovers(GeneratorReplaced(generator=0, version=0, reason=""), fault)
    assert not recovers(RunStarted(config_digest=""), fault)
    fault = InjectedFault(kind="reward", worker="reward worker 1", pid=1, fault="KILL", at_s=0.0, time=0.0)
    replaced = WorkerReplaced(worker="reward worker 1", reason="", seconds=0.0, num_updates=0)
    assert recovers(replaced, fault) and not recovers(replace(replaced, worker="reward worker 0"), fault)
    assert not recovers(replace(replaced, worker="environment worker 1"), fault)
    fault = InjectedFault(kind="trainer", worker="actor_train 1", pid=1, fault="KILL", at_s=0.0, time=0.0)
    assert recovers(replace(replaced, worker="actor_train 0"), fault), "all ranks are replaced together"
    fault = replace(fault, kind="transfer", fault="slow", slow_s=5.0)
    assert recovers(replace(replaced, worker="actor_train 0"), fault), "by the worker, not by the kind"
    published = WeightsPublished(version=1, step=1, digest="")
    assert recovers(published, fault, after_s=6.0) and not recovers(published, fault, after_s=4.0)
    assert not recovers(published, replace(fault, fault="KILL"), after_s=6.0)
    restarted = ControllerRestarted(number=1, cause="", seconds=0.0)
    assert recovers(restarted, fault), "a restart ends every fault"
    retried = AttemptRetried(group=0, sibling=0, status=Status.ENV_FAILED, reason="agent of task 'a': fault 1 of it")
    assert not recovers(retried, fault) and recovers(retried, replace(fault, kind="agent"))
    assert recovers(retried, replace(fault, text="fault 1 of it"))
    assert not recovers(retried, replace(fault, text="fault 11 of it"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kill", "generatr"], "--kill: unknown value 'generatr'; give one or more of controller, generator"),
        (
            ["--kill", "reward", "--fault", "HUP"],
            "--fault: unknown value 'HUP'; give one or more of KILL, STOP, exception, slow",
        ),
        (["--kill", "generator"], "--kill generator: executor inline runs it in the controller; add executor=ray"),
        (["--kill", "reward"], "--kill reward: rewards run in the controller; add rewards.workers=2"),
        (["--kill", "environment"], "--kill environment: environments run in the controller; add envs.workers=2"),
        (["--kill", "agent"], "--kill agent: no task has an agent without preload"),
        (
            ["--kill", "raylet", "--fault", "exception", "executor=ray"],
            "--kill raylet --fault exception: a raylet runs no",
        ),
        (
            ["--kill", "transfer", "executor=ray", "ray.address=a:1"],
            "--kill transfer: processes of a:1 meet no planted",
        ),
    ],
)
def test_faults_that_a_run_cannot_have_are_refused_in_one_line(
    arguments: list[str], message: str, folder: Path
) -> None:
    command = [sys.executable, "-m", "roll", "chaos", "run.yaml", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and message in done.stderr
    assert not (folder / "runs").exists()


@pytest.mark.slow
def test_a_run_that_fails_is_a_violation_and_the_command_prints_json(folder: Path) -> None:
    (folder / "scored.py").write_text("def score(task, response):\n    raise SystemExit(5)\n", encoding="utf-8")
    command = [sys.executable, "-m", "roll", "chaos", "run.yaml", "--kill", "controller", "--every", "500", "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    report = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 1 and report["exit_code"] != 0 and report["faults"] == []
