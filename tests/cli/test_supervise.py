"""`--supervise`: a controller that dies or hangs is started again, and the run ends as if it had not."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from roll.cluster.ray.keeping import KeptWorkers
from roll.commands.supervise import Supervised
from roll.journal.events import ControllerRestarted, RolledBack, StepStarted, TaskQuarantined
from roll.journal.store import Reader
from roll.tracking.sinks import read_lines
from tests.cli.conftest import Child
from tests.cli.test_interrupts import events, newest, steps
from tests.cli.test_run_directory import checkpoints

pytestmark = pytest.mark.slow

QUIET = ("validation.tasks=[]", "tracking.tensorboard=false")
LOSS = ("algorithm={recipe: grpo, loss: 'supervise_beside:loss'}", "tasks.0.reward='supervise_beside:even'", *QUIET)
BESIDE = """
import os, signal, subprocess, time
from pathlib import Path

def even(task, reply):
    if Path("fail").exists() or (Path("poisoned").exists() and "7" in task.answer):
        raise ValueError("no luck")
    return sum(letter in "02468" for letter in reply) / 6


def loss(tokens):
    time.sleep(0.02)
    if Path("fault.py").exists():
        exec(Path("fault.py").read_text())
    return -tokens.logprobs * tokens.advantages, {}
