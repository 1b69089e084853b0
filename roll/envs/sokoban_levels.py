"""Sokoban without players: what a level is, how one is read, made and solved.

A level is text in the marks that are usual for it: `#` a wall, `@` the player, `$` a box, `.` a goal, `*` a box on a
goal, `+` the player on a goal, and `-` or a space for floor. What lies outside is wall, so that none needs to be drawn.
"""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from roll.data.tasks import numbered_objects
from roll.envs.actions import STEPS, Cell, moved
from roll.errors import ConfigError

_MOST_FAULTS = 10
_MARKS = {"player": "@+", "box": "$*", "goal": ".*+"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A room, and where everything stands in it."""

    floor: tuple[str, ...]
    """A row each: `#` for wall and `-` for everything else."""
    goals: frozenset[Cell]
    boxes: frozenset[Cell]
    player: Cell

    @property
    def solved(self) -> bool:
        return self.boxes == self.goals

    def open(self, cell: Cell) -> bool:
        """Whether it is within the room and no wall."""
        row, column = cell
        return 0 <= row < len(self.floor) and 0 <= column < len(self.floor[row]) and self.floor[row][column] != "#"

    def free(self, cell: Cell) -> bool:
        """Open, and no box stands there."""
        return cell not in self.boxes and self.open(cell)

    def __str__(self) -> str:
        """A row a line, one mark a cell."""
        rows = [list(row) for row in self.floor]
        for row, column in self.goals:
            rows[row][column] = "."
        for row, column in self.boxes:
            rows[row][column] = "*" if (row, column) in self.goals else "$"
        row, column = self.player
        rows[row][column] = "+" if self.player in self.goals else "@"
        return "".join("".join(marks) + "\n" for marks in rows)


def listed(level: Level) -> str:
    """Where everything is, as mark, row and column, on one line: `#00.13$12@10` for wall, goal, box and player.

    Rows and columns count from 0 and have one digit, so there are at most ten of them. What is always there stands
    last, so that it is always as far from the end.
    """
    walls = [(row, column) for row, marks in enumerate(level.floor) for column, mark in enumerate(marks) if mark == "#"]
    things = (("#", walls), (".", sorted(level.goals)), ("$", sorted(level.boxes)), ("@", [level.player]))
    return "".join(f"{mark}{row}{column}" for mark, cells in things for row, column in cells) + "\n"


def drawn(text: str, rows: int, columns: int) -> str:
    """The map of a level whose listing is `text`, for `read`."""
    cells = [["-"] * columns for _ in range(rows)]
    for mark, row, column in re.findall(r"([@$.#])(\d)(\d)", text):
        on_goal = cells[int(row)][int(column)] == "."
        cells[int(row)][int(column)] = {"@": "+", "$": "*"}[mark] if on_goal else mark
    return "".join("".join(marks) + "\n" for marks in cells)


def after(level: Level, move: str) -> Level:
    """The level once the player has gone or pushed that way; the same one where it cannot."""
    there = moved(level.player, move)
    if level.free(there):
        return replace(level, player=there)
    beyond = moved(there, move)
    if there not in level.boxes or not level.free(beyond):
        return level
    return replace(level, player=there, boxes=level.boxes - {there} | {beyond})


def read(text: str) -> Level:
    """The level that `text` shows; ValueError says what is wrong with it."""
    rows = text.strip("\n").split("\n")
    if strange := set("".join(rows)) - set("#@$.*+-_ "):
        raise ValueError(f"no level has {min(strange)!r} in it; draw it with #, @, $, ., *, + and spaces")
    cells = {(row, column): mark for row, marks in enumerate(rows) for column, mark in enumerate(marks)}
    found = {name: frozenset(cell for cell, mark in cells.items() if mark in marks) for name, marks in _MARKS.items()}
    if len(found["player"]) != 1:
        raise ValueError(f"a level has one player (got {len(found['player'])}); draw one @ or +")
    if not found["box"] or len(found["box"]) != len(found["goal"]):
        raise ValueError(
            f"a level has as many boxes as goals, one at least (got {len(found['box'])} and {len(found['goal'])}); "
            "draw it so"
        )
    floor = tuple("".join("#" if mark == "#" else "-" for mark in marks) for marks in rows)
    return Level(floor=floor, goals=found["goal"], boxes=found["box"], player=min(found["player"]))


@lru_cache(maxsize=16)
def read_file(path: str) -> tuple[Level, ...]:
    """The levels of a `.jsonl` or `.jsonl.gz` file: each line an object whose `level` is one. Read once a process."""
    levels: list[Level] = []
    faults: list[str] = []
    for line, row in numbered_objects(Path(path)):
        try:
            levels.append(_level_of(row))
        except ValueError as fault:
            faults.append(f"{path}:{line}: {fault}")
    if faults:
        rest = len(faults) - _MOST_FAULTS
        more = [f"{path}: {rest} more faults; fix these first"] if rest > 0 else []
        raise ConfigError("\n".join([*faults[:_MOST_FAULTS], *more]))
    if not levels:
        raise ConfigError(f"{path}: no levels in it; put one object with a 'level' on each line")
    return tuple(levels)


def made(draws: random.Random, *, size: int, boxes: int, walls: float, pulls: int) -> Level | None:
    """A level of `size` by `size` cells that was solved and then played backwards, so it can be solved.

    The boxes begin on their goals and are pulled 1 to `pulls` times, at random. None where the drawn room leaves no
    place for them, or where all of them came back to goals.
    """
    floor = tuple("".join("#" if draws.random() < walls else "-" for _ in range(size)) for _ in range(size))
    free = [(row, column) for row in range(size) for column in range(size) if floor[row][column] == "-"]
    if len(free) <= boxes:
        return None
    *goals, player = draws.sample(free, boxes + 1)
    level = Level(floor=floor, goals=frozenset(goals), boxes=frozenset(goals), player=player)
    for _ in range(draws.randint(1, pulls)):
        choices = list(_pulls(level))
        if not choices:
            break
        level = draws.choice(choices)
    level = replace(level, player=draws.choice(sorted(_reachable(level))))
    return None if level.solved else level


def solution(level: Level, *, most_states: int = 200_000) -> tuple[str, ...] | None:
    """The fewest moves that solve the level; None where there are none, or not among the first `most_states`."""
    came: dict[Level, tuple[Level, str] | None] = {level: None}
    waiting = deque([level])
    while waiting and len(came) <= most_states:
        here = waiting.popleft()
        if here.solved:
            return _way(here, came)
        for move in STEPS:
            there = after(here, move)
            if there not in came:
                came[there] = (here, move)
                waiting.append(there)
    return None


def _way(level: Level, came: dict[Level, tuple[Level, str] | None]) -> tuple[str, ...]:
    moves: list[str] = []
    while (step := came[level]) is not None:
        level, move = step
        moves.append(move)
    return tuple(reversed(moves))


def _pulls(level: Level) -> Iterator[Level]:
    """The level after each way to pull one box by one cell, with all the walking that takes."""
    reachable = _reachable(level)
    for box in sorted(level.boxes):
        for move in STEPS:
            stand = moved(box, move)
            back = moved(stand, move)
            if stand in reachable and level.free(back):
                yield replace(level, player=back, boxes=level.boxes - {box} | {stand})


def _reachable(level: Level) -> set[Cell]:
    """Where the player can walk without moving a box."""
    found, waiting = {level.player}, [level.player]
    while waiting:
        cell = waiting.pop()
        near = {moved(cell, move) for move in STEPS}
        new = {there for there in near - found if level.free(there)}
        found |= new
        waiting += new
    return found


def _level_of(row: Any) -> Level:
    if isinstance(row, ValueError):
        raise row
    level = cast(dict[str, Any], row).get("level") if isinstance(row, dict) else None
    if not isinstance(level, str):
        raise ValueError("no 'level' as text; give each line an object that has one")
    return read(level)
