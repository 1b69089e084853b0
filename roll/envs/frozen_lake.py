"""FrozenLake: walk to the goal over the ice, around the holes."""

from __future__ import annotations

import random
from dataclasses import dataclass

from roll.envs.actions import MOVES, Cell, find_path, move_instructions, neighbour, parse_choice
from roll.envs.base import StepResult
from roll.envs.inputs import Split, check_number, in_split
from roll.envs.turn_recorder import TurnRecorder
from roll.errors import ConfigError
from roll.types import Message, Task

PLAYER, ICE, HOLE, GOAL = "p.og"
_MOST_DRAWS = 1_000
"""Attempts at drawing a solvable map before giving up."""
_SIDEWAYS = {"up": ("left", "right"), "down": ("left", "right"), "left": ("up", "down"), "right": ("up", "down")}
_RULES = f"You are {PLAYER} on a frozen lake. Walk to {GOAL} over the ice ({ICE}); a hole ({HOLE}) is the end.\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """A square of ice with holes, the goal and the player."""

    size: int
    holes: frozenset[Cell]
    goal: Cell
    player: Cell

    @property
    def distance(self) -> int:
        """Manhattan distance from the player to the goal."""
        return abs(self.player[0] - self.goal[0]) + abs(self.player[1] - self.goal[1])

    @property
    def in_words(self) -> str:
        """The cells of player, goal and holes in one line; rows and columns count from 1 at the top left."""
        cells = {"You": [self.player], "goal": [self.goal], "holes": sorted(self.holes)}
        named = [
            f"{name}: " + (", ".join(f"row {row + 1} column {column + 1}" for row, column in where) or "none")
            for name, where in cells.items()
        ]
        return "; ".join(named) + ".\n"

    def __contains__(self, cell: Cell) -> bool:
        return 0 <= cell[0] < self.size and 0 <= cell[1] < self.size

    def __str__(self) -> str:
        """One line per row, one character per cell."""
        named = {**dict.fromkeys(self.holes, HOLE), self.goal: GOAL, self.player: PLAYER}
        cells = range(self.size)
        rows = ["".join([named.get((row, column), ICE) for column in cells]) for row in cells]
        return "\n".join(rows) + "\n"


@dataclass(eq=False)
class FrozenLake:
    """A square lake with a player, a goal and holes at random positions; the goal is always reachable.

    The reward is 1 for reaching the goal within `max_turns` moves; a hole ends the attempt. A response that is no move
    costs a turn and `format_penalty`. On `slippery` ice a move goes sideways two times out of three, left or right with
    equal chance; turn t slips the same way for all siblings. Each message is a map of few characters, after the rules
    unless `terse`, and before the cells in words with `positions`. The state is the map.
    """

    keyed = True  # `roll play` takes keys

    task: Task
    size: int = 4
    """Cells per side."""
    holes: float = 0.2
    """Average fraction of cells that are holes; unsolvable maps are redrawn."""
    slippery: bool = False
    max_turns: int = 16
    split: Split = "all"
    """Which maps are used; a quarter of all maps is held out."""
    terse: bool = False
    """Only maps, for models with a small alphabet."""
    positions: bool = False
    """Name the cells of player, goal and holes after each map, for models that read a map badly."""
    tag: str = ""
    """Tag around the move: the last `<tag>` counts. Empty: the whole response is the move."""
    format_penalty: float = 0.0

    def __post_init__(self) -> None:
        check_number("frozen_lake: size", self.size, 2, 64, whole=True)
        check_number("frozen_lake: holes", self.holes, 0, 0.9)
        self._recorder = TurnRecorder("frozen_lake", self.max_turns, self.format_penalty)
        self._lake = self._draw_lake(random.Random(self.task.seed))
        self._slips = random.Random(f"slips of {self.task.seed}")

    async def start(self) -> tuple[Message, ...]:
        rules = "" if self.terse else _RULES + move_instructions(self.tag)
        return (Message("user", f"{rules}{self._shown()}"),)

    async def step(self, response: str) -> StepResult:
        self._recorder.check_open()
        move = parse_choice(response, MOVES, self.tag)
        before, slip = self._lake, self._slips.random()  # drawn on every turn, so that siblings slip alike
        if move is not None:
            side = int(slip * 3)  # 0 and 1: to a side, 2: straight on
            slipped = _SIDEWAYS[move][side] if self.slippery and side < 2 else move
            there = neighbour(before.player, slipped)
            if there in before:
                self._lake = Lake(size=before.size, holes=before.holes, goal=before.goal, player=there)
        lake, text = self._lake, str(self._lake)
        ended = lake.player == lake.goal or lake.player in lake.holes
        words = "" if self.terse or move is not None else f"That was no move. {move_instructions(self.tag)}"
        return self._recorder.record(
            [Message("user", words + self._shown())],
            text,
            valid=move is not None,
            effective=lake.player != before.player,
            reward=float(lake.player == lake.goal) if ended else None,
        )

    async def close(self) -> None:
        self._recorder.done = True

    def _shown(self) -> str:
        return f"{self._lake}{self._lake.in_words}" if self.positions else str(self._lake)

    def _draw_lake(self, draws: random.Random) -> Lake:
        """The first map of this seed that is in the split and solvable within `max_turns`."""
        for _ in range(_MOST_DRAWS):
            lake = draw_lake(draws, self.size, self.holes)
            if lake.distance <= self.max_turns and in_split(str(lake), self.split):
                way = shortest_path(lake)
                if way is not None and len(way) <= self.max_turns:
                    return lake
        raise ConfigError(
            f"frozen_lake: no map with a way within {self.max_turns} turns in {_MOST_DRAWS} draws (size {self.size}, "
            f"holes {self.holes}); lower holes or raise max_turns"
        )


def draw_lake(draws: random.Random, size: int, holes: float) -> Lake:
    """A random map, possibly unsolvable."""
    cells = [(row, column) for row in range(size) for column in range(size)]
    player, goal = draws.sample(cells, 2)
    hole_cells = frozenset(cell for cell in cells if draws.random() < holes) - {player, goal}
    return Lake(size=size, holes=hole_cells, goal=goal, player=player)


def shortest_path(lake: Lake) -> list[str] | None:
    """The shortest path to the goal on ice that is not slippery; None if there is none."""
    cells = range(lake.size)
    free = {(row, column) for row in cells for column in cells} - lake.holes

    def step(cell: Cell, move: str) -> Cell:
        there = neighbour(cell, move)
        return there if there in free else cell

    return find_path(lake.player, step, lambda cell: cell == lake.goal, lake.size**2)


def parse_lake(text: str) -> Lake | None:
    """The lake whose map `text` ends with; None if it does not end with a map."""
    rows = text.rstrip("\n").split("\n")
    size = len(rows[-1])
    cells = {(row, column): mark for row, line in enumerate(rows[-size:]) for column, mark in enumerate(line)}
    by_mark = {mark: [cell for cell, other in cells.items() if other == mark] for mark in (PLAYER, GOAL, HOLE)}
    if len(cells) != size * size or len(by_mark[PLAYER]) != 1 or len(by_mark[GOAL]) != 1:
        return None
    return Lake(size=size, holes=frozenset(by_mark[HOLE]), goal=by_mark[GOAL][0], player=by_mark[PLAYER][0])
