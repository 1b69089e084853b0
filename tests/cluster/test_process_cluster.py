"""Workers in child processes: the same handles, and a worker that hangs or dies blocks no other."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from roll.cluster.process import ProcessCluster, TimedOut
from roll.cluster.replacement import FirstStart, Replacement
from roll.errors import RewardFailed, WorkerDied
from roll.types import Spec

pytestmark = pytest.mark.slow


class Worker:
    def __init__(self, rank: int, *, bonus: int = 0) -> None:
        self.rank, self.bonus = rank, bonus

    async def add(self, number: int, *, twice: bool = False) -> int:
        return (self.rank + self.bonus + number) * (2 if twice else 1)

    async def identify(self) -> tuple[int, bool]:
        return os.getpid(), threading.current_thread() is threading.main_thread()

    async def hang(self, seconds: float) -> str:
        time.sleep(seconds)
        return "awake"

    async def hang_with_a_child(self) -> int:
        child = subprocess.Popen(["sleep", "1001"])
        time.sleep(1000)
        return child.pid

    async def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    async def fail(self, message: str) -> None:
        raise RewardFailed(message)

    async def leave(self) -> None:
        raise SystemExit(4)

    async def time_out(self) -> None:
        raise TimeoutError("its own")

    async def odd(self) -> object:
        return threading.Lock()

    async def chat(self) -> str:
        sys.stdout.write("something that user code prints\n")
        return "printed"


class Broken:
    def __init__(self, rank: int) -> None:
        raise ValueError(f"worker {rank} cannot be built")


def within(
    use: Callable[[ProcessCluster[Worker]], Awaitable[Any]],
    *,
    size: int = 2,
    timeout_s: float | None = 20.0,
    **options: Any,
) -> Any:
    """The result of `use` with a cluster that is stopped afterwards."""

    async def run() -> Any:
        cluster = ProcessCluster[Worker](Spec(f"{__name__}:Worker", options), size, name="worker", timeout_s=timeout_s)
        try:
            async with asyncio.timeout(60):
                await cluster.start()
                return await use(cluster)
        finally:
            await cluster.stop()

    return asyncio.run(run())


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_calls_have_the_same_results_as_inline_calls() -> None:
    async def use(cluster: ProcessCluster[Worker]) -> None:
        assert cluster.size == 2
        assert await cluster.each(Worker.add, 1, twice=True) == [22, 24]
        assert await cluster.scatter(Worker.add, [1, 2]) == [11, 13]
        assert await cluster.at(1, Worker.add, 5) == 16
        assert await cluster.at(0, Worker.chat) == "printed"

    within(use, bonus=10)


def test_each_worker_is_a_process_and_calls_run_in_its_main_thread() -> None:
    processes = within(lambda cluster: cluster.each(Worker.identify))
    pids = {pid for pid, _ in processes}
    assert len(pids) == 2 and os.getpid() not in pids and all(main for _, main in processes)
    assert not any(alive(pid) for pid in pids), "stop leaves no process"


def test_an_error_of_a_worker_is_raised_here_and_the_worker_stays_usable() -> None:
    async def use(cluster: ProcessCluster[Worker]) -> None:
        before = await cluster.at(0, Worker.identify)
        with pytest.raises(RewardFailed, match="no score"):
            await cluster.at(0, Worker.fail, "no score")
        with pytest.raises(TypeError, match="cannot be sent"):
            await cluster.at(0, Worker.odd)
        assert await cluster.at(0, Worker.identify) == before

    within(use, size=1)


def test_a_call_past_its_timeout_is_killed_from_outside_and_its_worker_replaced() -> None:
    async def use(cluster: ProcessCluster[Worker]) -> None:
        old = (await cluster.at(0, Worker.identify))[0]
        start = time.monotonic()
        with pytest.raises(TimedOut, match=r"worker 0: hang did not end within 0.5 s"):
            await cluster.at(0, Worker.hang, 1000)
        assert time.monotonic() - start < 60
        assert not alive(old)
        assert await cluster.at(0, Worker.add, 1) == 1

    within(use, size=1, timeout_s=0.5)


def test_children_of_a_killed_worker_die_with_it() -> None:
    def sleepers() -> int:
        # A duration that no other test sleeps for: others may run at the same time.
        return subprocess.run(["pgrep", "-fc", "^sleep 1001$"], capture_output=True, text=True).stdout.strip()

    async def use(cluster: ProcessCluster[Worker]) -> None:
        with pytest.raises(TimedOut):
            await cluster.at(0, Worker.hang_with_a_child)

    before = sleepers()
    within(use, size=1, timeout_s=0.5)
    ended = time.monotonic() + 120  # of a thousand seconds: a killed process is listed until it is reaped
    while sleepers() != before and time.monotonic() < ended:
        time.sleep(0.05)
    assert sleepers() == before


def test_a_worker_that_dies_is_named_and_replaced() -> None:
    async def use(cluster: ProcessCluster[Worker]) -> None:
        with pytest.raises(
            WorkerDied, match=r"worker 0: its process \(pid \d+\) was killed by SIGKILL during die; .*out-of-memory"
        ):
            await cluster.at(0, Worker.die)
        assert await cluster.at(0, Worker.add, 1) == 1

    within(use, size=1)


def test_a_call_that_exits_the_process_counts_as_its_death() -> None:
    async def use(cluster: ProcessCluster[Worker]) -> None:
        with pytest.raises(WorkerDied, match=r"worker 0: its process \(pid \d+\) ended during leave \(SystemExit"):
            await cluster.at(0, Worker.leave)
        assert await cluster.at(0, Worker.add, 1) == 1

    within(use, size=1)


def test_a_timeout_that_the_worker_raises_is_not_taken_for_one_of_the_call() -> None:
    async def use(cluster: ProcessCluster[Worker]) -> None:
        before = await cluster.at(0, Worker.identify)
        with pytest.raises(TimeoutError, match="its own"):
            await cluster.at(0, Worker.time_out)
        assert await cluster.at(0, Worker.identify) == before

    within(use, size=1)


def test_a_worker_that_hangs_does_not_block_the_others() -> None:
    async def use(cluster: ProcessCluster[Worker]) -> int:
        hanging = asyncio.ensure_future(cluster.at(0, Worker.hang, 1000))
        await asyncio.sleep(0)
        results = [await cluster.at(1, Worker.add, 0) for _ in range(20)]
        assert not hanging.done()
        hanging.cancel()
        await asyncio.wait([hanging])
        return sum(results)

    assert within(use) == 20


def test_the_reply_to_a_cancelled_call_is_not_taken_for_the_next() -> None:
    async def use(cluster: ProcessCluster[Worker]) -> None:
        waiting = asyncio.ensure_future(cluster.at(0, Worker.hang, 0.2))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.wait([waiting])
        await asyncio.sleep(0.3)
        assert await cluster.at(0, Worker.add, 7) == 7

    within(use, size=1)


def test_a_worker_that_cannot_be_built_raises_the_reason() -> None:
    async def run() -> None:
        cluster = ProcessCluster[Broken](Spec(f"{__name__}:Broken"), 1, name="broken")
        try:
            await cluster.start()
        finally:
            await cluster.stop()

    with pytest.raises(ValueError, match="worker 0 cannot be built"):
        asyncio.run(run())


def test_workers_end_with_the_process_that_started_them() -> None:
    script = (
        "import asyncio, os, signal\n"
        "from roll.cluster.process import ProcessCluster\n"
        "from roll.types import Spec\n"
        f"from {__name__} import Worker\n"
        "async def go():\n"
        f"    cluster = ProcessCluster(Spec('{__name__}:Worker'), 1, name='w')\n"
        "    print((await cluster.at(0, Worker.identify))[0], flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(go())\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pid = int(done.stdout)
    for _ in range(100):
        if not alive(pid):
            return
        time.sleep(0.05)
    raise AssertionError("the worker outlived the process that started it")


def test_a_call_cancelled_while_its_worker_starts_leaves_no_reply_for_the_next() -> None:
    async def use(cluster: ProcessCluster[Worker]) -> None:
        for moment_s in (0.0, 0.001, 0.01, 0.05, 0.2):
            with pytest.raises(WorkerDied):
                await cluster.at(0, Worker.die)  # the next call has to start a worker first
            call = asyncio.create_task(cluster.at(0, Worker.add, 1000))
            await asyncio.sleep(moment_s)
            call.cancel()
            await asyncio.wait([call])
            assert [await cluster.at(0, Worker.add, number) for number in (1, 2)] == [1, 2]

    within(use, size=1)


def test_a_failed_start_is_retried_by_the_next_call() -> None:
    async def run() -> None:
        cluster = ProcessCluster[Worker](Spec(f"{__name__}:Broken"), 1, name="worker", timeout_s=20.0)
        try:
            for _ in range(2):
                with pytest.raises(Exception, match="worker 0 cannot be built"):
                    await cluster.at(0, Worker.add, 1)
        finally:
            await cluster.stop()

    asyncio.run(run())


class StopsAtItsFirstStart:
    def __init__(self, rank: int, *, folder: str) -> None:
        pid = Path(folder) / "pid"
        if not pid.exists():
            pid.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)

    async def answer(self) -> int:
        return os.getpid()


def test_a_worker_that_is_stopped_while_it_starts_is_killed_and_replaced(tmp_path: Path) -> None:
    spec = Spec(f"{__name__}:StopsAtItsFirstStart", {"folder": str(tmp_path)})
    replaced: list[Replacement] = []

    async def use() -> None:
        cluster = ProcessCluster[StopsAtItsFirstStart](spec, 1, name="worker", start_timeout_s=20)
        try:
            await cluster.start(FirstStart(max_deaths=1, setting="some.key"))
            stopped = int((tmp_path / "pid").read_text())
            assert not Path(f"/proc/{stopped}").exists()
            pid = await cluster.at(0, StopsAtItsFirstStart.answer)
            cluster.replaced.send_to(replaced.append)
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(WorkerDied):
                await cluster.at(0, StopsAtItsFirstStart.answer)
            assert await cluster.at(0, StopsAtItsFirstStart.answer) != pid
        finally:
            await cluster.stop()

    asyncio.run(use())
    assert [each.worker for each in replaced] == ["worker 0", "worker 0"]
    assert replaced[0].reason == "worker 0: did not start within 20 s; its process was killed"
    assert "was killed by SIGKILL" in replaced[1].reason
