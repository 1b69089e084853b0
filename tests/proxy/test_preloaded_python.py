"""A forked script is a script that was started: its arguments, streams, ends and limits are the same."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from roll.errors import ConfigError
from roll.proxy.preloaded_python import PreloadedPython
from roll.sandbox.base import ExitReason, ProgramResult, ResourceLimits, SandboxFailed
from roll.sandbox.process import Command

SCRIPT = """
import json, os, random, subprocess, sys, time
task = json.load(sys.stdin)
if task == "fail": raise ValueError("no luck")
if task == "leave": sys.exit(7)
if task == "flood": print("x" * 100_000)
if task == "hang":
    child = subprocess.Popen(["sleep", "60"])
    print(child.pid, flush=True)
    time.sleep(60)
import atexit; atexit.register(lambda: print("bye"))
print(json.dumps([__name__, sys.argv, os.getcwd(), os.environ.get("MARK"), "HOME" in os.environ,
    "decimal" in sys.modules, random.random()]))
"""
Run = Callable[..., Coroutine[Any, Any, ProgramResult]]
pytestmark = pytest.mark.slow


def with_preloaded_python(folder: Path, work: Callable[[Run, PreloadedPython], Coroutine[Any, Any, None]]) -> None:
    """Do some work with a Python that has imported something."""
    script = folder / "script.py"
    script.write_text(SCRIPT)

    async def inside() -> None:
        python = PreloadedPython(str(folder), ["decimal"])

        async def run(said: str, **limits: Any) -> ProgramResult:
            return await python.run(
                Command(
                    argv=(str(script), "--fast"),
                    stdin=f'"{said}"'.encode(),
                    environment={"MARK": "here"},
                    directory=str(folder),
                ),
                ResourceLimits(wall_s=10.0, **limits) if "wall_s" not in limits else ResourceLimits(**limits),
            )

        try:
            async with asyncio.timeout(300):
                await work(run, python)
        finally:
            await python.stop()

    asyncio.run(inside())


def gone(pid: int) -> bool:
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def test_a_forked_script_has_its_arguments_folder_environment_and_imports(tmp_path: Path) -> None:
    async def work(run: Run, _: PreloadedPython) -> None:
        found = await asyncio.gather(*(run("go") for _ in range(4)))
        assert all(each.succeeded for each in found), found[0].stderr.decode()
        written = [each.stdout.decode().splitlines() for each in found]
        rows = [json.loads(lines[0]) for lines in written]
        script = str(tmp_path / "script.py")
        assert rows[0][:6] == ["__main__", [script, "--fast"], str(tmp_path), "here", False, True]
        assert [lines[1:] for lines in written] == [["bye"]] * 4, "it ends as Python does"
        assert len({row[6] for row in rows}) == 4, "each draws for itself"

    with_preloaded_python(tmp_path, work)


def test_a_forked_script_ends_like_a_started_one(tmp_path: Path) -> None:
    async def work(run: Run, _: PreloadedPython) -> None:
        failed, left, flooded = await asyncio.gather(run("fail"), run("leave"), run("flood", output_bytes=1000))
        assert failed.exit_code == 1 and failed.stderr.decode().splitlines()[-1] == "ValueError: no luck"
        assert (left.reason, left.exit_code) == (ExitReason.EXITED, 7)
        assert flooded.reason is ExitReason.OUTPUT_FLOOD and len(flooded.stdout) == 1000

    with_preloaded_python(tmp_path, work)


def test_a_forked_script_that_hangs_is_killed_with_its_child_processes(tmp_path: Path) -> None:
    async def work(run: Run, _: PreloadedPython) -> None:
        found = await run("hang", wall_s=1.0)
        assert found.reason is ExitReason.TIMED_OUT and found.exit_code is None
        assert gone(int(found.stdout))
        hanging = asyncio.ensure_future(run("hang"))
        await asyncio.sleep(0.05)  # long enough to be started, and maybe not to have settled
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging

    with_preloaded_python(tmp_path, work)


def test_a_fork_server_that_has_died_is_restarted(tmp_path: Path) -> None:
    async def work(run: Run, python: PreloadedPython) -> None:
        hanging = asyncio.ensure_future(run("hang", wall_s=600.0))
        while python.server is None or not children(python.server.process.pid):
            await asyncio.sleep(0.02)
        os.kill(python.server.process.pid, signal.SIGKILL)
        await asyncio.sleep(0.1)
        hanging.cancel()
        with pytest.raises((asyncio.CancelledError, SandboxFailed)):
            await hanging
        assert (await run("go")).succeeded

    with_preloaded_python(tmp_path, work)


@pytest.mark.skipif(sys.platform != "linux", reason="forks are supervised by process descriptors")
def test_a_module_that_cannot_be_imported_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    async def inside() -> None:
        with pytest.raises(ConfigError, match=r"agent.preload: cannot import no_such_module"):
            await PreloadedPython(str(tmp_path), ["no_such_module"]).run(
                Command(argv=("x.py",), stdin=b"", directory=str(tmp_path)), ResourceLimits()
            )

    asyncio.run(inside())


@pytest.mark.parametrize("preloaded", [False, True])
def test_neither_an_agent_nor_its_child_outlives_a_run_that_was_killed(tmp_path: Path, preloaded: bool) -> None:
    script, pids = tmp_path / "script.py", tmp_path / "pids"
    lines = (
        "import os, subprocess, time",
        "child = subprocess.Popen(['sleep', '600'])",
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}.')",
        "time.sleep(600)",
    )
    script.write_text("\n".join(lines))
    launcher = f"PreloadedPython({str(tmp_path)!r}, ['decimal'])" if preloaded else "ProgramLauncher()"
    argv = (str(script),) if preloaded else (sys.executable, str(script))
    owner = f"""
import asyncio, os, pathlib
from roll.proxy.launcher import ProgramLauncher
from roll.proxy.preloaded_python import PreloadedPython
from roll.sandbox.base import ResourceLimits
from roll.sandbox.process import Command

async def main():
    command = Command(argv={argv!r}, stdin=b"", environment=dict(os.environ), directory={str(tmp_path)!r})
    running = asyncio.ensure_future({launcher}.run(command, ResourceLimits(wall_s=600)))
    pids = pathlib.Path({str(pids)!r})
    while not (pids.exists() and pids.read_text().endswith(".")):
        assert not running.done(), running.result()
        await asyncio.sleep(0.02)
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", owner], timeout=300, check=False)
    assert ended.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 300
    left = [int(pid) for pid in pids.read_text().rstrip(".").split()]
    assert len(left) == 2
    while any(map(runs, left)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(runs, left))


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def runs(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
