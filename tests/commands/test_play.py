"""A person's part, taken by a pipe."""

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from roll.commands.play import play
from roll.errors import ConfigError

pytestmark = pytest.mark.slow


def played(env: str, said: str, *options: str, seed: int = 0) -> str:
    out: list[str] = []
    play(env, options, seed=seed, keyboard=io.StringIO(said), echo=out.append)
    return "\n".join(out)


def test_arrows_letters_and_capitals_move_and_other_keys_are_ignored():
    options = ("size=5", "holes=0", "terse=true", "max_turns=4")
    ways = [played("frozen_lake", keys, *options, seed=3) for keys in ("lurd", "\x1b[D\x1b[A\x1b[C\x1b[B", "L x\nURD")]
    assert ways[0] == ways[1] == ways[2]
    assert ways[0] != played("frozen_lake", "rrrr", *options, seed=3)
    assert "turns 4" in ways[0].splitlines()[-1] and "valid_actions 1" in ways[0].splitlines()[-1]


def test_q_and_the_end_of_a_pipe_quit():
    for keys in ("q", "", "\x04", "uqddddd", "\x1b"):
        assert played("sokoban", keys).splitlines()[-1] == "quit before the end"


def test_a_game_without_moves_takes_lines():
    out = played("guess_number", "\n12\n5\n5\n5\n5\n", "max_turns=3", "high=20", seed=4)
    assert out.count("1-20?") == 2  # at first, and after an empty line
    assert out.splitlines()[-1].startswith("over: reward 0, success 0, turns 3")
    assert played("guess_number", "q\n").splitlines()[-1] == "quit before the end"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["size"], "command line: 'size' is not an override; write key.sub=value"),
        (["size=[1"], "command line: size: broken YAML"),
        (["size=" + "9" * 5000], "command line: size: a whole number has at most 100 digits"),
        (["sise=4"], "environment 'frozen_lake' takes no 'sise'; did you mean 'size'?"),
        (["size=1"], "frozen_lake: size must be a whole number"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(options: list[str], says: str):
    with pytest.raises(ConfigError) as found:
        played("frozen_lake", "", *options)
    assert says in str(found.value) and "\n" not in str(found.value)


BROKEN = """\
from roll.envs.base import StepResult
from roll.types import Message

class Sound:
    def __init__(self, task):
        self.turn = 0

    async def start(self):
        return (Message("user", "hello"),)

    async def step(self, response):
        self.turn += 1
        if self.turn == 1:
            return StepResult(messages=(Message("user", "again"),), reward=0.25)
        end = (Message("user", ""),)
        return StepResult(messages=end, reward=1 / 3, done=True, metrics={"right": 1 / 3})

    async def close(self): ...

class Tuple(Sound):
    async def step(self, response):
        return "seen", 0.0, True, False, {}

class Sync(Sound):
    def step(self, response):
        return StepResult(done=True)

class OpensWithText(Sound):
    async def start(self):
        return "hello"

class Raises(Sound):
    async def step(self, response):
        return {}["nowhere"]

class NoTask(Sound):
    def __init__(self): ...

class NoStep:
    def __init__(self, task): ...
    start = Sound.start

class OnlyReset:
    def __init__(self, task): ...
    async def reset(self): ...

class ClosesBadly(Sound):
    async def close(self):
        raise OSError("the door is stuck")
"""


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_worlds.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Tuple", ", turn 0: not a StepResult (got ('seen', 0.0, True, False, {})); return roll.envs.base.StepResult"),
        ("Sync", ", turn 0: TypeError: object StepResult can't be used in 'await' expression"),
        ("OpensWithText", ", starting: not a tuple of messages (got 'hello'); give Message('user', ...)"),
        ("Raises", ", turn 0: KeyError: 'nowhere' (broken_worlds.py:34)"),
        ("NoTask", ": TypeError: NoTask.__init__() takes 1 positional argument but 2 were given"),
        ("NoStep", ", turn 0: AttributeError: 'NoStep' object has no attribute 'step'"),
        ("ClosesBadly", ", closing: OSError: the door is stuck (broken_worlds.py:49)"),
    ],
)
def test_a_broken_environment_is_reported_in_one_line(name: str, says: str):
    with pytest.raises(ConfigError) as found:
        played(f"broken_worlds:{name}", "a\nb\n")
    told = re.sub(r"\(\S+/", "(", str(found.value))
    assert told == f"environment 'broken_worlds:{name}' of task 'seed-0'{says}"


@pytest.mark.usefixtures("broken")
def test_an_environment_without_the_methods_of_the_protocol_is_refused():
    with pytest.raises(ConfigError, match="'broken_worlds:OnlyReset' has no method `async start`; add it to the class"):
        played("broken_worlds:OnlyReset", "a\nb\n")


@pytest.mark.usefixtures("broken")
def test_rewards_are_shown_per_turn_and_as_a_sum_at_the_end():
    shown = [line for line in played("broken_worlds:Sound", "a\nb\n").splitlines() if line]
    assert shown == ["hello", "again", "reward 0.25", "reward 0.333", "over: reward 0.583, right 0.333"]


def test_the_only_reward_is_shown_once():
    shown = played("guess_number", "2\n", "high=2").split("\n\n")
    assert shown[:1] == ["1-2?"] and shown[-1].lstrip().startswith("over: reward 1, success 1, turns 1")
    assert "\n".join(shown).count("reward 1") == 1


def test_an_unknown_environment_is_refused():
    with pytest.raises(ConfigError, match="no environment named 'sokobann'; did you mean 'sokoban'"):
        played("sokobann", "")


def test_the_command_plays_through_a_pipe_and_through_a_terminal():
    command = [sys.executable, "-m", "roll.cli", "play", "sokoban", "size=5", "--seed", "3"]
    piped = subprocess.run(command, input="uq", capture_output=True, text=True, timeout=300)
    assert piped.returncode == 0 and piped.stdout.endswith("quit before the end\n"), piped.stderr
    ours, theirs = pty.openpty()
    os.write(ours, b"\x1b[Aq")
    shown = subprocess.run(command, stdin=theirs, capture_output=True, text=True, timeout=300)
    os.close(ours)
    os.close(theirs)
    assert shown.stdout == piped.stdout
