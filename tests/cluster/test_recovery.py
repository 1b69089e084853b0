"""Lost trainers and other models are replaced within a run on Ray, and the run ends with the same weights."""

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from roll.commands import train as commands
from roll.config.load import load
from roll.errors import RunStopped, WorkerDied
from roll.journal.events import Event, GeneratorReplaced, StepStarted, WeightsPublished, WeightsUpdated, WorkerReplaced
from roll.journal.store import Reader
from roll.preflight import preflight
from tests.cluster.test_ray import gone
from tests.cluster.test_ray_runs import RUN, untimed

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

E = TypeVar("E", bound=Event)
BESIDE = """\
import os
import signal
import time
from pathlib import Path

_calls = []


def even(task, reply):
    kill("idle")
    return sum(letter in "02468" for letter in reply) / 6


def loss(tokens):
    _calls.append(0)
    if len(_calls) > 5:
        Path(f"pid-{os.getpid()}").touch()
        kill("update")
    return -tokens.logprobs * tokens.advantages, {}


def value_loss(tokens):
    _calls.append(0)
    if len(_calls) > 5:
        Path(f"pid-{os.getpid()}").touch()
        kill("critic")
    return (tokens.values - tokens.returns) ** 2, {}


def kill(when):
    order = Path(f"kill-{when}")  # number of the signal, how often to send it, log of another worker that gets it
    pids = sorted(Path().glob("pid-*"), key=lambda path: path.stat().st_mtime)
    if order.exists() and pids:
        number, times, *log = order.read_text().split()
        number, times = int(number), int(times)
        order.write_text(f"{number} {times - 1}") if times > 1 else order.unlink()
        pid = os.getpid() if when in ("update", "critic") else int(pids[-1].name[4:])
        if log:
            pid = int(Path(log[0]).read_text().split()[3])
        for path in pids:
            path.unlink()
        if number:
            os.kill(pid, number)
        else:
            time.sleep(3600)
"""
SHARDED = ("actor_train.backend=fsdp2", "actor_train.workers=2", "actor_train.tokens_per_microbatch=1000")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of all runs of this module, which is the current one."""
    path, before, threads = tmp_path_factory.mktemp("recovery"), Path.cwd(), torch.get_num_threads()
    (path / "recovery_beside.py").write_text(BESIDE)
    (path / "run.yaml").write_text(RUN.replace("beside:", "recovery_beside:"))
    os.chdir(path)
    yield path
    os.chdir(before)
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


def train(folder: Path, name: str, *changes: str, overwrite: bool = False) -> None:
    loaded = load(folder / "run.yaml", [f"directory={folder}", f"name={name}", "steps=6", "executor=ray", *changes])
    preflight(loaded)
    commands.train(loaded, overwrite=overwrite)


@contextmanager
def killed(when: str, number: int = signal.SIGKILL, times: int = 1, log: str = "") -> Iterator[None]:
    """The run of this block loses a trainer, or the worker with this log.

    The signal is sent from the loss, or from a reward while the trainer is idle.
    """
    for path in Path().glob("pid-*"):
        path.unlink()
    order = Path(f"kill-{when}")
    order.write_text(f"{int(number)} {times} {log}")
    try:
        yield
        assert not order.exists(), "the signal was sent"
    finally:
        order.unlink(missing_ok=True)


def events(folder: Path, name: str, kind: type[E]) -> list[E]:
    with closing(Reader(folder / name / "journal.db")) as reader:
        return [entry.event for entry in reader.events(kind)]


def weights(folder: Path, name: str) -> bytes:
    return (folder / name / "model/model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def whole(ray_address: str, folder: Path) -> str:
    """The name of a deterministic run in which nothing is lost."""
    train(folder, "whole", "deterministic=true")
    return "whole"


@pytest.mark.parametrize("when", ["update", pytest.param("idle", marks=pytest.mark.faults)])
def test_a_killed_trainer_is_replaced_and_the_run_ends_with_the_same_weights(
    when: str, folder: Path, whole: str
) -> None:
    with killed(when):
        train(folder, when, "deterministic=true", "checkpoint.every=2")
    (event,) = events(folder, when, WorkerReplaced)
    assert event.worker == "actor_train 0" and "ended during " in event.reason and event.seconds > 0
    assert event.num_updates <= 2, "the others are in a checkpoint"
    assert untimed(folder / when) == untimed(folder / whole)
    assert weights(folder, when) == weights(folder, whole)
    assert [event.step for event in events(folder, when, WeightsUpdated)] == [1, 2, 3, 4, 5, 6]
    assert [event.version for event in events(folder, when, WeightsPublished)] == [0, 1, 2, 3, 4, 5, 6]
    assert not list((folder / when).glob("weights*")), "nothing remains of snapshots"


def test_a_trainer_that_was_a_spare_before_computes_the_same_weights(folder: Path, whole: str) -> None:
    with killed("update", times=2):
        train(folder, "twice", "deterministic=true", "checkpoint.every=1")
    assert len(events(folder, "twice", WorkerReplaced)) == 2
    assert weights(folder, "twice") == weights(folder, whole)


@pytest.mark.faults
def test_a_trainer_is_restored_from_a_snapshot(folder: Path, whole: str) -> None:
    with killed("update", times=2):
        train(folder, "snapshot", "deterministic=true", "ray.snapshot_s=0.0001")
    replaced = events(folder, "snapshot", WorkerReplaced)
    assert len(replaced) == 2 and replaced[-1].num_updates < 3
    assert weights(folder, "snapshot") == weights(folder, whole)


def test_a_stopped_trainer_is_killed_and_replaced(folder: Path, whole: str) -> None:
    with killed("update", signal.SIGSTOP):
        train(folder, "stopped", "deterministic=true", "ray.hang_timeout_s=2")
    (event,) = events(folder, "stopped", WorkerReplaced)
    assert "was stopped by a signal or a debugger, did not respond for " in event.reason
    assert "(ray.hang_timeout_s) and was killed during update" in event.reason
    assert gone(int(event.reason.partition("(pid ")[2].partition(")")[0])), "the process does not remain"
    assert weights(folder, "stopped") == weights(folder, whole)


@pytest.mark.faults
def test_a_trainer_that_hangs_is_killed_and_its_stack_is_in_its_log(folder: Path, whole: str) -> None:
    with killed("update", 0):  # sleeps instead
        train(folder, "hangs", "deterministic=true", "ray.hang_timeout_s=2")
    (event,) = events(folder, "hangs", WorkerReplaced)
    assert ") did not respond for " in event.reason and event.reason.partition("; log: ")[0].endswith("during update")
    log = (folder / "hangs/logs/actor_train-0.log").read_text()
    assert "Current thread" in log and "recovery_beside.py" in log and "in kill" in log
    assert weights(folder, "hangs") == weights(folder, whole)


def test_an_asynchronous_run_over_gloo_goes_on_with_a_new_trainer(ray_address: str, folder: Path) -> None:
    changes = ("weight_sync.transport=gloo", "rollout.max_staleness=1", "actor_infer.workers=2")
    with killed("update"), killed("idle"):
        train(folder, "gloo", *changes)
    assert len(events(folder, "gloo", WorkerReplaced)) == 2
    steps = [event.step for event in events(folder, "gloo", StepStarted)]
    groups = [group for event in events(folder, "gloo", StepStarted) for group in event.groups]
    assert steps == [1, 2, 3, 4, 5, 6] and len(set(groups)) == len(groups), "nothing is trained twice"
    published = [(event.version, event.step) for event in events(folder, "gloo", WeightsPublished)]
    assert published == sorted(set(published)) and [step for _, step in published] == [0, 1, 2, 3, 4, 5, 6]


class StopsAGenerator(threading.Thread):
    """Stops a generator once this line is in the log of the controller."""

    def __init__(self, directory: Path, line: str) -> None:
        super().__init__()
        self._directory, self._line, self._ended = directory, line, threading.Event()
        self.pid = 0

    def run(self) -> None:
        while not self._ended.wait(0.01):
            with suppress(OSError, IndexError):  # there is no such log yet, or nothing in it
                if self._line in (self._directory / "controller.log").read_text():
                    self.pid = int((self._directory / "logs/actor_infer-1.log").read_text().split()[3])
                    return os.kill(self.pid, signal.SIGSTOP)

    def __enter__(self) -> "StopsAGenerator":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()


ENGINES_READY = "engines of actor_infer: 2 of 2 are ready"
PROCESSES_READY = "processes of actor_infer: 2 of 2 are ready"
STARTING = "starting workers"


def test_a_generator_that_is_stopped_before_the_first_version_is_replaced(ray_address: str, folder: Path) -> None:
    changes = ("weight_sync.transport=gloo", "actor_infer.workers=2", "ray.hang_timeout_s=4")
    with StopsAGenerator(folder / "first", ENGINES_READY) as stopped:
        train(folder, "first", *changes)
    (event,) = events(folder, "first", GeneratorReplaced)
    assert f"(pid {stopped.pid}) was stopped by a signal" in event.reason and "(ray.hang_timeout_s)" in event.reason
    assert [each.step for each in events(folder, "first", StepStarted)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.faults
@pytest.mark.parametrize("line", [STARTING, PROCESSES_READY])
def test_a_generator_that_is_stopped_while_it_starts_ends_the_run_in_one_line(
    line: str, ray_address: str, folder: Path
) -> None:
    name = f"stopped-{line.split()[0]}"
    with StopsAGenerator(folder / name, line) as stopped, pytest.raises(WorkerDied) as raised:
        train(folder, name, "actor_infer.workers=2", "ray.hang_timeout_s=4")
    assert f"(pid {stopped.pid}) was stopped by a signal" in str(raised.value)


def test_a_killed_critic_is_replaced(ray_address: str, folder: Path) -> None:
    algorithm = "algorithm={recipe: ppo, loss: 'recovery_beside:loss', value_loss: 'recovery_beside:value_loss'}"
    train(folder, "ppo", "deterministic=true", algorithm)
    with killed("critic"):
        train(folder, "critic", "deterministic=true", algorithm)
    (event,) = events(folder, "critic", WorkerReplaced)
    assert event.worker == "critic 0"
    assert weights(folder, "critic") == weights(folder, "ppo")


@pytest.mark.parametrize(
    ("role", "changes"),
    [
        ("reference", ("algorithm={recipe: grpo, kl: {coefficient: 0.1}}", "reference.workers=2")),
        pytest.param("teacher", ("algorithm=opd", "teacher={path: whole/model, workers: 2}"), marks=pytest.mark.faults),
        pytest.param("reward_model", ("reward_model={path: scorer, workers: 2}",), marks=pytest.mark.faults),
    ],
)
def test_a_killed_model_that_is_not_trained_is_replaced(
    whole: str, folder: Path, role: str, changes: tuple[str, ...]
) -> None:
    if role == "reward_model":
        train(folder, "values", "algorithm=ppo", "checkpoint.every=6")
        shutil.copytree(folder / "values/model", folder / "scorer")
        shutil.copytree(folder / "values/checkpoints/step-6/critic", folder / "scorer", dirs_exist_ok=True)
    train(folder, "quiet", "deterministic=true", *changes, overwrite=True)
    with killed("idle", log=f"{role}/logs/{role}-1.log"):
        Path("pid-0").touch()
        train(folder, role, "deterministic=true", *changes)
    (event,) = events(folder, role, WorkerReplaced)
    assert event.worker == f"{role} 1" and event.num_updates == 0
    assert untimed(folder / role) == untimed(folder / "quiet")
    assert weights(folder, role) == weights(folder, "quiet")


@pytest.fixture(scope="module")
def ranks(ray_address: str, folder: Path) -> str:
    """The name of a deterministic run with two ranks, of which none is lost."""
    train(folder, "ranks", "deterministic=true", *SHARDED)
    return "ranks"


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (signal.SIGKILL, "ended"),
        pytest.param(signal.SIGSTOP, "was stopped by a signal", marks=pytest.mark.faults),
    ],
)
def test_if_a_rank_of_a_trainer_is_lost_all_ranks_start_again(
    number: int, reason: str, folder: Path, ranks: str
) -> None:
    name = f"rank-{int(number)}"
    with killed("update", number):
        train(folder, name, "deterministic=true", "checkpoint.every=2", "ray.hang_timeout_s=4", *SHARDED)
    (event,) = events(folder, name, WorkerReplaced)
    assert event.reason.startswith("actor_train ") and reason in event.reason and "during update" in event.reason
    assert weights(folder, name) == weights(folder, ranks)


def test_if_the_budget_is_used_up_the_run_stops_and_can_be_resumed(folder: Path, whole: str) -> None:
    changes = ("deterministic=true", "checkpoint.every=1", "ray.max_replacements=1")
    with killed("update", times=2), pytest.raises(RunStopped, match="1 workers of actor_train were replaced") as raised:
        train(folder, "budget", *changes)
    assert "\n" not in str(raised.value) and "see ray.max_replacements" in str(raised.value)
    commands.resume(folder / "budget", ())
    assert weights(folder, "budget") == weights(folder, whole)


@pytest.mark.faults
def test_a_trainer_of_a_resumed_run_is_replaced_after_older_checkpoints_are_gone(folder: Path, whole: str) -> None:
    changes = ("deterministic=true", "checkpoint.every=1", "checkpoint.keep=1")
    train(folder, "resumed", *changes, "steps=2")
    with killed("update"):
        commands.resume(folder / "resumed", ("steps=6",))
    (event,) = events(folder, "resumed", WorkerReplaced)
    assert event.num_updates == 0, "the newest checkpoint has all of them"
    assert weights(folder, "resumed") == weights(folder, whole)
