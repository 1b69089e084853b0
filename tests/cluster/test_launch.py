"""The launch files are valid, and all but the systemd unit run; started again, they continue and delete nothing."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from roll.cli import app
from roll.commands.train import train
from roll.config.load import load
from roll.preflight import preflight
from roll.tracking.sinks import read_lines
from tests.cli.test_run_directory import checkpoints, starts
from tests.cluster.test_faults import of_session
from tests.cluster.test_ray import gone
from tests.cluster.test_ray_runs import BESIDE, RUN

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "examples" / "launch"
SHELL = [*LAUNCH.glob("*.sh"), *LAUNCH.glob("*.sbatch")]
RAYJOB = LAUNCH / "kubernetes" / "rayjob.yaml"
JOB = LAUNCH / "kubernetes" / "job.yaml"
UNIT = LAUNCH / "systemd" / "roll.service"
MEANT = {
    '"$RUN"': "examples/launch/run.yaml",
    '"$@"': "steps=2",
    '"ray.address=$HEAD:$PORT"': "ray.address=10.0.0.1:6379",
}


def rayjob() -> dict[str, object]:
    return yaml.safe_load(RAYJOB.read_text())["spec"]


def job() -> dict[str, Any]:
    """The container of the job without KubeRay."""
    (container,) = yaml.safe_load(JOB.read_text())["spec"]["template"]["spec"]["containers"]
    return container


def commands() -> list[tuple[str, list[str]]]:
    """What each file tells `roll`, with its variables filled in."""
    texts = {path.name: path.read_text() for path in [*SHELL, UNIT]}
    texts |= {"rayjob.yaml": str(rayjob()["entrypoint"]), "job.yaml": job()["command"][-1]}
    found: list[tuple[str, list[str]]] = []
    for name, text in texts.items():
        for line in re.findall(r"^(?!#).*?\broll ((?:check|train|resume) [^;&'\n]*)", _lines(text), re.MULTILINE):
            for variable, value in MEANT.items():
                line = line.replace(variable, value)
            found.append((name, shlex.split(line)))
    return found


def _lines(text: str) -> str:
    """One command a line."""
    return re.sub(r"; |&& ", "\n", re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE))


@pytest.mark.parametrize("path", SHELL, ids=lambda path: path.name)
def test_the_shell_scripts_have_valid_syntax(path: Path) -> None:
    done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_there_is_a_file_per_environment_which_checks_and_then_trains() -> None:
    assert {path.name for path in SHELL} == {"one_machine.sh", "several_machines.sh", "slurm.sbatch"}
    verbs = [(name, command[0]) for name, command in commands()]
    names = dict.fromkeys(name for name, _ in verbs)
    assert len(names) == 6 and verbs == [(name, verb) for name in names for verb in ("check", "train")]


def test_the_grace_times_of_the_files_are_those_of_the_run() -> None:
    signalled = re.search(r"#SBATCH --signal=B:INT@(\d+)", (LAUNCH / "slurm.sbatch").read_text())
    assert signalled and f"interrupt.grace_s={signalled[1]}" in (LAUNCH / "slurm.sbatch").read_text()
    pod = yaml.safe_load(RAYJOB.read_text())["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    stop_s = {each["name"]: each["value"] for each in pod["containers"][0]["env"]}["RAY_JOB_STOP_WAIT_TIME_S"]
    assert f"interrupt.grace_s={stop_s} " in str(rayjob()["entrypoint"])
    assert pod["terminationGracePeriodSeconds"] > int(stop_s)
    limits = re.search(r"interrupt.grace_s=(\d+) .*^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE | re.DOTALL)
    assert limits and int(limits[2]) > int(limits[1])


def test_the_probes_of_the_job_ask_the_port_that_its_run_serves() -> None:
    (port,) = job()["ports"]
    assert f"metrics.port={port['containerPort']} metrics.host=0.0.0.0 metrics.expose=true" in job()["command"][-1]
    paths = {name: job()[name]["httpGet"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert {probe["port"] for probe in paths.values()} == {port["name"]}
    assert [probe["path"] for probe in paths.values()] == ["/readyz", "/readyz", "/healthz"]
    pod = yaml.safe_load(JOB.read_text())["spec"]["template"]
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == str(port["containerPort"])


@pytest.mark.parametrize(("name", "command"), commands(), ids=str)
def test_the_commands_of_the_files_are_valid(name: str, command: list[str]) -> None:
    known = typer.main.get_command(app)
    verb = known.commands[command[0]]  # type: ignore[attr-defined]
    context = verb.make_context(command[0], command[1:])
    if command[0] == "train":
        assert context.params["resume"] and context.params["supervise"] and not context.params["overwrite"]
    loaded = load(ROOT / context.params["path"], context.params["overrides"] or [])
    preflight(loaded)
    assert loaded.run.executor == "ray" and loaded.run.name == "launch"


def test_the_rayjob_has_room_for_all_workers_and_one_shared_volume() -> None:
    spec = rayjob()["rayClusterSpec"]
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]  # type: ignore[index]
    cpus = 0
    for group in groups:
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert container["volumeMounts"] == [{"name": "shared", "mountPath": "/shared"}]
        assert [volume["name"] for volume in pod["volumes"]] == ["shared"]
        cpus += int(container["resources"]["limits"]["cpu"]) * group.get("replicas", 1)
    run = load(LAUNCH / "run.yaml").run
    assert cpus >= 1 + (run.actor_infer.workers or 1)
    assert f"ray=={spec['rayVersion']}\n" in (ROOT / "constraints.txt").read_text()  # type: ignore[index]


PROGRAMS = {
    # A connection to another machine, which is this one: `ssh -tt HOST COMMAND`. Its end is a hangup there.
    "ssh": """\