"""


@pytest.fixture(autouse=True)
def _beside(folder: Path) -> None:
    """A loss that takes some time, and that runs the file `fault.py` in the controller once it is there."""
    (folder / "supervise_beside.py").write_text(BESIDE)


def controller(run: Path) -> int:
    """The pid of the newest controller."""
    lines = [line for line in (run / "controller.log").read_text().splitlines() if ", process " in line]
    return int(lines[-1].split(", process ")[1].split()[0])


def restarts(run: Path) -> list[ControllerRestarted]:
    return events(run, ControllerRestarted) if (run / "journal.db").is_file() else []


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def trained_groups(run: Path) -> list[int]:
    """The groups of all steps that count, in order."""
    groups: dict[int, tuple[int, ...]] = {}
    with closing(Reader(run / "journal.db")) as reader:
        for entry in reader.events():
            match entry.event:
                case RolledBack(to_step=to_step):
                    groups = {step: each for step, each in groups.items() if step <= to_step}
                case StepStarted(step=step, groups=taken):
                    groups[step] = taken
                case _:
                    pass
    return [group for step in sorted(groups) for group in groups[step]]


def kill_at_random(process: Child, run: Path, *, times: int, seed: int) -> list[int]:
    """Kill the controller again and again, each time after some more steps; the pids of those killed."""
    chance, killed = random.Random(seed), list[int]()
    for number in range(times):
        process.wait_until(lambda: len(restarts(run)) >= number)  # noqa: B023 - called at once
        process.wait_for_step(3 + 7 * number)
        time.sleep(chance.random() * 0.3)
        killed.append(controller(run))
        os.kill(killed[-1], signal.SIGKILL)
    return killed


def test_a_run_killed_at_random_moments_ends_with_the_weights_of_an_unbroken_one(
    child: Callable, roll: Callable, folder: Path
) -> None:
    tasks = ("tasks.0.data={kind: arithmetic, count: 20}", "rollout.max_failed_groups=16")
    command = ("train", "run.yaml", *LOSS, *tasks, "steps=40", "checkpoint={every: 3}")
    (folder / "poisoned").touch()
    assert roll(*command, "name=unbroken").code == 0
    run = folder / "runs" / "tiny"
    process = child(*command, "--supervise")
    killed = kill_at_random(process, run, times=4, seed=7)
    outcome = process.end()
    assert outcome.code == 0, outcome
    weights = [(folder / "runs" / name / "model/model.safetensors").read_bytes() for name in ("unbroken", "tiny")]
    assert weights[0] == weights[1], "bit-equal"
    assert len({line["loss/grad_norm"] for line in read_lines(run / "metrics.jsonl")[1:]}) == 40, "it really learns"
    assert_trained_once(run)
    quarantined = [{e.task for e in events(each, TaskQuarantined)} for each in (run, folder / "runs/unbroken")]
    assert quarantined[0] == quarantined[1] != set(), "so do its tasks that always fail"
    recorded = restarts(run)
    assert [event.number for event in recorded] == [1, 2, 3, 4]
    assert [event.cause for event in recorded] == [
        f"the controller (pid {pid}) was killed by SIGKILL" for pid in killed
    ]
    assert all(event.seconds > 0 for event in recorded)
    lines = [line for line in outcome.err.splitlines() if "was killed by SIGKILL" in line]
    assert len(lines) == 4 and lines[0].startswith("runs/tiny: the controller (pid "), outcome.err
    assert all(map(gone, killed)) and gone(controller(run))
    page = roll("report", "runs/tiny").out
    assert all(f"restart {event.number} after {event.seconds:.1f} s: {event.cause}" in page for event in recorded)


@pytest.mark.sweep
def test_an_asynchronous_run_killed_at_random_moments_trains_on_every_group_once(child: Callable, folder: Path) -> None:
    ahead = ("deterministic=false", "rollout.max_staleness=2", "steps=40", "checkpoint={every: 3}")
    process = child("train", "run.yaml", *LOSS, *ahead, "--supervise")
    kill_at_random(process, folder / "runs" / "tiny", times=4, seed=8)
    assert process.end().code == 0
    assert_trained_once(folder / "runs" / "tiny")


def assert_trained_once(run: Path) -> None:
    assert steps(run) == list(range(41))
    groups = trained_groups(run)
    assert len(groups) == len(set(groups)) == 40 * 4, "each group once"


@pytest.mark.parametrize("hang", ["SIGSTOP", "a blocked event loop"])
def test_a_hanging_controller_writes_its_stacks_and_is_started_again(child: Callable, folder: Path, hang: str) -> None:
    run = folder / "runs" / "tiny"
    process = child("train", "run.yaml", *LOSS, "steps=300", "--supervise", "--hang-timeout", "5")
    process.wait_for_step(2)
    pid = controller(run)
    if hang == "SIGSTOP":
        os.kill(pid, signal.SIGSTOP)
    else:
        (folder / "fault.tmp").write_text("Path('fault.py').unlink()\ntime.sleep(600)")
        (folder / "fault.tmp").rename(folder / "fault.py")
    process.wait_until(lambda: bool(restarts(run)))
    assert restarts(run)[0].cause == f"the controller (pid {pid}) gave no heartbeat for 5 s and was killed"
    assert restarts(run)[0].seconds >= 5
    log = (run / "controller.log").read_text()
    assert "Fatal Python error: Aborted" in log and "most recent call first" in log
    assert hang == "SIGSTOP" or "supervise_beside.py" in log, "where it hangs"
    before = newest(run)
    process.wait_until(lambda: newest(run) > before)
    process.send(signal.SIGINT)
    assert process.end().code == 130 and gone(pid)


def test_a_controller_that_is_stopped_while_it_starts_is_started_again(child: Callable, folder: Path) -> None:
    run = folder / "runs" / "tiny"
    stop_once = """
from roll.wiring.models import Roles
async def stop_and_start(self, start=Roles.start):
    import os, pathlib, signal
    if not pathlib.Path("stopped").exists():
        pathlib.Path("stopped").touch()
        os.kill(os.getpid(), signal.SIGSTOP)
    await start(self)
