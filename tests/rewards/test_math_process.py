"""Comparing in processes that can be killed: limits, deaths, threads and forks, with a comparison of our own."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from roll.errors import RewardFailed
from roll.rewards.math_process import Comparers, Verdict

FAKE = """
import os, time
from roll.rewards.math_child import main

known, asker = set(), os.getppid()  # the first process and those forked off it have different parents

def compare(gold, said):
    if said == "busy": 9**9**9
    if said == "asleep": time.sleep(60)
    if said == "die": os._exit(3)
    if said == "raise": raise ValueError(said)
    if said == "greedy": bytearray(8 * 2**30)
    if said == "slow": time.sleep(0.5)
    if said == "number": return gold == str(os.getpid())
    if said == "new":
        time.sleep(0.0 if gold in known else 0.03)
        known.add(gold)
    if said == "known": return gold in known
    if said == "trap" and os.getppid() != asker:
        time.sleep(0.03)
        return True
    if said == "trap": 9**9**9
    return gold == said

main(lambda: compare)
"""
PROGRAM = (sys.executable, "-c", FAKE)
SLACK_S = 3.0
"""For a loaded machine; a limit that does not hold lasts a minute."""


@pytest.fixture
def comparers() -> Iterator[Comparers]:
    found = Comparers(PROGRAM)
    found.same("a", "a", timeout_s=30.0)
    yield found
    found.stop()


def number(comparers: Comparers) -> int:
    """Of the process that the next comparison will be made in."""
    (comparer,) = comparers._idle
    return comparer.number


def instructed(comparers: Comparers, said: str) -> str:
    """A gold answer whose comparison took neither too short nor, for all the load of the machine, too long to teach."""
    for attempt in range(100):
        comparers.same(f"shape {attempt}", said, timeout_s=5.0)
        if comparers._instructive:
            return comparers._instructive[-1][0]
    raise AssertionError("no comparison was instructive")


def test_a_comparison_says_same_or_different(comparers: Comparers):
    assert comparers.same("a", "a", timeout_s=5.0) is Verdict.SAME
    assert comparers.same("a", "\ud800 {\n}", timeout_s=5.0) is Verdict.DIFFERENT


@pytest.mark.parametrize("bomb", ["busy", "asleep"])
def test_no_comparison_outlives_its_limit_and_the_next_finds_a_fresh_process(comparers: Comparers, bomb: str):
    before = number(comparers)
    start = time.monotonic()
    assert comparers.same("a", bomb, timeout_s=0.5) is Verdict.TIMED_OUT
    assert time.monotonic() - start < 0.5 + SLACK_S
    assert comparers.same("a", "a", timeout_s=5.0) is Verdict.SAME
    assert number(comparers) != before
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)


@pytest.mark.parametrize("text", ["die", "raise", "greedy"])
def test_a_text_that_ends_its_process_twice_has_crashed(comparers: Comparers, text: str):
    assert comparers.same("a", text, timeout_s=5.0) is Verdict.CRASHED
    assert comparers.same("a", "a", timeout_s=5.0) is Verdict.SAME


def test_a_comparer_that_was_killed_by_hand_is_replaced_and_costs_no_score(comparers: Comparers):
    before = number(comparers)
    os.kill(before, signal.SIGKILL)
    assert comparers.same("a", "a", timeout_s=5.0) is Verdict.SAME
    assert number(comparers) != before


def test_the_first_process_too_is_replaced(comparers: Comparers):
    server = comparers._server
    assert server is not None
    server.process.kill()
    os.kill(number(comparers), signal.SIGKILL)
    assert comparers.same("a", "a", timeout_s=30.0) is Verdict.SAME


def test_one_comparer_serves_one_caller_after_the_other(comparers: Comparers):
    before = str(number(comparers))
    assert [comparers.same(before, "number", timeout_s=5.0) for _ in range(3)] == [Verdict.SAME] * 3


def test_threads_do_not_wait_for_each_other_and_one_that_hangs_costs_the_others_nothing(comparers: Comparers):
    found: dict[str, Verdict] = {}
    texts = ["asleep", "slow", "a", "busy", "asleep", "slow"]

    def ask(index: int, text: str) -> None:
        found[f"{text} {index}"] = comparers.same("a", text, timeout_s=3.0)

    threads = [threading.Thread(target=ask, args=place) for place in enumerate(texts)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - start < 3.0 + SLACK_S  # one after the other they would take ten
    assert {place.split()[0]: verdict for place, verdict in found.items()} == {
        "asleep": Verdict.TIMED_OUT,
        "busy": Verdict.TIMED_OUT,
        "slow": Verdict.DIFFERENT,
        "a": Verdict.SAME,
    }


def test_a_thread_that_ends_does_not_take_its_comparer_with_it(comparers: Comparers):
    comparers.stop()
    thread = threading.Thread(target=comparers.same, args=("a", "a"), kwargs={"timeout_s": 30.0})
    thread.start()
    thread.join()
    before = str(number(comparers))
    assert comparers.same(before, "number", timeout_s=5.0) is Verdict.SAME


def test_a_forked_process_has_comparers_of_its_own(comparers: Comparers):
    before = str(number(comparers))
    child = os.fork()
    if child == 0:
        theirs = comparers.same(before, "number", timeout_s=30.0)
        os._exit(0 if theirs is Verdict.DIFFERENT else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert comparers.same(before, "number", timeout_s=5.0) is Verdict.SAME


def test_nothing_outlives_the_process_that_asked():
    script = f"""
