"""The choice of a level, and the inputs and results of a program at it."""

import asyncio

import pytest

from roll.errors import ConfigError
from roll.sandbox.base import ExitReason, Program, ResourceLimits, SandboxFailed
from roll.sandbox.level import (
    BUBBLEWRAP,
    PLAIN,
    TRUSTED_CODE,
    SandboxLevel,
    available,
    choose,
    run,
    run_coroutine,
    unavailable_reason,
)
from roll.sandbox.seccomp import filter_for

pytestmark = pytest.mark.slow

LEVELS = [
    pytest.param(
        BUBBLEWRAP, id="bubblewrap", marks=pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason())
    ),
    pytest.param(PLAIN, id="plain"),
]


def script(source: str, **fields: object) -> Program:
    return Program(argv=("python3", "-I", "-S", "-c", source), **fields)


@pytest.mark.parametrize("level", LEVELS)
def test_a_program_gets_its_files_and_input_and_gives_back_its_output(level: SandboxLevel) -> None:
    source = "import sys\nprint(open('a.txt').read() + sys.stdin.read())\nprint('no', file=sys.stderr)\nsys.exit(3)"
    outcome = run_coroutine(level.run(script(source, files={"a.txt": b"one "}, stdin=b"two"), ResourceLimits()))
    assert (outcome.reason, outcome.exit_code, outcome.signal) == (ExitReason.EXITED, 3, None)
    assert (outcome.stdout, outcome.stderr) == (b"one two\n", b"no\n")
    assert not outcome.succeeded and 0 < outcome.wall_s < 5


@pytest.mark.parametrize("level", LEVELS)
def test_a_death_by_signal_is_reported(level: SandboxLevel) -> None:
    outcome = run_coroutine(level.run(script("import os\nos.kill(os.getpid(), 11)"), ResourceLimits()))
    assert (outcome.reason, outcome.exit_code, outcome.signal) == (ExitReason.KILLED, None, 11)


@pytest.mark.parametrize("level", LEVELS)
def test_time_and_output_end_a_program_from_outside(level: SandboxLevel) -> None:
    endless = script("print('here', flush=True)\nwhile True: pass", ready=b"here")
    slow = run_coroutine(level.run(endless, ResourceLimits(wall_s=0.5)))
    assert slow.reason is ExitReason.TIMED_OUT and slow.exit_code is None
    assert slow.stdout == b"here\n" and slow.wall_s >= 0.5
    loud = run_coroutine(
        level.run(script("print('x' * 100, flush=True)\nwhile True: pass"), ResourceLimits(output_bytes=10))
    )
    assert loud.reason is ExitReason.OUTPUT_FLOOD and loud.stdout == b"x" * 10


BUSY = "import time\nwhile time.process_time() < 0.3: pass\n"
BOTH_KILLED = f"""
import os
read, write = os.pipe()
child = os.fork() == 0
{BUSY}
if child: os.write(write, b"x")
else: os.read(read, 1), print("x" * 2**21)
time.sleep(60)
"""


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("source", "least_s"),
    [
        (BUSY, 0.3),
        (f"import os\nif os.fork():\n    os.wait()\n{BUSY}", 0.6),
        (BOTH_KILLED, 0.5),  # CPU time of running processes has a resolution of 0.01 s
        ("import time\ntime.sleep(6)", 0.0),
    ],
    ids=["it ends", "its child ends", "it and its child are killed", "it sleeps"],
)
def test_the_cpu_time_of_all_its_processes_is_counted(level: SandboxLevel, source: str, least_s: float) -> None:
    outcome = run_coroutine(level.run(script(source), ResourceLimits(wall_s=30.0)))
    assert least_s <= outcome.cpu_s < least_s + 5.0, outcome