Roles.start = stop_and_start
"""
    process = child("train", "run.yaml", *LOSS, "steps=2", "--supervise", "--hang-timeout", "5", before=stop_once)
    assert process.end().code == 0
    assert [each.cause.partition(")")[2] for each in restarts(run)] == [" gave no heartbeat for 5 s and was killed"]


def test_the_supervisor_has_the_modules_of_the_controller_so_that_a_restart_imports_none(folder: Path) -> None:
    command = [sys.executable, "-m", "roll", "train", "run.yaml", *LOSS, "steps=5000", "--supervise"]
    metrics, limit = folder / "runs/tiny/metrics.jsonl", time.monotonic() + 600
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL) as process:
        try:
            while not metrics.is_file():
                assert process.poll() is None and time.monotonic() < limit
                time.sleep(0.05)
            assert "libtorch" in Path(f"/proc/{process.pid}/maps").read_text()
            assert controller(folder / "runs/tiny") != process.pid
        finally:
            process.send_signal(signal.SIGTERM)
    assert process.returncode == 130


def test_an_interrupt_of_the_supervisor_reaches_the_controller_once(child: Callable, folder: Path) -> None:
    run = folder / "runs" / "tiny"
    process = child("train", "run.yaml", *LOSS, "steps=5000", "--supervise")
    process.wait_for_step(2)
    pid = controller(run)
    process.send(signal.SIGTERM)
    outcome = process.end()
    step = newest(run)
    assert outcome.code == 130 and outcome.err.startswith("finishing this step, then exiting"), outcome
    assert outcome.out.splitlines()[-1].startswith(f"interrupted after step {step} of 5000")
    assert gone(pid) and not restarts(run)


def test_a_controller_whose_supervisor_is_killed_finishes_its_step(child: Callable, folder: Path) -> None:
    run = folder / "runs" / "tiny"
    process = child("train", "run.yaml", *LOSS, "steps=5000", "checkpoint={every: 1000}", "--supervise")
    process.wait_for_step(2)
    pid = controller(run)
    process.send(signal.SIGKILL)
    assert process.end().code == -signal.SIGKILL
    limit = time.monotonic() + 600
    while not gone(pid):
        assert time.monotonic() < limit
        time.sleep(0.05)
    assert newest(run) >= 2


def test_a_run_has_one_supervisor(child: Callable, roll: Callable, folder: Path) -> None:
    process = child("train", "run.yaml", *LOSS, "steps=5000", "--supervise")
    process.wait_for_step(1)
    for command in (("resume", "runs/tiny"), ("train", "run.yaml", *LOSS, "--resume")):
        outcome = roll(*command, "--supervise")
        assert outcome.fault(2) == "runs/tiny: already has a supervisor; stop that one first"
    process.send(signal.SIGTERM)
    assert process.end().code == 130


def test_a_controller_that_dies_without_progress_uses_up_its_restarts(child: Callable, folder: Path) -> None:
    run = folder / "runs" / "tiny"
    assert child("train", "run.yaml", *LOSS, "steps=2").end().code == 0
    kept = {path: path.read_bytes() for path in (run / "checkpoints").rglob("*.safetensors")}
    (folder / "fault.py").write_text("os.kill(os.getpid(), signal.SIGKILL)")
    outcome = child("resume", "runs/tiny", "steps=9", "--supervise", "--restarts", "1").end()
    assert outcome.code == 128 + signal.SIGKILL
    first, last = outcome.err.splitlines()
    assert first.endswith("was killed by SIGKILL; restart 1 of 1")
    assert "it died 2 times without a new checkpoint, no restart is left" in last
    assert last.endswith("see runs/tiny/controller.log, then `roll resume runs/tiny`")
    assert {path: path.read_bytes() for path in (run / "checkpoints").rglob("*.safetensors")} == kept
    (folder / "fault.py").unlink()
    assert child("resume", "runs/tiny", "steps=3").end().code == 0


def test_a_run_that_stops_twice_for_the_same_reason_is_not_repeated(child: Callable, folder: Path) -> None:
    run = folder / "runs" / "tiny"
    (folder / "fail").touch()
    outcome = child("train", "run.yaml", *LOSS, "steps=3", "--supervise").end()
    assert outcome.code == 3
    ours = [line for line in outcome.err.splitlines() if line.startswith("runs/tiny: the controller")]
    assert len(ours) == 2, outcome.err
    assert "exited with code 3: 3 groups in a row failed" in ours[0] and ours[0].endswith("; restart 1 of 10")
    assert "it died twice in a row without a new checkpoint" in ours[1]
    assert "3 groups in a row failed" in restarts(run)[0].cause


def test_an_unexpected_exception_is_survived(child: Callable, folder: Path) -> None:
    run = folder / "runs" / "tiny"
    (folder / "fault.py").write_text("Path('fault.py').unlink()\nraise type('Bug', (BaseException,), {})")
    outcome = child("train", "run.yaml", *LOSS, "steps=3", "--supervise").end()
    assert outcome.code == 0 and "Bug" in outcome.err, outcome
    assert restarts(run)[0].cause.endswith("exited with code 1")


def test_a_refused_run_is_not_repeated(child: Callable, folder: Path) -> None:
    for arguments in (("steps=-1",), ("tasks.0.reward='nowhere:score'",)):
        outcome = child("train", "run.yaml", *arguments, "--supervise").end()
        assert outcome.code == 2 and len(outcome.err.splitlines()) == 1, outcome
    (folder / "runs/notes").mkdir(parents=True)
    (folder / "runs/notes/thesis.txt").write_text("years of work")
    outcome = child("train", "run.yaml", "name=notes", "--supervise").end()
    assert outcome.fault(2).startswith("runs/notes: exists already and is not the directory of a run")
    assert os.listdir(folder / "runs/notes") == ["thesis.txt"]
    assert child("resume", "runs/nowhere", "--supervise").end().fault(2).startswith("runs/nowhere: no such directory")


DYING_ONCE = """
import os, signal
from pathlib import Path
from roll.types import Message, Task

