"""A controller on Ray that is killed: the next one takes up its workers, and nothing is left where there is none."""

import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from roll.checkpoint import Checkpoints
from roll.cluster.process_tree import command_of, find_process_tree
from roll.commands import train as commands
from roll.config.load import load
from roll.journal.events import ControllerRestarted
from roll.planted import VARIABLE, plant
from roll.preflight import preflight
from tests.cli.test_supervise import controller
from tests.cluster.test_ray import gone
from tests.cluster.test_ray_runs import (
    BESIDE,
    Process,
    _settings_of_torch,  # noqa: F401 - a fixture
    file,  # noqa: F401 - a fixture
    steps_of,
    wait_for,
)

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

WORKERS = ("actor_train-0", "actor_infer-0")
KILLING = """

def killing(tokens):
    import os, pathlib, signal, time

    victim = pathlib.Path("victim")
    if victim.is_file():
        os.kill(int(victim.read_text()), signal.SIGKILL)
        victim.unlink()
        time.sleep(1)
    return loss(tokens)
"""


def ray_folder(run: Process) -> Path:
    return Path((run.directory / ".ray").read_text())


@contextmanager
def started(file: Path, name: str, *changes: str) -> Iterator[Process]:  # noqa: F811
    """A supervised run that has trained; its processes are killed at the end."""
    run = Process(file, name, *changes, "--supervise")
    try:
        wait_for(run, run.trained)
        yield run
    finally:
        run.process.kill()
        run.process.communicate()


def kill_controller(run: Process) -> ControllerRestarted:
    """The event of the restart that follows."""
    before = len(run.events(ControllerRestarted))
    os.kill(controller(run.directory), signal.SIGKILL)
    wait_for(run, lambda: len(run.events(ControllerRestarted)) > before)
    return run.events(ControllerRestarted)[-1]


def title(pid: int) -> str:
    return command_of(pid).partition("\0")[0]


def has_checkpoint(run: Process) -> bool:
    return bool(Checkpoints(run.directory / "checkpoints", keep=1).steps())