echo "$2" >> "$HOME/reached"
sh -c "$3" <&0 &
trap "kill -HUP $!" TERM
wait
wait
""",
    # `srun --OPTION ... COMMAND` on this machine. SLURM ends such steps with their job; here the test does.
    "srun": """\
while [[ $1 == --* ]]; do shift; done
echo $$ >> "$HOME/steps"
exec "$@"
""",
    "scontrol": "printf 'node1\\nnode2\\n'\n",  # `scontrol show hostnames LIST`
    "hostname": "echo 127.0.0.1\n",  # `hostname -I`
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The shared folder of a cluster whose machines are all this one."""
    folder = tmp_path / "shared"
    for path in (tmp_path / "bin", tmp_path / "home", folder / ".venv/bin", folder / "examples/launch"):
        path.mkdir(parents=True)
    for name, text in PROGRAMS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{text}")
        (tmp_path / "bin" / name).chmod(0o755)
    (folder / ".venv/bin/activate").write_text(f"export PATH={Path(sys.executable).parent}:$PATH PYTHONPATH={ROOT}\n")
    (folder / "run.yaml").write_text(f"{RUN}executor: ray\ncheckpoint: {{every: 1, keep: 1000}}\n")
    (folder / "beside.py").write_text(BESIDE)
    return folder