import os
from roll.rewards.math_process import Comparers
comparers = Comparers({PROGRAM!r})
comparers.same("a", "a", timeout_s=30.0)
print(comparers._server.process.pid, comparers._idle[0].number, flush=True)
os.kill(os.getpid(), 9)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    left = set(map(int, ended.stdout.split()))
    assert len(left) == 2
    deadline = time.monotonic() + 10.0
    while left and time.monotonic() < deadline:
        left = {process for process in left if alive(process)}
        time.sleep(0.05)
    assert left == set()


def alive(process: int) -> bool:
    """Whether a process runs; one that nobody has reaped does not."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_a_killed_comparer_had_learnt_the_next_one_knows(comparers: Comparers):
    shape = instructed(comparers, "new")
    assert comparers.same(shape, "known", timeout_s=5.0) is Verdict.SAME
    before = number(comparers)
    assert comparers.same("a", "asleep", timeout_s=1.5) is Verdict.TIMED_OUT
    assert comparers.same(shape, "known", timeout_s=5.0) is Verdict.SAME
    assert comparers.same("other", "known", timeout_s=5.0) is Verdict.DIFFERENT
    assert number(comparers) != before


def test_a_lesson_that_never_ends_costs_the_first_process_and_no_score(comparers: Comparers):
    server = comparers._server
    assert server is not None
    instructed(comparers, "trap")  # quick for a comparer, endless for the first
    assert comparers.same("a", "asleep", timeout_s=0.5) is Verdict.TIMED_OUT
    assert comparers.same("a", "a", timeout_s=30.0) is Verdict.SAME
    assert server.process.wait(timeout=10.0) == -signal.SIGPROF
    assert comparers._server is not server


def test_a_process_is_given_so_many_lessons_and_no_more(comparers: Comparers):
    server = comparers._server
    assert server is not None
    comparers._instructive.extend([("a", "a")] * 1000)
    comparers._teach()
    assert server.num_taught == comparers._instructive.maxlen
    assert comparers.same("a", "a", timeout_s=5.0) is Verdict.SAME


def test_warming_starts_the_first_process_and_waits_for_nothing():
    slow = Comparers((sys.executable, "-c", f"import time\ntime.sleep(1.5){FAKE}"))
    start = time.monotonic()
    slow.warm()
    assert time.monotonic() - start < 1.0
    server = slow._server
    assert server is not None
    slow.warm()
    assert slow.same("a", "a", timeout_s=30.0) is Verdict.SAME
    assert slow._server is server
    slow.stop()


@pytest.mark.parametrize("program", ["import nowhere", "raise SystemExit(1)"])
def test_where_comparing_is_not_possible_nothing_is_scored(program: str):
    load = f"def load():\n    {program}\nfrom roll.rewards.math_child import main\nmain(load)"
    comparers = Comparers((sys.executable, "-c", load))
    with pytest.raises(RewardFailed, match="cannot compare"):
        comparers.same("a", "b", timeout_s=5.0)


def test_a_comparison_that_starting_left_no_time_for_is_a_failure_of_ours():
    slow = Comparers((sys.executable, "-c", f"import time\ntime.sleep(1.5){FAKE}"))
    with pytest.raises(RewardFailed, match="too little"):
        slow.same("a", "asleep", timeout_s=1.0)
    assert slow.same("a", "asleep", timeout_s=1.0) is Verdict.TIMED_OUT
    slow.stop()


STUB = """
import dataclasses, math

@dataclasses.dataclass
class Normal:
    units: bool = True

@dataclasses.dataclass
class LatexExtractionConfig:
    normalization_config: Normal = dataclasses.field(default_factory=Normal)

def parse(text, *, extraction_config, fallback_mode, extraction_mode, parsing_timeout):
    assert parsing_timeout is None and (fallback_mode, extraction_mode) == ("no_fallback", "first_match")
    assert extraction_config == [LatexExtractionConfig(Normal(units="+" not in text))]
    return [text, math.pi]

def verify(gold, said, *, timeout_seconds):
    assert timeout_seconds is None
    return gold == said == ["$ x+1 $", math.pi]
"""


def test_the_program_asks_the_package_about_latex_and_leaves_the_limits_to_us(tmp_path: Path):
    (tmp_path / "math_verify.py").write_text(STUB)  # which stands for the package, whether or not that is installed
    script = """
from roll.rewards.math_process import COMPARERS
print(COMPARERS.same("x+1", "x+1", timeout_s=30.0).name, COMPARERS.same("x+1", "x", timeout_s=5.0).name)
"""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False)
    assert ended.stdout.split() == ["SAME", "DIFFERENT"], ended.stderr
