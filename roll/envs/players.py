"""Scripted players: functions from a conversation to the next reply, for warm starts and to try environments with.

A player sees what the policy would see, reads the world from it, and plays well. With `noise` that part of its moves is
drawn at random, by a hash of the conversation: the same words are always answered alike.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from functools import lru_cache

from roll.data.tools import ToolCall, written
from roll.envs import frozen_lake as lakes
from roll.envs import sokoban_levels
from roll.envs.actions import STEPS
from roll.errors import ConfigError
from roll.types import Message


def frozen_lake(messages: Sequence[Message], *, noise: float = 0.0, letters: bool = False, tag: str = "") -> str:
    """The next move of a shortest way to the goal, as a word or its first letter, within `tag` if there is one."""
    lake = lakes.read(messages[-1].content)
    if lake is None:
        raise ConfigError(f"player frozen_lake: sees no lake (got {messages[-1].content!r}); give it that environment")
    way = lakes.shortest_way(lake)
    return _written(_noisy(way[0] if way else None, noise, messages), letters=letters, tag=tag)


def sokoban(messages: Sequence[Message], *, noise: float = 0.0, letters: bool = False, tag: str = "") -> str:
    """The next move of a shortest solution, as a word or its first letter, within `tag` if there is one.

    A level that cannot be solved any more, or only after a very long search, gets moves at random.
    """
    text = messages[-1].content
    sides = re.search(r"(\d+)x(\d+)\n[#.]\d", messages[0].content)  # how a listed level begins
    if sides is not None:
        text = sokoban_levels.drawn(text.rstrip("\n").rpartition("\n")[2], int(sides[1]), int(sides[2]))
    move = _solving(text)
    return _written(_noisy(move, noise, messages), letters=letters, tag=tag)


def guess_number(messages: Sequence[Message], *, noise: float = 0.0) -> str:
    """The middle of what the number may still be."""
    low, high = (int(bound) for bound in re.findall(r"\d+", messages[0].content)[:2])
    choice = _draws(messages)
    for guess, answer in zip(messages[1::2], messages[2::2], strict=False):
        if answer.content == "higher":
            low = max(low, int(guess.content) + 1)
        elif answer.content == "lower":
            high = min(high, int(guess.content) - 1)
    return str(choice.randint(low, high) if choice.random() < noise else (low + high) // 2)


def calculator(messages: Sequence[Message], *, noise: float = 0.0) -> str:
    """Hands a question such as `12+34=` to the tool `calculator`, and says again what that says.

    Noise drops the last character of what is handed over.
    """
    if messages[-1].role == "tool":
        return messages[-1].content
    asked = messages[-1].content.strip().rstrip("=?")
    if _draws(messages).random() < noise:
        asked = asked[:-1]
    return written(ToolCall("calculator", {"expression": asked}))


@lru_cache(maxsize=4096)
def _solving(text: str) -> str | None:
    """The first move of a solution of the level that `text` ends with."""
    board = re.search(r"(?:^|\n)((?:[#@$.*+_ -]+\n)+)$", text)
    try:
        level = sokoban_levels.read(board[1] if board else "")
    except ValueError as fault:
        raise ConfigError(f"player sokoban: sees no level ({fault}); give it that environment") from None
    found = sokoban_levels.solution(level)
    return found[0] if found else None


def _noisy(move: str | None, noise: float, messages: Sequence[Message]) -> str:
    draws = _draws(messages)
    return draws.choice(list(STEPS)) if move is None or draws.random() < noise else move


def _draws(messages: Sequence[Message]) -> random.Random:
    return random.Random("\0".join(message.content for message in messages))


def _written(move: str, *, letters: bool, tag: str) -> str:
    text = move[0] if letters else move
    return f"<{tag}>{text}</{tag}>" if tag else text