@contextmanager
def launch(folder: Path, *command: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a new session, whose processes end with this block; its output is in the file `output`."""
    programs = f"{folder.parent / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "HOME": str(folder.parent / "home"), "PATH": programs, "PYTHONPATH": str(ROOT), **variables},
        stdout=(folder.parent / "output").open("w"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
        # A shell cannot trap a signal that is ignored when it starts, as in the children of a background job.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        yield process
    finally:
        for pid in of_session(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def finish(folder: Path, *command: str, **variables: str) -> str:
    """The output of a command that must succeed."""
    with launch(folder, *command, **variables) as process:
        code = process.wait(timeout=600)
        output = (folder.parent / "output").read_text()
        assert code == 0, output
        return output


@contextmanager
def closing(close: Callable[[], None]) -> Iterator[None]:
    try:
        yield
    finally:
        close()


RAY_WAS_SLOW = "timed out during startup"


def repeat_if_ray_was_slow(submit: Callable[[], None]) -> None:
    """`ray start` gives up after 30 s, a time that cannot be changed and that a busy machine may exceed."""
    for attempt in range(4):
        try:
            return submit()
        except AssertionError as error:
            if attempt == 3 or RAY_WAS_SLOW not in str(error):
                raise


def wait_for(reached: Callable[[], bool], process: subprocess.Popen[str], folder: Path) -> None:
    deadline = time.monotonic() + 600
    while not reached():
        output = (folder.parent / "output").read_text()
        assert time.monotonic() < deadline and process.poll() is None and RAY_WAS_SLOW not in output, output
        time.sleep(0.1)


def trained(run: Path) -> bool:
    """Whether a run has finished a step, after its validation at the start."""
    return (run / "metrics.jsonl").is_file() and len(read_lines(run / "metrics.jsonl")) > 1


def free_port(ports: Iterable[int] = (0,)) -> int:
    """A free port on loopback, one of `ports`; 0 is any."""
    for port in ports:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return probe.getsockname()[1]
    raise AssertionError(f"no free port in {ports}")


@pytest.mark.slow
def test_the_shipped_run_trains_inline(tmp_path: Path) -> None:
    small = ["executor=inline", "actor_infer.workers=1", "rollout.groups_per_step=2", "steps=1"]
    loaded = load(LAUNCH / "run.yaml", [*small, "ray={}", "weight_sync={}", f"directory={tmp_path}"])
    preflight(loaded)
    train(loaded, overwrite=False)
    assert checkpoints(tmp_path / "launch") == ["step-1"]


@pytest.mark.sweep
@pytest.mark.slow
def test_the_shipped_run_under_any_name_on_one_machine_continues_when_it_is_started_again(folder: Path) -> None:
    run = folder / "runs/mine"
    small = ["name=mine", "actor_infer.workers=1", "rollout.groups_per_step=2", "checkpoint.every=1"]
    command = [str(LAUNCH / "one_machine.sh"), str(LAUNCH / "run.yaml"), *small]
    for steps in ("steps=1", "steps=2"):
        finish(folder, *command, steps)
    assert checkpoints(run) == ["step-1", "step-2"] and starts(run) == [None, 1]
    assert "runs/mine: all 2 steps are done already" in finish(folder, *command, "steps=2")
    assert checkpoints(run) == ["step-1", "step-2"] and starts(run) == [None, 1]


@pytest.mark.sweep
@pytest.mark.slow
def test_a_slurm_job_stops_on_the_signal_and_continues_when_it_is_requeued(folder: Path) -> None:
    run, steps = folder / "runs/run", folder.parent / "home/steps"
    job = {"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_NUM_NODES": "2", "SLURM_CPUS_PER_TASK": "1"}

    def submit(*overrides: str) -> AbstractContextManager[subprocess.Popen[str]]:
        command = ("bash", str(LAUNCH / "slurm.sbatch"), "run.yaml", *overrides)
        return launch(folder, *command, **job, SLURM_JOB_ID=str(free_port(range(20_000, 30_000)) - 20_000))

    def end_steps() -> None:
        pids = [int(line) for line in steps.read_text().split()]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        assert all(gone(pid) for pid in pids)
        steps.unlink()

    def stop_on_the_signal() -> None:
        with submit("steps=100000") as process, closing(end_steps):
            wait_for(lambda: trained(run), process, folder)
            os.kill(process.pid, signal.SIGINT)
            assert process.wait(timeout=300) == 130, (folder.parent / "output").read_text()

    def go_on() -> None:
        with submit(f"steps={last + 1}") as process, closing(end_steps):
            assert process.wait(timeout=600) == 0, (folder.parent / "output").read_text()

    repeat_if_ray_was_slow(stop_on_the_signal)
    before = checkpoints(run)
    last = len(before)  # there is one per step
    repeat_if_ray_was_slow(go_on)
    assert set(before) < set(checkpoints(run)) and starts(run) == [None, last]


@pytest.mark.sweep
@pytest.mark.slow
def test_the_entrypoint_of_the_rayjob_trains_in_its_cluster_and_does_not_repeat_a_finished_run(folder: Path) -> None:
    (folder / "examples/launch/run.yaml").write_text((folder / "run.yaml").read_text().replace("steps: 10", "steps: 2"))
    (folder / "beside.py").rename(folder / "examples/launch/beside.py")
    entrypoint = str(rayjob()["entrypoint"])
    assert "cd /shared " in entrypoint
    entrypoint = entrypoint.replace("cd /shared ", f"cd {folder} ")
    address = f"127.0.0.1:{free_port()}"
    ray = str(Path(sys.executable).with_name("ray"))
    head = [ray, "start", "--head", "--block", "--node-ip-address", "127.0.0.1", "--port", address.split(":")[1]]
    with launch(folder, *head, "--num-cpus", "2", "--disable-usage-stats") as cluster:
        healthy = [ray, "health-check", "--address", address]
        wait_for(lambda: subprocess.run(healthy, capture_output=True).returncode == 0, cluster, folder)
        finish(folder, "bash", "-c", entrypoint, RAY_ADDRESS=address)
        assert "runs/run: all 2 steps are done already" in finish(folder, "bash", "-c", entrypoint, RAY_ADDRESS=address)
        cluster.terminate()
        cluster.wait(timeout=120)
    assert len(checkpoints(folder / "runs/run")) == 2 and starts(folder / "runs/run") == [None]


@pytest.mark.sweep
@pytest.mark.slow
def test_a_run_over_two_ray_nodes_has_generators_on_the_second_and_leaves_no_process(folder: Path) -> None:
    home, run = folder.parent / "home", folder / "runs/launch"
    overrides = ["name=launch", "steps=100000", "actor_infer.workers=3"]

    def stop_on_the_signal() -> None:
        variables = {"HOSTS": "other", "HEAD": "127.0.0.1", "PORT": str(free_port()), "CPUS": "2"}
        with launch(folder, str(LAUNCH / "several_machines.sh"), "run.yaml", *overrides, **variables) as process:
            wait_for(lambda: trained(run), process, folder)
            pid_of = {path.stem: int(path.read_text().split()[3]) for path in (run / "logs").iterdir()}
            assert set(pid_of) == {"actor_train-0", "actor_infer-0", "actor_infer-1", "actor_infer-2"}
            nodes = {name: parent(pid) for name, pid in pid_of.items()}
            assert len(set(nodes.values())) == 2 and list(nodes.values()).count(nodes["actor_train-0"]) == 2, nodes
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(timeout=300) == 130, (folder.parent / "output").read_text()
            assert (home / "reached").read_text().endswith("other\n")
            assert all(gone(pid) for pid in (*pid_of.values(), *set(nodes.values())))

    repeat_if_ray_was_slow(stop_on_the_signal)


def parent(pid: int) -> int:
    """The process that started another: a worker's is its Ray node."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
