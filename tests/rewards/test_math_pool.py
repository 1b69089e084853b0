"""Comparing in processes that can be killed: limits, deaths, threads and forks, with a fake comparison."""

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
from roll.rewards.math.pool import MathVerifyPool, Verdict

pytestmark = pytest.mark.slow

FAKE = """
import os, signal, time
from roll.rewards.math.child import main

known, asker = set(), os.getppid()  # the server and its forks have different parents

def compare(gold, answer):
    if answer == "busy": 9**9**9
    if answer == "asleep": time.sleep(60)
    if answer == "die": os._exit(3)
    if answer == "killed": os.kill(os.getpid(), signal.SIGKILL)
    if answer == "raise": raise ValueError(answer)
    if answer == "greedy": bytearray(8 * 2**30)
    while answer == "gate" and not os.path.exists(gold): time.sleep(0.01)
    if answer == "slow": time.sleep(0.5)
    if answer == "number": return gold == str(os.getpid())
    if answer == "new":
        time.sleep(0.0 if gold in known else 0.03)
        known.add(gold)
    if answer == "known": return gold in known
    if answer == "trap" and os.getppid() != asker:
        time.sleep(0.03)
        return True
    if answer == "trap": 9**9**9
    return gold == answer

main(lambda: compare, ())
"""
PROGRAM = (sys.executable, "-c", FAKE)
LIMIT_S = 30.0
"""CPU time of comparisons that end at once."""
HANG_S = 120.0


@pytest.fixture
def pool() -> Iterator[MathVerifyPool]:
    found = MathVerifyPool(PROGRAM)
    found.compare("a", "a", timeout_s=30.0)
    yield found
    found.stop()


@pytest.fixture
def impatient() -> Iterator[MathVerifyPool]:
    """A pool that gives a comparison no more wall time than CPU time, as on an overloaded machine."""
    found = MathVerifyPool(PROGRAM, wall_factor=1.0)
    found.compare("a", "a", timeout_s=30.0)
    yield found
    found.stop()


def idle_pid(pool: MathVerifyPool) -> int:
    """Pid of the process that will run the next comparison."""
    (comparer,) = pool._idle
    return comparer.pid


def record_warmup_case(pool: MathVerifyPool, answer: str) -> str:
    """A gold answer whose comparison took long enough, and not too long, to become a warm-up case."""
    for attempt in range(100):
        pool.compare(f"shape {attempt}", answer, timeout_s=5.0)
        if pool._warmup_cases:
            return pool._warmup_cases[-1][0]
    raise AssertionError("no comparison became a warm-up case")


def test_a_comparison_says_same_or_different(pool: MathVerifyPool):
    assert pool.compare("a", "a", timeout_s=5.0) is Verdict.SAME
    assert pool.compare("a", "\ud800 {\n}", timeout_s=5.0) is Verdict.DIFFERENT


def test_a_comparison_that_uses_up_its_cpu_time_is_killed_and_the_next_finds_a_fresh_process(pool: MathVerifyPool):
    before = idle_pid(pool)
    assert pool.compare("a", "busy", timeout_s=0.5) is Verdict.TIMED_OUT
    assert pool.compare("a", "a", timeout_s=5.0) is Verdict.SAME
    assert idle_pid(pool) != before
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)


def test_a_comparison_without_cpu_time_has_no_verdict_and_the_next_finds_a_fresh_process(
    impatient: MathVerifyPool,
):
    before = idle_pid(impatient)
    with pytest.raises(RewardFailed, match=r"less than 0\.5 s of CPU time"):
        impatient.compare("a", "asleep", timeout_s=0.5)
    assert impatient.compare("a", "a", timeout_s=LIMIT_S) is Verdict.SAME
    assert idle_pid(impatient) != before
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)


def test_a_stopped_process_gets_no_zero_and_finishes_when_it_runs_again(pool: MathVerifyPool):
    before = idle_pid(pool)
    os.kill(before, signal.SIGSTOP)
    timer = threading.Timer(1.5, os.kill, (before, signal.SIGCONT))  # three times the limit without any CPU time
    timer.start()
    assert pool.compare("a", "a", timeout_s=0.5) is Verdict.SAME
    assert idle_pid(pool) == before
    timer.join()


@pytest.mark.parametrize("text", ["die", "raise", "greedy"])
def test_a_text_that_ends_its_process_twice_has_crashed(pool: MathVerifyPool, text: str):
    assert pool.compare("a", text, timeout_s=5.0) is Verdict.CRASHED
    assert pool.compare("a", "a", timeout_s=5.0) is Verdict.SAME


def test_a_process_that_something_else_kills_twice_is_a_failure_and_no_zero(pool: MathVerifyPool):
    with pytest.raises(RewardFailed, match="killed twice"):
        pool.compare("a", "killed", timeout_s=5.0)
    assert pool.compare("a", "a", timeout_s=5.0) is Verdict.SAME


def test_a_comparer_that_was_killed_by_hand_is_replaced_and_costs_no_score(pool: MathVerifyPool):
    before = idle_pid(pool)
    os.kill(before, signal.SIGKILL)
    assert pool.compare("a", "a", timeout_s=5.0) is Verdict.SAME
    assert idle_pid(pool) != before


def test_a_dead_server_is_replaced(pool: MathVerifyPool):
    server = pool._server
    assert server is not None
    server.process.kill()
    os.kill(idle_pid(pool), signal.SIGKILL)
    assert pool.compare("a", "a", timeout_s=30.0) is Verdict.SAME


def test_one_comparer_serves_one_caller_after_the_other(pool: MathVerifyPool):
    before = str(idle_pid(pool))
    assert [pool.compare(before, "number", timeout_s=5.0) for _ in range(3)] == [Verdict.SAME] * 3


