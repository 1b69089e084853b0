"""Which level is chosen, and what a program gets and gives back at it."""

import asyncio

import pytest

from roll.errors import ConfigError
from roll.sandbox.base import Ended, Limits, Program, SandboxFailed
from roll.sandbox.level import BUBBLEWRAP, PLAIN, TRUSTED, Level, available, choose, run, wait_for, why_not
from roll.sandbox.seccomp import filter_for

LEVELS = [
    pytest.param(BUBBLEWRAP, id="bubblewrap", marks=pytest.mark.skipif(bool(why_not()), reason=why_not())),
    pytest.param(PLAIN, id="plain"),
]


def script(source: str, **fields: object) -> Program:
    return Program(argv=("python3", "-I", "-S", "-c", source), **fields)


@pytest.mark.parametrize("level", LEVELS)
def test_a_program_gets_its_files_and_input_and_gives_back_its_output(level: Level) -> None:
    source = "import sys\nprint(open('a.txt').read() + sys.stdin.read())\nprint('no', file=sys.stderr)\nsys.exit(3)"
    outcome = wait_for(level.run(script(source, files={"a.txt": b"one "}, stdin=b"two"), Limits()))
    assert (outcome.ended, outcome.exit_code, outcome.signal) == (Ended.EXITED, 3, None)
    assert (outcome.stdout, outcome.stderr) == (b"one two\n", b"no\n")
    assert not outcome.succeeded and 0 < outcome.wall_s < 5


@pytest.mark.parametrize("level", LEVELS)
def test_a_death_by_signal_is_said(level: Level) -> None:
    outcome = wait_for(level.run(script("import os\nos.kill(os.getpid(), 11)"), Limits()))
    assert (outcome.ended, outcome.exit_code, outcome.signal) == (Ended.KILLED, None, 11)


@pytest.mark.parametrize("level", LEVELS)
def test_time_and_output_end_a_program_from_outside(level: Level) -> None:
    slow = wait_for(level.run(script("print('here', flush=True)\nwhile True: pass"), Limits(wall_s=0.5)))
    assert slow.ended is Ended.TIMED_OUT and slow.exit_code is None
    assert slow.stdout == b"here\n" and 0.5 <= slow.wall_s < 1.5
    loud = wait_for(level.run(script("print('x' * 100, flush=True)\nwhile True: pass"), Limits(output_bytes=10)))
    assert loud.ended is Ended.OUTPUT_FLOOD and loud.stdout == b"x" * 10 and loud.wall_s < 2


@pytest.mark.parametrize("level", LEVELS)
def test_output_of_exactly_the_limit_is_no_flood(level: Level) -> None:
    outcome = wait_for(level.run(script("print('x' * 9)"), Limits(output_bytes=10)))
    assert outcome.succeeded and outcome.stdout == b"x" * 9 + b"\n"


@pytest.mark.parametrize("level", LEVELS)
def test_a_program_that_is_not_there_ends_with_an_exit_code(level: Level) -> None:
    outcome = wait_for(level.run(Program(argv=("no-such-program",)), Limits()))
    assert outcome.ended is Ended.EXITED and outcome.exit_code not in (0, None)


@pytest.mark.parametrize("level", LEVELS)
def test_many_run_side_by_side(level: Level) -> None:
    async def all_of_them() -> list[bytes]:
        work = (level.run(Program(argv=("cat",), stdin=str(n).encode()), Limits()) for n in range(8))
        return [outcome.stdout for outcome in await asyncio.gather(*work)]

    assert asyncio.run(all_of_them()) == [str(n).encode() for n in range(8)]


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_process_1_is_not_killed_from_within() -> None:
    source = "import os\nif os.fork() == 0:\n    os.kill(1, 9)\n    os._exit(0)\nos.wait()\nprint(os.getpid())"
    assert wait_for(BUBBLEWRAP.run(script(source, first=True), Limits())).stdout == b"1\n"


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_program_that_speaks_like_a_broken_sandbox_is_not_taken_for_one() -> None:
    source = "import sys\nprint('bwrap: setting up uid map: Permission denied', file=sys.stderr)\nsys.exit(1)"
    assert wait_for(BUBBLEWRAP.run(script(source), Limits())).exit_code == 1


@pytest.mark.parametrize("level", LEVELS)
def test_names_of_files_have_no_directories(level: Level) -> None:
    with pytest.raises(ValueError, match="no directories"):
        wait_for(level.run(script("pass", files={"../x": b""}), Limits()))


def test_untrusted_code_needs_bubblewrap_or_words() -> None:
    assert choose(TRUSTED) is PLAIN and PLAIN.lacks
    for option in ("none", "plain", "", "none: i trust this code"):
        with pytest.raises(ConfigError, match="no such option"):
            choose(option)
    if why_not():
        with pytest.raises(ConfigError, match="not run without bubblewrap"):
            choose("auto")
        assert available() is PLAIN
    else:
        assert choose("auto") is choose("bubblewrap") is available() is BUBBLEWRAP


def test_a_run_needs_no_loop_and_works_inside_of_one() -> None:
    async def inside() -> bytes:
        return run(Program(argv=("cat",), stdin=b"a"), Limits(), TRUSTED).stdout

    assert run(Program(argv=("cat",), stdin=b"b"), Limits(), TRUSTED).stdout == b"b"
    assert asyncio.run(inside()) == b"a"


def test_errors_come_out_of_the_other_thread() -> None:
    async def failing() -> None:
        raise SandboxFailed("no")

    with pytest.raises(SandboxFailed, match="no"):
        wait_for(failing())


def test_a_filter_is_whole_instructions_and_there_is_none_for_a_machine_that_is_not_known() -> None:
    assert filter_for("vax") == b""
    for machine in ("x86_64", "aarch64"):
        assert filter_for(machine) and len(filter_for(machine)) % 8 == 0