def wait_until_gone(pids: Iterable[int], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while left := [pid for pid in pids if not gone(pid)]:
        assert time.monotonic() < deadline, left


@pytest.mark.usefixtures("_settings_of_torch")
def test_a_killed_controller_is_started_again_and_takes_up_its_workers_and_the_weights_are_those_of_an_unbroken_run(
    file: Path,  # noqa: F811
) -> None:
    (file.parent / "killing_beside.py").write_text(BESIDE + KILLING)
    exact = ("deterministic=true", "checkpoint={every: 4}", "algorithm.loss='killing_beside:killing'")
    with started(file, "killed", *exact, "steps=60") as run:
        wait_for(run, lambda: has_checkpoint(run))
        pids, folder, first = [run.worker(name) for name in WORKERS], ray_folder(run), controller(run.directory)
        event = kill_controller(run)
        assert event.cause == f"the controller (pid {first}) was killed by SIGKILL"
        assert set(event.taken_up) == {"actor_train 0", "actor_infer 0"} and not event.started
        steps = steps_of(run)
        wait_for(run, lambda: steps_of(run) > steps + 5)
        (file.parent / "victim").write_text(str(controller(run.directory)))  # in the middle of an update
        wait_for(run, lambda: len(run.events(ControllerRestarted)) == 2)
        assert len(run.events(ControllerRestarted)[-1].taken_up) == 2
        assert [run.worker(name) for name in WORKERS] == pids and ray_folder(run) == folder
        code, said = run.ended()
        assert code == 0 and len(said) == 2 and said[0].endswith("was killed by SIGKILL; restart 1 of 10"), said
        wait_until_gone(pids)
        assert not folder.exists() and not (run.directory / ".ray").exists()
    loaded = load(file, [f"directory={file.parent}", "name=unbroken", *exact, "steps=60"])
    preflight(loaded)
    commands.train(loaded, overwrite=False)
    weights = [(file.parent / name / "model/model.safetensors").read_bytes() for name in ("killed", "unbroken")]
    assert weights[0] == weights[1], "bit-equal"


def test_workers_on_a_shared_cluster_are_taken_up_and_those_that_died_too_are_started(
    ray_address: str,
    file: Path,  # noqa: F811
) -> None:
    with started(file, "shared", f"ray.address={ray_address}", "checkpoint={every: 4}") as run:
        wait_for(run, lambda: has_checkpoint(run))
        trainer, generator = (run.worker(name) for name in WORKERS)
        os.kill(controller(run.directory), signal.SIGSTOP)  # it may not replace the generator
        os.kill(generator, signal.SIGKILL)
        event = kill_controller(run)
        assert set(event.taken_up) == {"actor_train 0"} and set(event.started) == {"actor_infer 0"}
        assert run.worker("actor_train-0") == trainer
        pids = [run.worker(name) for name in WORKERS]
        os.kill(run.process.pid, signal.SIGINT)
        code, said = run.ended()
        assert code == 130, said
        wait_until_gone(pids, 15.0)


def test_after_an_exception_in_one_worker_the_others_are_taken_up(
    file: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    gloo = "weight_sync.transport=gloo"  # all members form a new group
    with started(file, "raised", "checkpoint={every: 4}", "steps=60", gloo) as run:
        wait_for(run, lambda: has_checkpoint(run))
        trainer, generator = (run.worker(name) for name in WORKERS)
        plant(tmp_path, trainer, "update", "planted")  # in a broadcast the generator would fail as well
        wait_for(run, lambda: bool(run.events(ControllerRestarted)))
        (event,) = run.events(ControllerRestarted)
        assert event.cause.endswith("exited with code 1: RuntimeError: planted")
        assert set(event.taken_up) == {"actor_infer 0"} and set(event.started) == {"actor_train 0"}
        assert run.worker(WORKERS[1]) == generator and gone(trainer)
        code, _ = run.ended()
        assert code == 0
        wait_until_gone([generator])


def test_a_cluster_that_cannot_run_workers_is_replaced_by_the_next_controller(file: Path) -> None:  # noqa: F811
    with started(file, "stopped", "checkpoint={every: 4}") as run:
        wait_for(run, lambda: has_checkpoint(run))
        folder = ray_folder(run)
        (raylet,) = (each.pid for each in find_process_tree(str(folder)) if "/raylet" in title(each.pid))
        os.kill(raylet, signal.SIGSTOP)
        event = kill_controller(run)
        assert len(event.started) == 2 and not event.taken_up and event.number == 1
        assert ray_folder(run) != folder and gone(raylet) and not folder.exists()
        os.kill(run.process.pid, signal.SIGINT)
        code, said = run.ended()
        assert code == 130, said


@pytest.mark.faults
def test_ranks_of_a_sharded_trainer_are_taken_up_together_or_not_at_all(ray_address: str, file: Path) -> None:  # noqa: F811
    sharded = ("actor_train.backend=fsdp2", "actor_train.workers=2", "actor_train.tokens_per_microbatch=1000")
    with started(file, "ranks", f"ray.address={ray_address}", "checkpoint={every: 2}", *sharded) as run:
        wait_for(run, lambda: has_checkpoint(run))
        event = kill_controller(run)
        assert set(event.taken_up) == {"actor_train 0", "actor_train 1", "actor_infer 0"} and not event.started
        steps, stopped = steps_of(run), run.worker("actor_train-1")
        wait_for(run, lambda: steps_of(run) > steps)
        os.kill(stopped, signal.SIGSTOP)
        event = kill_controller(run)
        assert set(event.taken_up) == {"actor_infer 0"} and set(event.started) == {"actor_train 0", "actor_train 1"}
        assert gone(stopped)
        steps = steps_of(run)
        wait_for(run, lambda: steps_of(run) > steps)


def test_workers_without_controller_and_supervisor_end_after_the_time_that_the_file_states(
    ray_address: str,
    file: Path,  # noqa: F811
) -> None:
    with started(file, "alone", f"ray.address={ray_address}", "ray.keep_workers_s=20") as run:
        pids = [run.worker(name) for name in WORKERS]
        os.kill(run.process.pid, signal.SIGSTOP)  # it may not restart the controller
        os.kill(controller(run.directory), signal.SIGKILL)
        os.kill(run.process.pid, signal.SIGKILL)
        wait_until_gone(pids)
        assert "no controller for 20 s" in (run.directory / "logs/actor_train-0.log").read_text()


def test_a_local_cluster_ends_with_the_supervisor_and_the_controller(file: Path) -> None:  # noqa: F811
    with started(file, "local") as run:
        folder = ray_folder(run)
        pids = [process.pid for process in find_process_tree(str(folder))]
        assert set(pids) >= {run.worker(name) for name in WORKERS}
        os.kill(run.process.pid, signal.SIGSTOP)
        os.kill(controller(run.directory), signal.SIGKILL)
        os.kill(run.process.pid, signal.SIGKILL)
        wait_until_gone(pids)
        assert not folder.exists()


@pytest.mark.faults
def test_a_controller_that_dies_before_its_first_checkpoint_starts_all_workers_anew(file: Path) -> None:  # noqa: F811
    run = Process(file, "early", "--supervise")
    try:
        wait_for(run, lambda: len(list((run.directory / "logs").glob("*.log"))) == 2)  # its workers are starting
        os.kill(controller(run.directory), signal.SIGKILL)
        wait_for(run, run.trained)
        (event,) = run.events(ControllerRestarted)
        assert set(event.started) == {"actor_train 0", "actor_infer 0"} and not event.taken_up
        pids, folder = [run.worker(name) for name in WORKERS], ray_folder(run)
        os.kill(run.process.pid, signal.SIGTERM)
        assert run.ended()[0] == 130
        wait_until_gone(pids)
        assert not folder.exists()
    finally:
        run.process.kill()
        run.process.communicate()


@pytest.mark.faults
def test_workers_end_with_the_controller_if_the_file_says_so(ray_address: str, file: Path) -> None:  # noqa: F811
    where = (f"ray.address={ray_address}", "checkpoint={every: 4}", "ray.keep_workers_s=0")
    with started(file, "ended", *where) as run:
        wait_for(run, lambda: has_checkpoint(run))
        pids = [run.worker(name) for name in WORKERS]
        event = kill_controller(run)
        assert all(map(gone, pids)) and len(event.started) == 2 and not event.taken_up
        os.kill(run.process.pid, signal.SIGINT)
        code, said = run.ended()
        assert code == 130, said


def test_without_a_supervisor_the_next_controller_deletes_the_local_cluster_of_the_killed_one(
    file: Path,  # noqa: F811
) -> None:
    first = Process(file, "alone", "checkpoint={every: 1}")
    try:
        wait_for(first, first.trained)
        folder = ray_folder(first)
        first.process.kill()
        first.process.communicate()
        second = Process(file, "alone", "checkpoint={every: 1}", "--resume")
        try:
            wait_for(second, lambda: (second.directory / ".ray").is_file() and ray_folder(second) != folder)
            assert not folder.exists()
            steps = steps_of(second)
            wait_for(second, lambda: steps_of(second) > steps)
            second.process.send_signal(signal.SIGINT)
            assert second.ended()[0] == 130
        finally:
            second.process.kill()
            second.process.communicate()
    finally:
        first.process.kill()
