"""Scripted agents: functions from a conversation to the next response, for warm starts and for testing environments.

A scripted agent sees the policy's messages, parses the world from them, and plays well. `noise` is the fraction of its
moves that are random; the draws depend on a hash of the conversation, so equal conversations get equal responses.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from functools import lru_cache

from roll.data.tools import ToolCall, format_call
from roll.envs import frozen_lake as lakes
from roll.envs import sokoban_levels
from roll.envs.actions import STEPS, in_tag
from roll.errors import ConfigError
from roll.types import Message


def frozen_lake(messages: Sequence[Message], *, noise: float = 0.0, letters: bool = False, tag: str = "") -> str:
    """The next move of a shortest path to the goal, as a word or its first letter, inside `tag` if given."""
    lake = lakes.parse_lake(messages[-1].content)
    if lake is None:
        text = messages[-1].content
        raise ConfigError(f"scripted agent frozen_lake: no lake in its messages (got {text!r}); use it in frozen_lake")
    way = lakes.shortest_path(lake)
    return _choose_move(way, messages, noise=noise, letters=letters, tag=tag)


def sokoban(messages: Sequence[Message], *, noise: float = 0.0, letters: bool = False, tag: str = "") -> str:
    """The next move of a shortest solution, as a word or its first letter, inside `tag` if given.

    If the level is unsolvable, or the search takes too long, moves are random.
    """
    text = messages[-1].content
    sides = re.search(r"(\d+)x(\d+)\n[#.]\d", messages[0].content)  # the head of a listed level
    if sides is not None:
        text = sokoban_levels.draw_listing(text.rstrip("\n").rpartition("\n")[2], int(sides[1]), int(sides[2]))
    return _choose_move(_solve(text), messages, noise=noise, letters=letters, tag=tag)


def guess_number(messages: Sequence[Message], *, noise: float = 0.0) -> str:
    """The middle of the remaining range."""
    low, high = (int(bound) for bound in re.findall(r"\d+", messages[0].content)[:2])
    choice = _draws(messages)
    for guess, answer in zip(messages[1::2], messages[2::2], strict=False):
        if answer.content == "higher":
            low = max(low, int(guess.content) + 1)
        elif answer.content == "lower":
            high = min(high, int(guess.content) - 1)
    return str(choice.randint(low, high) if choice.random() < noise else (low + high) // 2)


def calculator(messages: Sequence[Message], *, noise: float = 0.0) -> str:
    """Passes a question such as `12+34=` to the tool `calculator`, then repeats the result.

    Noise drops the last character of the expression.
    """
    if messages[-1].role == "tool":
        return messages[-1].content
    expression = messages[-1].content.strip().rstrip("=?")
    if _draws(messages).random() < noise:
        expression = expression[:-1]
    return format_call(ToolCall("calculator", {"expression": expression}))


@lru_cache(maxsize=4096)
def _solve(text: str) -> list[str] | None:
    """The solution of the level that `text` ends with; None if none was found."""
    board = re.search(r"(?:^|\n)((?:[#@$.*+_ -]+\n)+)$", text)
    try:
        level = sokoban_levels.parse_level(board[1] if board else "")
    except ValueError as fault:
        raise ConfigError(f"scripted agent sokoban: no level in its messages ({fault}); use it in sokoban") from None
    return sokoban_levels.solve(level)


def _choose_move(
    way: Sequence[str] | None, messages: Sequence[Message], *, noise: float, letters: bool, tag: str
) -> str:
    """The first move of the way, or a random one; as it is written in a response."""
    draws = _draws(messages)
    move = draws.choice(list(STEPS)) if not way or draws.random() < noise else way[0]
    return in_tag(move[0] if letters else move, tag)


def _draws(messages: Sequence[Message]) -> random.Random:
    return random.Random("\0".join(message.content for message in messages))
