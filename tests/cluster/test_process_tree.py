"""What was started is found and ended, also when who started it is gone."""

import os
import subprocess
import sys
import time

from roll.cluster.process_tree import Member, end, family_of

PARENT = """\
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_child_outlives_its_parent_but_not_the_end_of_the_family() -> None:
    mark = f"family-of-{os.getpid()}"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, mark], stdout=subprocess.PIPE, text=True)
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    family = family_of(mark)
    assert {member.pid for member in family} == {parent.pid, child}
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert [member.pid for member in family if member.alive] == [child]
    end(family, grace_s=0.0)
    while any(member.alive for member in family):
        time.sleep(0.01)
    assert stranger.poll() is None, "nobody else was touched"
    stranger.kill()
    stranger.wait()


def test_one_that_ends_by_itself_is_given_time_to() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.2)", mark := f"mark-{os.getpid()}"])
    (member,) = family_of(mark)
    end([member], grace_s=20.0)
    assert process.wait() == 0


def test_a_process_that_got_the_number_of_another_is_not_that_one() -> None:
    (found,) = [member for member in family_of("") if member.pid == os.getppid()] or [Member(1, "x")]
    assert not Member(found.pid, "0").alive
