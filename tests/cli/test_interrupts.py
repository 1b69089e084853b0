"""Runs survive Ctrl-C, a kill and a full disk. Each test checks that the fault really happened."""

import json
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from safetensors import safe_open

from roll.journal.events import RolledBack, RunEnded, WeightsPublished
from roll.journal.store import Reader, TrajectoryQuery
from roll.report.ledger import read_ledger

pytestmark = pytest.mark.slow

SLOW = """
import time

def score(task, reply):
    time.sleep(0.02)
    return float(reply == task.answer)
"""


@pytest.fixture
def slow(folder: Path) -> str:
    """An override with a slow reward, so that a step lasts long enough to be interrupted."""
    (folder / "slow_beside.py").write_text(SLOW)
    return "tasks.0.reward='slow_beside:score'"


def newest(run: Path) -> int:
    return max(int(path.name.removeprefix("step-")) for path in (run / "checkpoints").glob("step-*"))


def steps(run: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def events(run: Path, kind: type) -> list:
    with closing(Reader(run / "journal.db")) as reader:
        return [entry.event for entry in reader.events(kind)]


def loadable(checkpoint: Path) -> bool:
    with safe_open(checkpoint / "model.safetensors", framework="np") as tensors:
        return all(tensors.get_tensor(name).size for name in tensors.keys())  # noqa: SIM118 - not a mapping


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_interrupt_finishes_the_step_and_the_run_can_be_resumed(
    child: Callable, roll: Callable, folder: Path, slow: str, number: signal.Signals
) -> None:
    run = folder / "runs" / "tiny"
    ahead = ("deterministic=false", "rollout.max_staleness=1")
    process = child("train", "run.yaml", slow, "steps=500", "checkpoint.every=100", *ahead)
    process.wait_for_step(2)
    process.send(number)
    outcome = process.end()
    step = newest(run)
    assert outcome.code == 130
    again = "press Ctrl-C again" if number is signal.SIGINT else "send the signal again"
    assert outcome.err.startswith(f"finishing this step, then exiting; {again} to exit at once")
    assert outcome.out.splitlines()[-1] == (
        f"interrupted after step {step} of 500; resume with `roll resume runs/tiny`"
    )
    assert 2 < step < 100 and steps(run) == list(range(step + 1))
    assert events(run, RunEnded)[-1] == RunEnded(step=step, reason="interrupted")
    assert read_ledger(run).tokens.unaccounted == 0
    assert roll("resume", "runs/tiny", f"steps={step + 1}").code == 0
    assert steps(run) == list(range(step + 2)) and read_ledger(run).tokens.unaccounted == 0


def test_a_signal_during_the_start_ends_it_in_one_line(child: Callable, folder: Path) -> None:
    (folder / "slow_start.py").write_text(
        "import time\nfrom pathlib import Path\n\ndef tasks():\n    Path('reading').touch()\n    time.sleep(600)\n"
    )
    process = child("train", "run.yaml", "tasks.0.data='slow_start:tasks'")
    process.wait_for(folder / "reading")
    process.send(signal.SIGTERM)
    outcome = process.end()
    assert outcome.code == 130 and "Traceback" not in outcome.err
    assert outcome.err.splitlines()[-1] == "interrupted at once; there is no checkpoint yet"


def test_an_interrupted_sft_run_writes_its_model_and_says_so(child: Callable, folder: Path) -> None:
    process = child("sft", "run.yaml", "sft.steps=100000")
    process.metrics = folder / "runs" / "tiny-sft" / "metrics.jsonl"
    process.wait_for_step(1)
    process.send(signal.SIGTERM)
    outcome = process.end()
    step = steps(folder / "runs" / "tiny-sft")[-1]
    assert outcome.code == 130 and (folder / "runs" / "tiny-sft" / "model" / "model.safetensors").is_file()
    assert outcome.out.splitlines()[-1] == (
        f"interrupted after step {step} of 100000; repeat it with `roll sft ... --overwrite`"
    )


STUCK = """
import asyncio, threading
from pathlib import Path

async def score(task, reply):
    if Path("stuck").exists():
        Path("in_step").touch()
        await {wait}
    return 0.0
"""


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize(
    ("wait", "setting", "num_signals"),
    [
        ("asyncio.sleep(600)", "interrupt.mode=step", 2),
        ("asyncio.to_thread(threading.Event().wait)", "interrupt.mode=now", 1),  # nothing ends this thread
        ("asyncio.sleep(600)", "interrupt.grace_s=1", 1),
    ],
    ids=["second signal", "mode now, a thread that never ends", "grace time"],
)
def test_a_step_is_abandoned_and_the_run_resumes_from_its_last_checkpoint(
    child: Callable, roll: Callable, folder: Path, wait: str, setting: str, num_signals: int
) -> None:
    (folder / "stuck_beside.py").write_text(STUCK.format(wait=wait))
    run = folder / "runs" / "tiny"
    reward = "tasks.0.reward='stuck_beside:score'"
    process = child("train", "run.yaml", reward, "steps=500", "checkpoint.every=1", setting)
    process.wait_for_step(2)
    (folder / "stuck").touch()  # from here no step ends, so the end of a step would never come
    process.wait_for(folder / "in_step")
    process.wait_for(run / "checkpoints" / f"step-{steps(run)[-1]}")  # it is written while the next step runs
    for number in range(num_signals):
        process.send(signal.SIGTERM)
        assert number + 1 == num_signals or not process.wait(0.5)
    outcome = process.end()
    step = newest(run)
    assert outcome.code == 130
    assert outcome.err.splitlines()[-1] == f"interrupted at once; resume from step-{step} with `roll resume runs/tiny`"
    assert len(outcome.err.splitlines()) == (1 if "now" in setting else 2), outcome.err
    assert steps(run)[-1] == step
    (folder / "stuck").unlink()
    assert roll("resume", "runs/tiny", f"steps={step + 1}").code == 0
    assert steps(run) == list(range(step + 2))


def test_a_killed_run_resumes_from_its_checkpoint_in_a_new_process(child: Callable, folder: Path, slow: str) -> None:
    run = folder / "runs" / "tiny"
    process = child("train", "run.yaml", slow, "steps=500", "checkpoint.every=3")
    process.wait_for_step(4)
    process.send(signal.SIGKILL)
    assert process.end().code == -signal.SIGKILL
    assert newest(run) < steps(run)[-1]  # the witness: work was lost
    versions = [event.version for event in events(run, WeightsPublished)]
    start = newest(run)
    outcome = child("resume", "runs/tiny", f"steps={start + 2}").end()
    assert outcome.code == 0, outcome
    assert steps(run) == list(range(start + 3))
    assert events(run, RolledBack) == [RolledBack(to_step=start, reason="resumed")]
    published = [event.version for event in events(run, WeightsPublished)]
    assert published == list(range(len(published))) and len(published) == len(versions) + 3  # versions only grow
    with closing(Reader(run / "journal.db")) as reader:
        trained = [kept.step for kept in reader.trajectories(TrajectoryQuery(step=start + 1))]
    assert len(trained) == 16  # four groups of four: those of the lost step count no more


STARVED = "resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0}))"


@pytest.fixture
def large(folder: Path, roll: Callable) -> Path:
    """A finished run of four steps whose checkpoints are larger than its journal can get in a few steps."""
    assert roll("train", "run.yaml", "model.shape.mlp=9000").code == 0
    run = folder / "runs" / "tiny"
    assert (run / "checkpoints" / "step-4" / "model.safetensors").stat().st_size > 3_100_000
    return run


@pytest.mark.parametrize(
    ("size", "limit", "said"),
    [
        (0, 20_000, "runs/tiny/journal.db: the journal could not be opened"),
        (0, 3_000_000, "runs/tiny/checkpoints/step-6: could not be written"),
        (0, 900_000, "runs/tiny/journal.db: the journal could not be written"),
        (3_000_000, 3_000_200, "runs/tiny/metrics.jsonl: the metrics could not be written"),
    ],
    ids=["opening the journal", "checkpoint", "journal", "metrics"],
)
def test_a_full_disk_ends_the_run_with_one_line_and_keeps_the_existing_checkpoint(
    child: Callable, roll: Callable, large: Path, size: int, limit: int, said: str
) -> None:
    before = newest(large)
    grow(large / "metrics.jsonl", size)
    more = ("steps=6", "checkpoint.every=1") if "checkpoint" in said else ("steps=60", "checkpoint.every=100")
    outcome = child("resume", "runs/tiny", *more, before=STARVED.format(limit)).end()
    line = outcome.fault(3)
    failed = [line for line in outcome.out.splitlines() if "the run continues and tries again later" in line]
    assert len(failed) == (2 if "checkpoint" in said else 0), outcome  # of steps 5 and 6: the first did not end the run
    assert line.startswith(said) and "free some space" in line
    assert newest(large) >= before and loadable(large / "checkpoints" / f"step-{newest(large)}")
    assert not list((large / "checkpoints").glob(".tmp-*"))
    resumed = roll("resume", "runs/tiny", f"steps={newest(large) + 1}")
    assert resumed.code == 0, resumed


def grow(metrics: Path, size: int) -> None:
    """Fill the file up to `size` bytes with a line of a step that counts."""
    missing = size - metrics.stat().st_size
    if missing > 0:
        start, end = '{"step": 4, "time": 0.0, "', '": 0.0}\n'
        metrics.write_text(metrics.read_text() + start + "x" * (missing - len(start) - len(end)) + end)


DIES_BEFORE_THE_METRICS = """
def die(os=os):
    from roll.journal.events import SlotsReleased
    import time
    from roll.journal.store import Journal
    real = Journal.record
    def record(self, event):
        if event == SlotsReleased(step=2):
            for _ in range(6000):  # the checkpoint is written in the background
                if os.path.isdir("runs/tiny/checkpoints/step-2"):
                    os._exit(9)
                time.sleep(0.1)
        return real(self, event)
    Journal.record = record
die()
"""


def test_a_run_killed_between_checkpoint_and_metrics_has_a_line_for_every_step(
    child: Callable, roll: Callable, folder: Path
) -> None:
    run = folder / "runs" / "tiny"
    assert child("train", "run.yaml", before=DIES_BEFORE_THE_METRICS).end().code == 9
    assert newest(run) == 2 and steps(run) == [0, 1], "the kill came between the two"
    assert roll("resume", "runs/tiny").code == 0
    assert steps(run) == [0, 1, 2, 3, 4]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines[1].keys() - {"time/checkpoint"} <= lines[2].keys(), "its line has what the others have"
