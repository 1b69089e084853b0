"""Python and a shell in the sandbox, and the attempt's directory there."""

import asyncio
import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from roll.data.tools import ToolCall
from roll.errors import ConfigError
from roll.sandbox.level import TRUSTED_CODE, unavailable_reason
from roll.tools.base import ToolFault, ToolResult
from roll.tools.programs import Python, Shell
from roll.tools.toolkit import Toolkit

pytestmark = pytest.mark.slow

LEVELS = [TRUSTED_CODE, *(["bubblewrap"] if not unavailable_reason() else [])]
every_level = pytest.mark.parametrize("sandbox", LEVELS)


def answers(kind: str, texts: Sequence[str], **options: Any) -> list[ToolResult]:
    argument = {"python": "code", "shell": "command"}[kind]

    async def use() -> list[ToolResult]:
        kit = Toolkit([{"kind": kind, **options}], most_chars=500)
        await kit.start()
        found = [await kit.run(ToolCall(kind, {argument: text})) for text in texts]
        await kit.close()
        return found

    return asyncio.run(use())


@every_level
def test_python_returns_its_output_and_the_value_of_its_last_line(sandbox: str) -> None:
    programs = ["print(1)\n2 + 3", "x = 5", "def f(:", "import math\nmath.sqrt(-1)", "raise SystemExit(3)"]
    printed, silent, unreadable, raised, left = (each.text for each in answers("python", programs, sandbox=sandbox))
    assert (printed, silent, left) == ("1\n5", "(no output)", "[exit code 3]")
    assert "SyntaxError" in unreadable and unreadable.endswith("[exit code 1]")
    assert "ValueError" in raised and "runner.py" not in raised and "line 2" in raised


@every_level
def test_files_are_kept_for_the_attempt_and_variables_are_not(sandbox: str) -> None:
    programs = ["open('kept.py', 'w').write('word = 7')\nx = 1\nNone", "import kept\nkept.word", "x"]
    _, found, forgotten = (each.text for each in answers("python", programs, sandbox=sandbox))
    assert found == "7" and "NameError" in forgotten
    commands = ["mkdir a && echo so > a/b && ln -s /etc/passwd c; pwd; ls", "cat a/b; ls; exit 5"]
    first, second = (each.text for each in answers("shell", commands, sandbox=sandbox))
    assert first.endswith("/work\na\nc") and second == "so\na\nc\n[exit code 5]"
    assert answers("shell", ["ls"], sandbox=sandbox) == [ToolResult("(no output)")]  # another attempt's is empty


@every_level
def test_a_program_that_hangs_is_ended_and_the_attempt_continues(sandbox: str) -> None:
    began = time.monotonic()
    commands = ["echo here > f; echo before; sleep 30", "trap '' TERM; while true; do sleep 1; done", "echo on; ls"]
    hung, stubborn, after = answers("shell", commands, sandbox=sandbox, timeout_s=2)
    assert hung.fault is stubborn.fault is ToolFault.TIMED_OUT and hung.text == "error: before\n[ended after 2 s]"
    assert after == ToolResult("on\nf") and time.monotonic() - began < 28


@every_level
def test_limits_of_memory_and_output_hold(sandbox: str) -> None:
    much, flood = answers("python", ["bytearray(10**9)", "while True: print('x' * 1000)"], sandbox=sandbox, timeout_s=3)
    assert "MemoryError" in much.text
    assert len(flood.text) < 700 and "characters left out" in flood.text


@pytest.mark.skipif(bool(unavailable_reason()), reason="bubblewrap does not work here")
def test_a_command_that_ends_its_own_shell_is_reported_and_the_directory_stays() -> None:
    commands = ["echo so > kept", "kill -9 -1", "cat kept"]
    _, ended, after = answers("shell", commands, sandbox="bubblewrap", timeout_s=2)
    assert ended.fault is not None and after == ToolResult("so")


def test_a_directory_that_is_too_big_is_not_kept_and_a_note_says_so() -> None:
    commands = ["echo so > small", "head -c 12000000 /dev/zero > big; ls", "ls"]
    _, big, after = answers("shell", commands, sandbox=LEVELS[-1])
    assert big.text == "big\nsmall\n[the files could not be kept: the directory is as it was before]"
    assert after == ToolResult("small")


@pytest.mark.skipif(bool(unavailable_reason()), reason="bubblewrap does not work here")
def test_the_sandbox_is_isolated() -> None:
    outside = Path(f"/tmp/roll-outside-{os.getpid()}")
    said = answers("shell", [f"echo x > {outside}; echo done; cat /etc/shadow", f"ls {outside}"])
    assert not outside.exists() and "No such file" in said[1].text and "root:" not in said[0].text
    with contextlib.suppress(FileNotFoundError):
        outside.unlink()


def test_options_that_nothing_can_run_with_are_refused() -> None:
    for make in (Python, Shell):
        with pytest.raises(ConfigError, match="sandbox: no such option"):
            make(sandbox="none")
        with pytest.raises(ConfigError, match="timeout_s and memory_mb must be above 0"):
            make(sandbox=TRUSTED_CODE, timeout_s=0)