def tasks():
    if not Path("died").exists():
        Path("died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    prompts = [Message(role="user", content=f"{number}+1=") for number in range(9)]
    return [Task(id=prompt.content, domain="sums", messages=(prompt,), answer="1") for prompt in prompts]
"""


def test_a_run_that_dies_before_it_overwrites_another_does_not_resume_that_one(
    child: Callable, roll: Callable, folder: Path
) -> None:
    run = folder / "runs" / "tiny"
    assert roll("train", "run.yaml", *QUIET, "steps=3").code == 0
    (folder / "dying.py").write_text(DYING_ONCE)
    data = "tasks=[{name: sums, data: 'dying:tasks', reward: exact}]"
    outcome = child("train", "run.yaml", data, *QUIET, "steps=1", "--overwrite", "--supervise").end()
    assert outcome.code == 0, outcome
    assert (folder / "died").exists() and checkpoints(run) == ["step-1"] and len(restarts(run)) == 1


def test_processes_of_a_killed_controller_are_gone_before_the_next_one_starts(child: Callable, folder: Path) -> None:
    run = folder / "runs" / "tiny"
    started = "subprocess.Popen(['sleep', '600'], start_new_session=True).pid"
    (folder / "fault.py").write_text(
        f"if not Path('pid').exists():\n    Path('part').write_text(str({started}))\n    Path('part').rename('pid')"
    )
    process = child("train", "run.yaml", *LOSS, "steps=5000", "--supervise")
    process.wait_for(folder / "pid")
    process.wait_for_step(2)
    left = int((folder / "pid").read_text())
    assert not gone(left)
    os.kill(controller(run), signal.SIGKILL)
    process.wait_until(lambda: bool(restarts(run)))
    assert gone(left)
    process.send(signal.SIGTERM)
    assert process.end().code == 130


def test_the_error_of_a_controller_is_that_of_the_failed_task_and_not_of_its_group() -> None:
    supervised = Supervised(None, KeptWorkers(namespace="run", holders=0))
    with pytest.raises(ExceptionGroup), supervised:
        raise ExceptionGroup("unhandled errors", [ExceptionGroup("inner", [KeyError("first")]), ValueError("second")])
    assert supervised.error == "KeyError: 'first'"
