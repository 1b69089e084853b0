"""Several Ray nodes, of which some are lost: a run goes on with those that are left, or waits for another one."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from roll.cluster.process_tree import end_processes, find_process_tree
from roll.cluster.ray.environment import start_repeatedly
from roll.journal.events import (
    ControllerRestarted,
    GeneratorJoined,
    GeneratorLeft,
    GeneratorRefused,
    GeneratorReplaced,
    NodeAwaited,
    WeightsPublished,
    WeightsUpdated,
    WorkerMoved,
    WorkerReplaced,
)
from roll.report.verify import describe_violations, verify
from tests.cluster.test_faults import of_session
from tests.cluster.test_launch import free_port, parent
from tests.cluster.test_ray_runs import RUN, Process, steps_of, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

ROOT = Path(__file__).parents[2]
BESIDE = """\
import time
from pathlib import Path

_calls = []


def even(task, reply):
    return sum(letter in "02468" for letter in reply) / 6


def loss(tokens):
    _calls.append(0)
    if len(_calls) > 5 and Path("hold").exists():
        Path("held").touch()
        while Path("hold").exists():
            time.sleep(0.02)
    return -tokens.logprobs * tokens.advantages, {}
"""


def repeat(start: Callable[[], Any], clean_up: Callable[[], None] = lambda: None) -> Any:
    """The result of `start`; Ray gives up after 30 s, which a busy machine may exceed."""
    results: list[Any] = []
    start_repeatedly(lambda: results.append(start()), clean_up, timeout_s=300)
    return results[0]


class Nodes:
    """A Ray cluster of several nodes on this machine; its head has no room for workers."""

    def __init__(self) -> None:
        from ray._common.utils import get_ray_address_file
        from ray.cluster_utils import Cluster

        # `Cluster` writes there too, and a machine on which no other cluster has run lacks the folder.
        Path(get_ray_address_file(None)).parent.mkdir(exist_ok=True)
        self.folder = tempfile.mkdtemp(prefix="roll-nodes-", dir="/tmp")
        head = {"num_cpus": 0, "include_dashboard": False, "temp_dir": self.folder}
        self._cluster: Any = repeat(
            lambda: Cluster(initialize_head=True, head_node_args=head),
            lambda: end_processes(find_process_tree(self.folder), grace_s=0.0),  # of the head that was too slow
        )
        self.address = str(self._cluster.address)
        self._nodes: dict[int, Any] = {}

    def add(self, num_cpus: int, **settings: Any) -> int:
        """Add a node; the pid of its raylet."""
        settings |= {"num_cpus": num_cpus, "object_store_memory": 100 * 2**20}
        node = repeat(lambda: self._cluster.add_node(**settings))
        (raylet,) = node.all_processes["raylet"]
        self._nodes[raylet.process.pid] = node
        return raylet.process.pid

    def kill(self, raylet: int) -> None:
        """Kill a node, which ends its workers."""
        self._cluster.remove_node(self._nodes.pop(raylet), allow_graceful=False)

    def drain(self, raylet: int) -> None:
        from ray._raylet import GcsClient
        from ray.core.generated.autoscaler_pb2 import DRAIN_NODE_REASON_PREEMPTION as PREEMPTION

        client: Any = GcsClient(address=self.address)
        accepted, reason = client.drain_node(self._nodes[raylet].node_id, PREEMPTION, "a spot node", 2**60)
        assert accepted, reason

    def kill_all(self) -> None:
        for raylet in list(self._nodes):
            self.kill(raylet)
        self._cluster.wait_for_nodes(300)  # else Ray may place the next worker on one of them

    def stop(self) -> None:
        self._cluster.shutdown()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    nodes = Nodes()
    yield nodes
    nodes.stop()


@pytest.fixture
def nodes(cluster: Nodes) -> Iterator[Nodes]:
    yield cluster
    cluster.kill_all()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "nodes_beside.py").write_text(BESIDE)
    (tmp_path / "run.yaml").write_text(RUN.replace("beside:", "nodes_beside:"))
    return tmp_path / "run.yaml"


@contextmanager
def running(file: Path, name: str, *changes: str) -> Iterator[Process]:
    run = Process(file, name, *changes)
    try:
        yield run
    finally:
        run.process.kill()
        run.process.communicate()


def finished(run: Process) -> tuple[int, list[str]]:
    """Exit code and output of a run that has some time left to end."""
    run.process.wait(timeout=600)
    return run.ended()


def weights(run: Process) -> bytes:
    return (run.directory / "model/model.safetensors").read_bytes()


@pytest.mark.faults
@pytest.mark.parametrize("how", ["lost", "drained"])
def test_all_workers_of_a_lost_or_drained_node_go_to_another_one_and_no_update_is_lost(
    how: str, nodes: Nodes, file: Path
) -> None:
    exact = ("deterministic=true", "steps=8", "algorithm.kl={coefficient: 0.01}", "ray.max_replacements=1")
    (file.parent / "hold").touch()
    first = nodes.add(4)
    with running(file, how, *exact, f"ray.address={nodes.address}", "actor_infer.workers=2") as run:
        wait_for(run, (file.parent / "held").exists)
        names = ("actor_train-0", "actor_infer-0", "actor_infer-1", "reference-0")
        assert {parent(run.worker(name)) for name in names} == {first}
        second = nodes.add(4)
        nodes.kill(first) if how == "lost" else nodes.drain(first)
        wait_for(run, lambda: len(run.events(WorkerMoved)) == 3)  # the reference has no work yet
        (file.parent / "hold").unlink()
        code, said = finished(run)
        assert code == 0, said
        reason = "is lost" if how == "lost" else "is being drained"
        moves = run.events(WorkerMoved)
        assert {move.worker.replace(" ", "-") for move in moves} == set(names)
        assert {(move.before, move.after) for move in moves} == {(moves[0].before, moves[0].after)}
        assert {move.reason for move in moves[:3]} == {reason}  # a drained node ends when it has no work
        assert f"actor_train 0 runs on the node {moves[0].after} now: the node {moves[0].before} {reason}" in run.log()
        assert len(run.events(GeneratorReplaced)) == 2, "more than ray.max_replacements: nodes do not count"
        assert {event.worker for event in run.events(WorkerReplaced)} == {"actor_train 0", "reference 0"}
        assert not [name for name in names if run.worker(name) == second]
        assert [event.step for event in run.events(WeightsUpdated)] == list(range(1, 9))
    with running(file, "unbroken", *exact, "executor=inline", "ray={}") as unbroken:
        assert finished(unbroken)[0] == 0
        assert weights(run) == weights(unbroken), "bit-equal"


def test_a_run_goes_on_with_fewer_generators_until_a_node_comes_back_and_stops_if_its_trainer_has_none(
    nodes: Nodes, file: Path
) -> None:
    settings = ("actor_infer={workers: 2, min_workers: 1}", "ray.node_timeout_s=3", "checkpoint.every=1")
    raylets = [nodes.add(2), nodes.add(2)]
    with running(file, "fewer", *settings, f"ray.address={nodes.address}") as run:
        wait_for(run, run.trained)
        trainer = parent(run.worker("actor_train-0"))
        (other,) = [raylet for raylet in raylets if raylet != trainer]
        nodes.kill(other)
        wait_for(run, lambda: "no other node has a free CPU; the run goes on without it" in run.log())
        steps = steps_of(run)
        wait_for(run, lambda: steps_of(run) > steps + 3)
        assert not run.events(NodeAwaited), "still waiting"
        nodes.add(1)
        wait_for(run, lambda: bool(run.events(NodeAwaited)))
        (waited,) = run.events(NodeAwaited)
        assert waited.worker.startswith("generator ") and waited.seconds > 0
        wait_for(
            run, lambda: any(f"generator {event.generator}" == waited.worker for event in run.events(GeneratorReplaced))
        )
        steps = steps_of(run)
        wait_for(run, lambda: steps_of(run) > steps + 1)
        nodes.kill(trainer)
        code, said = finished(run)
        assert code == 3 and not any("Traceback" in line for line in said), said
        assert said[-1].startswith("actor_train 0: its node ") and said[-1].endswith(
            "is lost, and no other node has a free CPU, for 3 s (ray.node_timeout_s); "
            "start another node, then `roll resume` the run"
        )
        assert "the run waits 3 s for one (ray.node_timeout_s)" in run.log()


@pytest.mark.faults
def test_generators_of_new_nodes_join_a_running_job_those_of_another_build_do_not_and_nothing_is_lost(
    nodes: Nodes, file: Path
) -> None:
    shutil.copytree(ROOT / "roll", file.parent / "other/roll")
    (file.parent / "other/roll/planted.py").open("a").write("# another release\n")
    nodes.add(2)
    settings = ("actor_infer={workers: 1, max_workers: 2}", "rollout.max_seq_len=48", "rollout.max_new_tokens=36")
    with running(file, "elastic", *settings, f"ray.address={nodes.address}") as run:
        wait_for(run, run.trained)
        other = nodes.add(1, env_vars={"PYTHONPATH": str(file.parent / "other")})
        wait_for(run, lambda: bool(run.events(GeneratorRefused)))
        (refused,) = run.events(GeneratorRefused)
        assert " has roll 0" in refused.reason and "the run has roll" not in refused.reason
        nodes.kill(other)
        spot = nodes.add(1)
        wait_for(run, lambda: bool(run.events(GeneratorJoined)))
        (joined,) = run.events(GeneratorJoined)
        steps = steps_of(run)
        wait_for(run, lambda: steps_of(run) > steps + 3)
        nodes.drain(spot)
        wait_for(run, lambda: bool(run.events(GeneratorLeft)))
        assert run.events(GeneratorLeft)[0].reason == "its node is being drained"
        steps = steps_of(run)
        wait_for(run, lambda: steps_of(run) > steps + 3)
        command = [sys.executable, "-m", "roll.cli", "generators", str(run.directory), "2"]
        assert "2 generators are wanted" in subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout
        nodes.add(1)
        wait_for(run, lambda: len(run.events(GeneratorJoined)) == 2)
        assert not run.events(GeneratorReplaced)
        run.process.send_signal(signal.SIGINT)
        assert finished(run)[0] in (0, 130)
    verification = verify(run.directory)
    assert not verification.violations, list(describe_violations(verification))
    assert joined.digest in {event.digest for event in run.events(WeightsPublished)} and joined.seconds > 0


FAILING = """\
import asyncio, os, signal, sys
from pathlib import Path
from roll.cluster.ray.environment import set_ray_environment
set_ray_environment()
from roll.cluster.ray.config import RayConfig
from roll.cluster.ray.executor import RayExecutor
from roll.errors import NodeLost, WorkerDied
from roll.types import Spec
from tests.cluster.ray_workers import Worker

