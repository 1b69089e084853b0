"""A controller on Ray that is killed: its workers and its local cluster are gone when the next one starts."""

import os
import signal
from pathlib import Path

import pytest

from roll.commands import train as commands
from roll.config.load import load
from roll.journal.events import ControllerRestarted
from roll.preflight import preflight
from tests.cli.test_supervise import controller
from tests.cluster.test_ray import gone
from tests.cluster.test_ray_runs import Process, _settings_of_torch, file, steps_of, wait_for  # noqa: F401 - fixtures

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

WORKERS = ("actor_train-0", "actor_infer-0")


def ray_folder(run: Process) -> Path:
    return Path((run.directory / ".ray").read_text())


@pytest.mark.usefixtures("_settings_of_torch")
def test_a_killed_controller_of_a_local_cluster_is_started_again_and_the_weights_are_those_of_an_unbroken_run(
    file: Path,  # noqa: F811
) -> None:
    exact = ("deterministic=true", "checkpoint={every: 4}")
    run = Process(file, "killed", *exact, "steps=40", "--supervise")
    try:
        wait_for(run, run.trained)
        pids, folder, first = [run.worker(name) for name in WORKERS], ray_folder(run), controller(run.directory)
        os.kill(first, signal.SIGKILL)
        wait_for(run, lambda: bool(run.events(ControllerRestarted)))
        assert all(map(gone, pids)) and not folder.exists()
        (event,) = run.events(ControllerRestarted)
        assert event.cause == f"the controller (pid {first}) was killed by SIGKILL"
        folder = ray_folder(run)
        code, said = run.ended()
        assert code == 0 and len(said) == 1 and said[0].endswith("was killed by SIGKILL; restart 1 of 10"), said
        assert not folder.exists() and not (run.directory / ".ray").exists()
    finally:
        run.process.kill()
        run.process.communicate()
    loaded = load(file, [f"directory={file.parent}", "name=unbroken", *exact, "steps=40"])
    preflight(loaded)
    commands.train(loaded, overwrite=False)
    weights = [(file.parent / name / "model/model.safetensors").read_bytes() for name in ("killed", "unbroken")]
    assert weights[0] == weights[1], "bit-equal"


def test_the_workers_of_a_killed_controller_leave_a_shared_cluster(ray_address: str, file: Path) -> None:  # noqa: F811
    run = Process(file, "shared", f"ray.address={ray_address}", "checkpoint={every: 4}", "--supervise")
    try:
        wait_for(run, run.trained)
        pids = [run.worker(name) for name in WORKERS]
        os.kill(controller(run.directory), signal.SIGKILL)
        wait_for(run, lambda: bool(run.events(ControllerRestarted)))
        assert all(map(gone, pids))
        os.kill(run.process.pid, signal.SIGINT)
        code, said = run.ended()
        assert code == 130, said
    finally:
        run.process.kill()
        run.process.communicate()


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
