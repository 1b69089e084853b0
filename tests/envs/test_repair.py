"""Software repair: files, tests in the sandbox, messages to the policy, and the programs of QuixBugs."""

import asyncio
import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from roll.data.tasks import jsonl
from roll.envs.base import StepResult
from roll.envs.oracles import RepairOracle as Oracle
from roll.envs.oracles import tool_call
from roll.envs.repair.env import Repair
from roll.envs.repair.testing import FaultyProgram, ProgramTest, run_tests, values_equal
from roll.errors import ConfigError, EnvFailed
from roll.sandbox.base import ExitReason, Program, ProgramResult, ResourceLimits
from roll.sandbox.level import SandboxLevel, unavailable_reason
from roll.types import Message, Task

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(unavailable_reason()), reason=f"untrusted code is not run here: {unavailable_reason()}"),
]
EXAMPLES = Path(__file__).parents[2] / "examples" / "data"
DOUBLE = {
    "entry_point": "double",
    "buggy_code": "def double(x):\n    y = x\n    return y + y + 1\n",
    "tests": [{"args": [x], "expected": 2 * x} for x in (1, 2, 3, 4)],
}
MEND = tool_call("edit_file", path="double.py", old=" + 1", new="")
WITH_DATA = pytest.mark.skipif("ROLL_DATA" not in os.environ, reason="ROLL_DATA names no folder with data")


def task_of(**changes: Any) -> Task:
    row = {name: value for name, value in (DOUBLE | changes).items() if value is not None}
    return Task(id="t7", domain="d", messages=(Message("user", "double(x) is 2 x."),), metadata=row)


async def replies(env: Repair, *said: str) -> list[StepResult]:
    await env.start()
    return [await env.step(text) for text in said]


def told(env: Repair, *said: str) -> list[str]:
    return [message.content for reply in asyncio.run(replies(env, *said)) for message in reply.messages]


async def handed_in(task: Task, *, mended: bool) -> StepResult:
    """The end of an attempt by who knows the answer, or of one that hands in what was given."""
    env, oracle = Repair(task, test_s=5.0 if mended else 0.2), Oracle(task)
    await env.start()
    reply = await env.step(oracle(()) if mended else tool_call("submit"))
    while not reply.done:
        reply = await env.step(oracle(()))
    return reply


def test_a_program_is_listed_read_with_line_numbers_tested_fixed_and_submitted() -> None:
    env = Repair(task_of())
    opening, *_ = asyncio.run(env.start())
    assert opening.content.startswith("double(x) is 2 x.\n\nThe function double in double.py should do this")
    said = [
        tool_call("list_files"),
        tool_call("read_file", path="double.py"),
        tool_call("run_tests"),
        MEND,
        tool_call("run_tests"),
    ]
    *before, last = asyncio.run(replies(env, *said, tool_call("submit")))
    listed, read, failing, edited, passing = (reply.messages[0].content for reply in before)
    assert listed == "double.py (3 lines)"
    assert read == "   1  def double(x):\n   2      y = x\n   3      return y + y + 1"
    assert failing == (
        "0 of 2 tests pass. 2 more are hidden.\ndouble(1): gave 3, not 2\ndouble(3): gave 7, not 6"
    )  # those at even places are shown
    assert (edited, passing) == ("double.py is changed.", "2 of 2 tests pass. 2 more are hidden.")
    assert (last.reward, last.done, last.metrics["success"], last.metrics["turns"]) == (1.0, True, 1.0, 6.0)
    assert last.metrics["valid_actions"] == last.metrics["effective_actions"] == 1.0


def test_a_program_that_passes_the_visible_tests_but_not_the_hidden_ones_is_not_fixed() -> None:
    cheat = tool_call("edit_file", path="double.py", old="y + y + 1", new="{1: 2, 3: 6}[y]")
    shown, _, last = asyncio.run(replies(Repair(task_of()), cheat, tool_call("run_tests"), tool_call("submit")))
    assert not shown.done and (last.reward, last.done) == (0.0, True)
    assert "2 of 4 tests fail." in last.messages[0].content


@pytest.mark.parametrize(
    ("old", "says"),
    [
        ("z", "error: 'old' is not in double.py; give text that occurs there exactly once, without line numbers"),
        ("", "error: 'old' is not in double.py; give text that occurs there exactly once, without line numbers"),
        ("y", "error: 'old' occurs 3 times in double.py; give text that occurs there exactly once"),
    ],
)
def test_an_edit_needs_text_that_occurs_exactly_once(old: str, says: str) -> None:
    env = Repair(task_of())
    edit = tool_call("edit_file", path="double.py", old=old, new="q")
    (wrong, *_), (after, *_) = (
        [m.content for m in r.messages] for r in asyncio.run(replies(env, edit, tool_call("list_files")))
    )
    assert wrong.startswith(says) and after == "double.py (3 lines)"