@pytest.mark.parametrize("level", LEVELS)
def test_time_counts_from_the_line_that_says_the_program_has_started(level: SandboxLevel) -> None:
    source = "import time\ntime.sleep(4)\nprint('ready', flush=True)\nprint('done')"
    late = run_coroutine(level.run(script(source, ready=b"ready"), ResourceLimits(wall_s=3.5)))
    assert late.reason is ExitReason.EXITED and late.stdout == b"ready\ndone\n"
    never = run_coroutine(level.run(script("while True: pass", ready=b"ready"), ResourceLimits(start_s=0.5)))
    assert never.reason is ExitReason.TIMED_OUT and never.stdout == b""


@pytest.mark.parametrize("level", LEVELS)
def test_output_of_exactly_the_limit_is_allowed(level: SandboxLevel) -> None:
    outcome = run_coroutine(level.run(script("print('x' * 9)"), ResourceLimits(output_bytes=10)))
    assert outcome.succeeded and outcome.stdout == b"x" * 9 + b"\n"


@pytest.mark.parametrize("level", LEVELS)
def test_a_program_that_is_not_there_ends_with_an_exit_code(level: SandboxLevel) -> None:
    outcome = run_coroutine(level.run(Program(argv=("no-such-program",)), ResourceLimits()))
    assert outcome.reason is ExitReason.EXITED and outcome.exit_code not in (0, None)


@pytest.mark.parametrize("level", LEVELS)
def test_many_run_side_by_side(level: SandboxLevel) -> None:
    async def all_of_them() -> list[bytes]:
        work = (level.run(Program(argv=("cat",), stdin=str(n).encode()), ResourceLimits()) for n in range(8))
        return [outcome.stdout for outcome in await asyncio.gather(*work)]

    assert asyncio.run(all_of_them()) == [str(n).encode() for n in range(8)]


@pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason())
def test_process_1_is_not_killed_from_within() -> None:
    source = "import os\nif os.fork() == 0:\n    os.kill(1, 9)\n    os._exit(0)\nos.wait()\nprint(os.getpid())"
    assert run_coroutine(BUBBLEWRAP.run(script(source, first=True), ResourceLimits())).stdout == b"1\n"


@pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason())
def test_a_program_that_speaks_like_a_broken_sandbox_is_not_taken_for_one() -> None:
    source = "import sys\nprint('bwrap: setting up uid map: Permission denied', file=sys.stderr)\nsys.exit(1)"
    assert run_coroutine(BUBBLEWRAP.run(script(source), ResourceLimits())).exit_code == 1


@pytest.mark.parametrize("level", LEVELS)
def test_names_of_files_have_no_directories(level: SandboxLevel) -> None:
    with pytest.raises(ValueError, match="no directories"):
        run_coroutine(level.run(script("pass", files={"../x": b""}), ResourceLimits()))


def test_untrusted_code_needs_bubblewrap_or_words() -> None:
    assert choose(TRUSTED_CODE) is PLAIN and PLAIN.lacks
    for option in ("none", "plain", "", "none: i trust this code"):
        with pytest.raises(ConfigError, match="no such option"):
            choose(option)
    if unavailable_reason():
        with pytest.raises(ConfigError, match="not run without bubblewrap"):
            choose("auto")
        assert available() is PLAIN
    else:
        assert choose("auto") is choose("bubblewrap") is available() is BUBBLEWRAP


def test_a_run_needs_no_loop_and_works_inside_of_one() -> None:
    async def inside() -> bytes:
        return run(Program(argv=("cat",), stdin=b"a"), ResourceLimits(), TRUSTED_CODE).stdout

    assert run(Program(argv=("cat",), stdin=b"b"), ResourceLimits(), TRUSTED_CODE).stdout == b"b"
    assert asyncio.run(inside()) == b"a"


def test_errors_come_out_of_the_other_thread() -> None:
    async def failing() -> None:
        raise SandboxFailed("no")

    with pytest.raises(SandboxFailed, match="no"):
        run_coroutine(failing())


def test_a_filter_is_whole_instructions_and_there_is_none_for_a_machine_that_is_not_known() -> None:
    assert filter_for("vax") == b""
    for machine in ("x86_64", "aarch64"):
        assert filter_for(machine) and len(filter_for(machine)) % 8 == 0
