"""A person's part, taken by a pipe."""

import io
import os
import pty
import subprocess
import sys

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
    assert out.splitlines()[-1].startswith("over: success 0, turns 3")
    assert played("guess_number", "q\n").splitlines()[-1] == "quit before the end"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["size"], "play: 'size' is not KEY=VALUE"),
        (["size=[1"], "play: size: '[1' cannot be read"),
        (["sise=4"], "environment 'frozen_lake' takes no 'sise'; did you mean 'size'?"),
        (["size=1"], "frozen_lake: size must be a whole number"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(options: list[str], says: str):
    with pytest.raises(ConfigError) as found:
        played("frozen_lake", "", *options)
    assert says in str(found.value) and "\n" not in str(found.value)


def test_an_unknown_environment_is_refused():
    with pytest.raises(ConfigError, match="no environment named 'sokobann'; did you mean 'sokoban'"):
        played("sokobann", "")


def test_the_command_plays_through_a_pipe_and_through_a_terminal():
    command = [sys.executable, "-m", "roll.cli", "play", "sokoban", "size=5", "--seed", "3"]
    piped = subprocess.run(command, input="uq", capture_output=True, text=True, timeout=60)
    assert piped.returncode == 0 and piped.stdout.endswith("quit before the end\n"), piped.stderr
    ours, theirs = pty.openpty()
    os.write(ours, b"\x1b[Aq")
    shown = subprocess.run(command, stdin=theirs, capture_output=True, text=True, timeout=60)
    os.close(ours)
    os.close(theirs)
    assert shown.stdout == piped.stdout