def test_a_missing_file_and_half_a_character_are_reported() -> None:
    half = tool_call("edit_file", path="double.py", old="+ 1", new="\ud800")
    first, second = told(Repair(task_of()), tool_call("read_file", path="/etc/passwd"), half)
    assert (
        first == "error: no file '/etc/passwd'; there are double.py"
        and second == "error: 'new' contains half a character"
    )


def test_an_unknown_tool_and_wrong_arguments_are_reported_and_counted() -> None:
    said = (
        tool_call("compile"),
        tool_call("read_file", path=3),
        tool_call("edit_file", path="double.py"),
        "<tool_call>{broken</tool_call>",
        "I think it is fine.",
    )
    found = asyncio.run(replies(Repair(task_of(), format_penalty=0.25), *said))
    assert [reply.messages[0].content for reply in found] == [
        "error: no tool named 'compile'",
        "error: read_file: 'path' must be of type string",
        "error: edit_file: 'old' is missing",
        "error: the call is not JSON",
        "Nothing was called. Call a tool.",
    ]
    metrics = found[-1].metrics
    assert [metrics[f"tools/faults/{kind}"] for kind in ("unknown_tool", "bad_arguments", "not_json")] == [
        1.0,
        2.0,
        1.0,
    ]
    assert metrics["valid_actions"] == 0.0 and sum(reply.reward for reply in found) == -1.25


def test_a_program_that_does_not_end_fails_and_later_tests_are_not_run() -> None:
    loop = tool_call("edit_file", path="double.py", old="    y = x", new="    y = x\n    while x == 1: pass")
    env = Repair(task_of(), hidden=0, test_s=0.1)
    _, shown, last = asyncio.run(replies(env, loop, tool_call("run_tests"), tool_call("submit")))
    assert shown.messages[0].content == (
        "0 of 4 tests pass.\ndouble(1): did not end within 0.1 s\n"
        "double(2): not run\ndouble(3): not run\ndouble(4): not run"
    )
    assert (last.reward, last.done) == (0.0, True)


def test_a_program_that_sleeps_for_ever_is_ended_by_the_clock() -> None:
    sleep = tool_call("edit_file", path="double.py", old="    y = x", new="    import time; time.sleep(99)")
    found = told(Repair(task_of(), hidden=0, timeout_s=1.5), sleep, tool_call("run_tests"))
    assert found[1].startswith("0 of 4 tests pass.\ndouble(1): did not end within 1.5 s\ndouble(2): not run")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("raise ValueError('no\\nway')", "raised ValueError: no way (line 2)"),
        ("return (", "raised SyntaxError: '(' was never closed (line 2)"),
        ("import sys; sys.exit(0)", "raised SystemExit: 0 (line 2)"),
        ("import os; os._exit(0)", "gave nothing"),
        ("import os; os.kill(os.getpid(), 11)", "was killed by signal 11"),
        ("return double(x)", "raised RecursionError: maximum recursion depth exceeded"),
        ("return object()", "raised TypeError: the result is an object of type 'object'"),
        ("return 'a' * 100_000", "raised ValueError: the result has more than 65536 characters"),
        ("print(2); return 2.5", "gave 2.5, not 2"),
    ],
)
def test_a_misbehaving_program_fails_its_test_with_a_reason(body: str, says: str) -> None:
    code = f"def double(x):\n    {body}\n"
    task = task_of(buggy_code=code, tests=[{"args": [1], "expected": 2}])
    shown, last = told(Repair(task, hidden=0, test_s=0.2), tool_call("run_tests"), tool_call("submit"))
    assert shown.startswith(f"0 of 1 tests pass.\ndouble(1): {says}") and last == "1 of 1 tests fail."


FORGED = """\
import os
def double(x):
    for descriptor in range(9):
        try:
            os.write(descriptor, b'{"gave": 2}')
        except OSError:
            pass
"""
UNBOUNDED = """\
import signal
def double(x):
    signal.setitimer(signal.ITIMER_PROF, 0)
    while True:
        pass
"""


@pytest.mark.parametrize("code", [FORGED, UNBOUNDED])
def test_a_program_can_neither_spoil_its_result_nor_stop_the_clock(code: str) -> None:
    task = task_of(buggy_code=code, tests=[{"args": [1], "expected": 3}])
    assert told(Repair(task, test_s=0.2), tool_call("submit")) == ["1 of 1 tests fail."]


