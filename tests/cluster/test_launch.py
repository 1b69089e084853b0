"""The launch files: shell and YAML are valid, their `roll` commands are valid, and one of them runs."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer.main
import yaml

from roll.cli import app
from roll.config.load import load
from roll.preflight import preflight
from roll.tracking.sinks import read_lines
from tests.cluster.test_faults import of_session
from tests.cluster.test_ray import gone
from tests.cluster.test_ray_runs import BESIDE, RUN

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "examples" / "launch"
SHELL = [*LAUNCH.glob("*.sh"), *LAUNCH.glob("*.sbatch")]
RAYJOB = LAUNCH / "kubernetes" / "rayjob.yaml"
MEANT = {
    '"$RUN"': "examples/launch/run.yaml",
    '"$DIRECTORY"': "runs/launch",
    '"$@"': "steps=2",
    '"ray.address=$HEAD:$PORT"': "ray.address=10.0.0.1:6379",
}


def rayjob() -> dict[str, object]:
    return yaml.safe_load(RAYJOB.read_text())["spec"]


def commands() -> list[tuple[str, list[str]]]:
    """What each file tells `roll`, with its variables filled in."""
    texts = {path.name: path.read_text() for path in SHELL} | {"rayjob.yaml": str(rayjob()["entrypoint"])}
    found: list[tuple[str, list[str]]] = []
    for name, text in texts.items():
        for line in re.findall(r"^(?!#).*?\broll ((?:check|train|resume) [^;&\n]*)", _lines(text), re.MULTILINE):
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


def test_there_is_a_file_per_environment_and_each_runs_roll_three_times() -> None:
    assert {path.name for path in SHELL} == {"one_machine.sh", "several_machines.sh", "slurm.sbatch"}
    told = {(name, command[0]) for name, command in commands()}
    names = {name for name, _ in told}
    assert len(names) == 4 and told == {(name, verb) for name in names for verb in ("check", "train", "resume")}


@pytest.mark.parametrize(("name", "command"), commands(), ids=str)
def test_the_commands_of_the_files_are_valid(name: str, command: list[str]) -> None:
    known = typer.main.get_command(app)
    verb = known.commands[command[0]]  # type: ignore[attr-defined]
    context = verb.make_context(command[0], command[1:])
    if command[0] == "resume":
        assert context.params["directory"] == Path("runs/launch")
        return
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


SSH = """\
#!/bin/bash
# A connection to another machine, which is this one: `ssh -tt HOST COMMAND`. Whoever hangs up hangs up there as well.
echo "$2" >> "$HOME/reached"
sh -c "$3" <&0 &
trap "kill -HUP $!" TERM
wait
wait
"""


@pytest.mark.sweep
@pytest.mark.slow
def test_a_run_over_two_ray_nodes_has_generators_on_the_second_and_leaves_no_process(tmp_path: Path) -> None:
    bin, home, folder = (tmp_path / name for name in ("bin", "home", "shared"))
    said = tmp_path / "said"
    for path in (bin, home, folder, folder / ".venv/bin"):
        path.mkdir(parents=True)
    (bin / "ssh").write_text(SSH)
    (bin / "ssh").chmod(0o755)
    programs = Path(sys.executable).parent
    (folder / ".venv/bin/activate").write_text(f"export PATH={programs}:$PATH PYTHONPATH={ROOT}\n")
    (folder / "run.yaml").write_text(RUN)
    (folder / "beside.py").write_text(BESIDE)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    wanted = ["name=launch", "executor=ray", "steps=100000", "actor_infer.workers=3"]
    asked = {"HOSTS": "other", "HEAD": "127.0.0.1", "PORT": port, "CPUS": "2", "HOME": str(home)}
    process = subprocess.Popen(
        [str(LAUNCH / "several_machines.sh"), "run.yaml", *wanted],
        cwd=folder,
        env={**os.environ, **asked, "PATH": f"{bin}:{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
        stdout=said.open("w"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        metrics, deadline = folder / "runs/launch/metrics.jsonl", time.monotonic() + 300
        while not (metrics.is_file() and len(read_lines(metrics)) > 1):
            assert time.monotonic() < deadline and process.poll() is None, said.read_text()
            time.sleep(0.1)
        logs = folder / "runs/launch/logs"
        pid_of = {path.stem: int(path.read_text().split()[3]) for path in logs.iterdir()}
        assert set(pid_of) == {"actor_train-0", "actor_infer-0", "actor_infer-1", "actor_infer-2"}
        nodes = {name: parent(pid) for name, pid in pid_of.items()}
        assert len(set(nodes.values())) == 2 and list(nodes.values()).count(nodes["actor_train-0"]) == 2, nodes
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=120) == 130, said.read_text()
        assert (home / "reached").read_text() == "other\n"
        assert all(gone(pid) for pid in (*pid_of.values(), *set(nodes.values())))
    finally:
        for pid in of_session(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()


def parent(pid: int) -> int:
    """The process that started another: a worker's is its Ray node."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
