"""Processes are found and ended, also when the process that started them is gone."""

import os
import subprocess
import sys
import time

from roll.cluster.process_tree import TrackedProcess, end_processes, find_process_tree

PARENT = """\
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_child_that_outlives_its_parent_is_found_and_ended() -> None:
    marker = f"tree-of-{os.getpid()}"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, marker], stdout=subprocess.PIPE, text=True)
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    tree = find_process_tree(marker)
    assert {process.pid for process in tree} == {parent.pid, child}
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert [process.pid for process in tree if process.alive] == [child]
    end_processes(tree, grace_s=0.0)
    while any(process.alive for process in tree):
        time.sleep(0.01)
    assert stranger.poll() is None, "no other process is touched"
    stranger.kill()
    stranger.wait()


def test_a_process_gets_time_to_end_before_it_is_killed() -> None:
    marker = f"mark-{os.getpid()}"
    source = "import sys, time; sys.stdin.read(); time.sleep(0.2)"
    process = subprocess.Popen([sys.executable, "-c", source, marker], stdin=subprocess.PIPE)
    (tracked,) = find_process_tree(marker)
    assert process.stdin is not None
    process.stdin.close()
    end_processes([tracked], grace_s=60.0)
    assert process.wait() == 0


def test_a_process_with_a_reused_pid_is_not_the_earlier_one() -> None:
    assert not TrackedProcess(os.getppid(), "0").alive