async def main():
    executor = RayExecutor(RayConfig(name="x", directory=Path(sys.argv[1]), address=sys.argv[2]))
    cluster = executor.cluster(Spec("tests.cluster.ray_workers:Worker"), 1, role="worker")
    executor.on_move(lambda move: print(move.worker, move.reason))
    await executor.start()
    node = lambda: Path(f"/proc/{cluster.pids[0]}/stat").read_text().rpartition(")")[2].split()[1]
    for _ in range(3):
        print("killed on", node())
        os.kill(cluster.pids[0], signal.SIGKILL)
        try:
            await cluster.at(0, Worker.wait)
        except WorkerDied as error:
            assert not isinstance(error, NodeLost), error
        await cluster.replace(0)
        print("started on", node())
    await executor.stop()

asyncio.run(main())
"""


def test_a_worker_that_fails_twice_on_a_node_is_placed_on_another(nodes: Nodes, tmp_path: Path) -> None:
    raylets = [str(nodes.add(1)), str(nodes.add(1))]
    done = subprocess.run(
        [sys.executable, "-c", FAILING, str(tmp_path), nodes.address],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    moved = lines.index("worker 0 is avoided after 2 failures of this worker there")  # Ray chooses the node before
    node = lines[moved - 1].removeprefix("killed on ")
    assert node in raylets and lines[:moved].count(f"killed on {node}") == 2
    (other,) = set(raylets) - {node}
    assert lines[moved + 1] == f"started on {other}"


@contextmanager
def head(port: int, folder: Path) -> Iterator[None]:
    """A Ray cluster of one node at this port, which is killed at the end."""
    ray, log = str(Path(sys.executable).with_name("ray")), folder / "head.log"
    command = [ray, "start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={port}", "--num-cpus=2"]
    sessions: list[int] = []

    def start(temporary: str) -> subprocess.Popen[bytes]:
        with log.open("w") as output:
            process = subprocess.Popen(
                [*command, "--include-dashboard=false", f"--temp-dir={temporary}", "--disable-usage-stats"],
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        sessions.append(process.pid)
        return process

    def end() -> None:
        for pid in [pid for session in sessions for pid in of_session(session)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    with tempfile.TemporaryDirectory(prefix="roll-head-", dir="/tmp", ignore_cleanup_errors=True) as temporary:
        try:
            process, deadline = start(temporary), time.monotonic() + 300
            while "Ray runtime started" not in log.read_text():
                assert time.monotonic() < deadline, log.read_text()
                if process.poll() is not None:  # Ray gives up after 30 s, which a busy machine may exceed
                    end()
                    process = start(temporary)
                time.sleep(0.1)
            yield
        finally:
            end()
            process.wait()


def controllers(supervisor: int) -> set[int]:
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True).stdout
    lines = [line.split(None, 2) for line in listed.splitlines()]
    return {int(pid) for pid, ppid, command in lines if int(ppid) == supervisor and "roll.cli train" in command}


@pytest.mark.faults
def test_a_supervised_run_goes_on_when_the_head_of_its_cluster_is_back(file: Path) -> None:
    port = free_port()
    exact = ("deterministic=true", "steps=8", "checkpoint.every=2")
    (file.parent / "hold").touch()
    with ExitStack() as stack:
        with head(port, file.parent):
            run = stack.enter_context(running(file, "headless", *exact, f"ray.address=127.0.0.1:{port}", "--supervise"))
            wait_for(run, (file.parent / "held").exists)
            seen = controllers(run.process.pid)
            assert len(seen) == 1
        (file.parent / "hold").unlink()
        wait_for(run, lambda: seen.update(controllers(run.process.pid)) or len(seen) > 3)
        stack.enter_context(head(port, file.parent))
        code, said = finished(run)
        assert code == 0 and not any("Traceback" in line for line in said), said
        (event,) = run.events(ControllerRestarted)
        assert event.number > 2 and f":{port} is gone" in event.cause  # Ray names its address
        assert any(f"no Ray cluster at 127.0.0.1:{port}" in line and "; restart 2 of 10" in line for line in said), said
    with running(file, "unbroken", *exact, "executor=inline", "ray={}") as unbroken:
        assert finished(unbroken)[0] == 0
        assert weights(run) == weights(unbroken), "bit-equal"