def test_threads_do_not_wait_for_each_other_and_one_that_hangs_costs_the_others_nothing(
    pool: MathVerifyPool, tmp_path: Path
):
    gate = tmp_path / "gate"
    hung = threading.Thread(target=pool.compare, args=(str(gate), "gate"), kwargs={"timeout_s": LIMIT_S})
    hung.start()
    verdicts: dict[str, Verdict] = {}

    def ask(index: int, text: str) -> None:
        verdicts[f"{text} {index}"] = pool.compare("a", text, timeout_s=1.0)

    threads = [threading.Thread(target=ask, args=case) for case in enumerate(["slow", "a", "busy", "slow"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert hung.is_alive()
    gate.touch()
    hung.join()
    assert {case.split()[0]: verdict for case, verdict in verdicts.items()} == {
        "busy": Verdict.TIMED_OUT,
        "slow": Verdict.DIFFERENT,
        "a": Verdict.SAME,
    }


def test_a_thread_that_ends_does_not_take_its_comparer_with_it(pool: MathVerifyPool):
    pool.stop()
    thread = threading.Thread(target=pool.compare, args=("a", "a"), kwargs={"timeout_s": 30.0})
    thread.start()
    thread.join()
    before = str(idle_pid(pool))
    assert pool.compare(before, "number", timeout_s=5.0) is Verdict.SAME


def test_a_forked_process_starts_with_an_empty_pool(pool: MathVerifyPool):
    before = str(idle_pid(pool))
    child = os.fork()
    if child == 0:
        theirs = pool.compare(before, "number", timeout_s=30.0)
        os._exit(0 if theirs is Verdict.DIFFERENT else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert pool.compare(before, "number", timeout_s=5.0) is Verdict.SAME


def test_no_process_outlives_its_owner():
    script = f"""
import os
from roll.rewards.math.pool import MathVerifyPool
pool = MathVerifyPool({PROGRAM!r})
pool.compare("a", "a", timeout_s=30.0)
print(pool._server.process.pid, pool._idle[0].pid, flush=True)
os.kill(os.getpid(), 9)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    left = set(map(int, ended.stdout.split()))
    assert len(left) == 2
    deadline = time.monotonic() + HANG_S
    while left and time.monotonic() < deadline:
        left = {process for process in left if alive(process)}
        time.sleep(0.05)
    assert left == set()


def alive(process: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_parser_tables_of_a_killed_comparer_are_rebuilt_by_warm_up_cases(pool: MathVerifyPool):
    shape = record_warmup_case(pool, "new")
    assert pool.compare(shape, "known", timeout_s=5.0) is Verdict.SAME
    before = idle_pid(pool)
    assert pool.compare("a", "busy", timeout_s=1.5) is Verdict.TIMED_OUT
    assert pool.compare(shape, "known", timeout_s=5.0) is Verdict.SAME
    assert pool.compare("other", "known", timeout_s=5.0) is Verdict.DIFFERENT
    assert idle_pid(pool) != before


def test_an_endless_warm_up_case_costs_the_server_and_no_score(pool: MathVerifyPool):
    server = pool._server
    assert server is not None
    record_warmup_case(pool, "trap")  # quick in a comparer, endless in the server
    assert pool.compare("a", "busy", timeout_s=0.5) is Verdict.TIMED_OUT
    assert pool.compare("a", "a", timeout_s=30.0) is Verdict.SAME
    assert server.process.wait(timeout=HANG_S) == -signal.SIGPROF
    assert pool._server is not server


def test_the_number_of_warm_up_cases_per_server_is_bounded(pool: MathVerifyPool):
    server = pool._server
    assert server is not None
    pool._warmup_cases.extend([("a", "a")] * 1000)
    pool._send_warmup_cases()
    assert pool._num_warmups == pool._warmup_cases.maxlen
    assert pool.compare("a", "a", timeout_s=5.0) is Verdict.SAME


def test_warm_starts_the_server_without_waiting(tmp_path: Path):
    gate = tmp_path / "gate"
    waiting = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01){FAKE}"
    slow = MathVerifyPool((sys.executable, "-c", waiting))
    slow.warm()  # would wait for ever if it waited for the server
    server = slow._server
    assert server is not None
    slow.warm()
    gate.touch()
    assert slow.compare("a", "a", timeout_s=30.0) is Verdict.SAME
    assert slow._server is server
    slow.stop()


@pytest.mark.parametrize("program", ["import nowhere", "raise SystemExit(1)"])
def test_without_math_verify_there_is_no_score(program: str):
    load = f"def load():\n    {program}\nfrom roll.rewards.math.child import main\nmain(load, ())"
    pool = MathVerifyPool((sys.executable, "-c", load))
    with pytest.raises(RewardFailed, match="cannot compare"):
        pool.compare("a", "b", timeout_s=5.0)


def test_a_slow_start_costs_a_comparison_none_of_its_time():
    slow = MathVerifyPool((sys.executable, "-c", f"import time\ntime.sleep(2){FAKE}"))
    assert slow.compare("a", "slow", timeout_s=0.5) is Verdict.DIFFERENT
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


def test_the_child_calls_the_package_with_latex_and_without_its_time_limits(tmp_path: Path):
    (tmp_path / "math_verify.py").write_text(STUB)  # replaces the package, whether or not that is installed
    script = """
from roll.rewards.math.pool import MathVerifyPool
pool = MathVerifyPool()
print(pool.compare("x+1", "x+1", timeout_s=30.0).name, pool.compare("x+1", "x", timeout_s=5.0).name)
"""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False)
    assert ended.stdout.split() == ["SAME", "DIFFERENT"], ended.stderr
