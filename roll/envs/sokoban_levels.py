"""Sokoban levels: parsing, generating and solving.

A level is text in its usual marks: `#` a wall, `@` the player, `$` a box, `.` a goal, `*` a box on a goal, `+` the
player on a goal, and `-` or a space for floor. Everything outside is wall, so walls around a level need not be drawn.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from roll.data.tasks import parse_lines
from roll.envs.actions import STEPS, Cell, find_path, neighbour

_MARKS = {"player": "@+", "box": "$*", "goal": ".*+"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SokobanLevel:
    """A room with the positions of player, boxes and goals."""

    floor: tuple[str, ...]
    """One string per row: `#` for wall, `-` for everything else."""
    goals: frozenset[Cell]
    boxes: frozenset[Cell]
    player: Cell

    @property
    def solved(self) -> bool:
        return self.boxes == self.goals

    def free(self, cell: Cell) -> bool:
        """Whether the cell is inside the room, and has no wall and no box."""
        row, column = cell
        inside = 0 <= row < len(self.floor) and 0 <= column < len(self.floor[row])
        return inside and self.floor[row][column] != "#" and cell not in self.boxes

    def __str__(self) -> str:
        """One line per row, one mark per cell."""
        rows = [list(row) for row in self.floor]
        for row, column in self.goals:
            rows[row][column] = "."
        for row, column in self.boxes:
            rows[row][column] = "*" if (row, column) in self.goals else "$"
        row, column = self.player
        rows[row][column] = "+" if self.player in self.goals else "@"
        return "".join("".join(marks) + "\n" for marks in rows)


def list_cells(level: SokobanLevel) -> str:
    """All positions on one line as mark, row and column: `#00.13$12@10` for wall, goal, box and player.

    Rows and columns count from 0 and have one digit, so there are at most ten. Marks that every level has come last, so
    their distance from the end is constant.
    """
    walls = [(row, column) for row, marks in enumerate(level.floor) for column, mark in enumerate(marks) if mark == "#"]
    things = (("#", walls), (".", sorted(level.goals)), ("$", sorted(level.boxes)), ("@", [level.player]))
    return "".join(f"{mark}{row}{column}" for mark, cells in things for row, column in cells) + "\n"


def draw_listing(text: str, rows: int, columns: int) -> str:
    """The drawing of a level whose listing is `text`, for `parse_level`."""
    cells = [["-"] * columns for _ in range(rows)]
    for mark, row, column in re.findall(r"([@$.#])(\d)(\d)", text):
        on_goal = cells[int(row)][int(column)] == "."
        cells[int(row)][int(column)] = {"@": "+", "$": "*"}[mark] if on_goal else mark
    return "".join("".join(marks) + "\n" for marks in cells)


def apply_move(level: SokobanLevel, move: str) -> SokobanLevel:
    """The level after the player moves or pushes that way; unchanged if that is impossible."""
    there = neighbour(level.player, move)
    if level.free(there):
        return replace(level, player=there)
    beyond = neighbour(there, move)
    if there not in level.boxes or not level.free(beyond):
        return level
    return replace(level, player=there, boxes=level.boxes - {there} | {beyond})


def parse_level(text: str) -> SokobanLevel:
    """The level drawn in `text`; ValueError if it is invalid."""
    rows = text.strip("\n").split("\n")
    if strange := set("".join(rows)) - set("#@$.*+-_ "):
        raise ValueError(f"a level cannot contain {min(strange)!r}; draw it with #, @, $, ., *, + and spaces")
    cells = {(row, column): mark for row, marks in enumerate(rows) for column, mark in enumerate(marks)}
    cells_of = {
        name: frozenset(cell for cell, mark in cells.items() if mark in marks) for name, marks in _MARKS.items()
    }
    if len(cells_of["player"]) != 1:
        raise ValueError(f"a level has one player (got {len(cells_of['player'])}); draw one @ or +")
    if not cells_of["box"] or len(cells_of["box"]) != len(cells_of["goal"]):
        raise ValueError(
            f"a level has as many boxes as goals, at least one (got {len(cells_of['box'])} and "
            f"{len(cells_of['goal'])}); draw it so"
        )
    floor = tuple("".join("#" if mark == "#" else "-" for mark in marks) for marks in rows)
    return SokobanLevel(floor=floor, goals=cells_of["goal"], boxes=cells_of["box"], player=min(cells_of["player"]))


@lru_cache(maxsize=16)
def read_levels(path: str) -> tuple[SokobanLevel, ...]:
    """The levels of a `.jsonl` or `.jsonl.gz` file with a `level` per line. Read once per process."""
    return tuple(
        parse_lines(Path(path), _parse_row, empty="no levels in it; put one object with a 'level' on each line")
    )


def _parse_row(_: int, row: Any) -> SokobanLevel:
    level = cast(dict[str, Any], row).get("level") if isinstance(row, dict) else None
    if not isinstance(level, str):
        raise ValueError("no 'level' as text; give each line an object that has one")
    return parse_level(level)


def generate_level(draws: random.Random, *, size: int, boxes: int, walls: float, pulls: int) -> SokobanLevel | None:
    """A level of `size` by `size` cells, solvable because it is played backwards from the solved position.

    The boxes start on their goals and are pulled 1 to `pulls` times at random. None if the room is too full, or if all
    boxes end on goals.
    """
    floor = tuple("".join("#" if draws.random() < walls else "-" for _ in range(size)) for _ in range(size))
    free = [(row, column) for row in range(size) for column in range(size) if floor[row][column] == "-"]
    if len(free) <= boxes:
        return None
    *goals, player = draws.sample(free, boxes + 1)
    level = SokobanLevel(floor=floor, goals=frozenset(goals), boxes=frozenset(goals), player=player)
    for _ in range(draws.randint(1, pulls)):
        choices = list(_iterate_pulls(level))
        if not choices:
            break
        level = draws.choice(choices)
    level = replace(level, player=draws.choice(sorted(_reachable(level))))
    return None if level.solved else level


def solve(level: SokobanLevel, *, most_states: int = 200_000) -> list[str] | None:
    """The shortest solution; None if there is none, or none within the first `most_states` states."""
    return find_path(level, apply_move, lambda reached: reached.solved, most_states)


def _iterate_pulls(level: SokobanLevel) -> Iterator[SokobanLevel]:
    """The level after each possible pull of one box by one cell, including the walk to it."""
    reachable = _reachable(level)
    for box in sorted(level.boxes):
        for move in STEPS:
            stand = neighbour(box, move)
            back = neighbour(stand, move)
            if stand in reachable and level.free(back):
                yield replace(level, player=back, boxes=level.boxes - {box} | {stand})


def _reachable(level: SokobanLevel) -> set[Cell]:
    """Cells that the player can reach without moving a box."""
    reached, waiting = {level.player}, [level.player]
    while waiting:
        cell = waiting.pop()
        near = {neighbour(cell, move) for move in STEPS}
        new = {there for there in near - reached if level.free(there)}
        reached |= new
        waiting += new
    return reached