def test_the_output_of_a_program_does_not_matter() -> None:
    code = "import os\ndef double(x):\n    os.write(1, b'hm\\n')\n    os.write(2, b'hm')\n    return 2 * x\n"
    assert told(Repair(task_of(buggy_code=code)), tool_call("submit")) == ["0 of 4 tests fail."]


def test_iterators_are_lists_tuples_are_lists_and_floats_are_near() -> None:
    code = (
        "def make(kind):\n    if kind == 0:\n        return (i / 3 for i in range(2))\n    return {'a': (1, [2.0])}\n"
    )
    tests = [{"args": [0], "expected": [0, 0.33335]}, {"args": [1], "expected": {"a": [1, [2]]}}]
    task = task_of(entry_point="make", buggy_code=code, tests=tests)
    (last,) = asyncio.run(replies(Repair(task), tool_call("submit")))
    assert last.reward == 1.0


@pytest.mark.parametrize(
    ("found", "expected", "alike"),
    [
        (1.00009, 1, True), (1.0002, 1, False), (2, 3, False), (10**20, 10**20, True), (True, 1, False),
        (1, True, False),
        ([1, [2.0]], [1, [2]], True), ([1], [1, 2], False), ({"a": 1}, {"a": 1.0}, True), ({"a": 1}, {"b": 1}, False),
        ("1", 1, False), (None, None, True), (None, 0, False), (float("inf"), float("inf"), True),
        (10**400, 1.0, False), ([], {}, False), ({}, None, False),
    ],
)  # fmt: skip
def test_results_are_compared_as_json_values(found: Any, expected: Any, alike: bool) -> None:
    assert values_equal(found, expected) is alike


def test_the_last_turn_ends_it_without_a_reward() -> None:
    *_, last = asyncio.run(replies(Repair(task_of(), max_turns=2), MEND, tool_call("run_tests")))
    assert last.done and last.reward == 0.0 and last.metrics["success"] == 0.0


def test_calls_after_handing_in_are_left_alone() -> None:
    (last,) = asyncio.run(replies(Repair(task_of()), tool_call("submit") + MEND))
    assert last.done and len(last.messages) == 1


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"buggy_code": None}, "repair: task 't7': Object missing required field `buggy_code`"),
        ({"entry_point": None}, "missing required field `entry_point`"),
        ({"entry_point": "../x"}, "at `$.entry_point`"),
        ({"tests": []}, "at `$.tests`"),
        ({"tests": [{"args": []}]}, "missing required field `expected` - at `$.tests[0]`"),
    ],
)
def test_a_row_with_a_missing_field_is_reported_in_one_line(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        Repair(task_of(**changes))
    assert says in str(error.value) and "\n" not in str(error.value)


def test_a_row_without_a_question_is_reported_too() -> None:
    with pytest.raises(ConfigError, match="task 't7' has no question; give its row a 'prompt'"):
        Repair(dataclasses.replace(task_of(), messages=()))


def test_a_sandbox_that_does_not_start_is_no_zero() -> None:
    async def silent(program: Program, limits: ResourceLimits) -> ProgramResult:
        return ProgramResult(
            reason=ExitReason.EXITED, exit_code=1, signal=None, stdout=b"", stderr=b"no python", cpu_s=0.0, wall_s=0.0
        )

    program = FaultyProgram(buggy_code="", entry_point="f", tests=(ProgramTest(args=(), expected=1),))
    level = SandboxLevel(name="silent", run=silent)
    with pytest.raises(EnvFailed, match=r"did not start \(python3 said 'no python'\)"):
        asyncio.run(run_tests(program, {}, program.tests, level, test_s=1.0, timeout_s=1.0))


def test_the_programs_of_the_examples_are_faulty_and_can_be_fixed() -> None:
    tasks = [task for name in ("repair", "repair_held_out") for task in jsonl(str(EXAMPLES / f"{name}.jsonl"))]

    async def both(task: Task) -> tuple[float, float]:
        return (await handed_in(task, mended=True)).reward, (await handed_in(task, mended=False)).reward

    assert [asyncio.run(both(task)) for task in tasks] == [(1.0, 0.0)] * 6


@pytest.mark.sweep
@WITH_DATA
def test_every_program_of_quixbugs_is_solved_by_its_reference_and_none_as_it_is() -> None:
    tasks = jsonl(str(Path(os.environ["ROLL_DATA"]) / "swe" / "quixbugs_test.jsonl"))

    async def all_of(*, mended: bool) -> list[float]:
        return [(await handed_in(task, mended=mended)).reward for task in tasks]

    assert asyncio.run(all_of(mended=True)) == [1.0] * 31
    assert asyncio.run(all_of(mended=False)) == [0.0] * 31
