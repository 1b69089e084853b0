"""FrozenLake: walk to the goal over the ice, around the holes."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

from roll.envs.actions import MOVES, STEPS, Cell, Tally, asked_for, chosen, moved
from roll.envs.arguments import check_number
from roll.envs.base import Reply
from roll.envs.splits import Split, belongs
from roll.errors import ConfigError
from roll.types import Message, Task

PLAYER, ICE, HOLE, GOAL = "p.og"
_MOST_DRAWS = 1_000
"""Maps that are drawn before a size with so many holes is given up."""
_SIDEWAYS = {"up": ("left", "right"), "down": ("left", "right"), "left": ("up", "down"), "right": ("up", "down")}
_RULES = f"You are {PLAYER} on a frozen lake. Walk to {GOAL} over the ice ({ICE}); a hole ({HOLE}) is the end.\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """A square of ice with holes, and who is where."""

    size: int
    holes: frozenset[Cell]
    goal: Cell
    player: Cell

    @property
    def distance(self) -> int:
        """The fewest moves to the goal if there were no holes."""
        return abs(self.player[0] - self.goal[0]) + abs(self.player[1] - self.goal[1])

    def __contains__(self, cell: Cell) -> bool:
        return 0 <= cell[0] < self.size and 0 <= cell[1] < self.size

    def __str__(self) -> str:
        """A row a line, one character a cell."""
        named = {**dict.fromkeys(self.holes, HOLE), self.goal: GOAL, self.player: PLAYER}
        cells = range(self.size)
        return "".join("".join(named.get((row, column), ICE) for column in cells) + "\n" for row in cells)


@dataclass(eq=False)
class FrozenLake:
    """A square lake with one player, one goal and some holes, all at random, and always a way to the goal.

    The reward is 1 for reaching the goal within `max_turns` moves; a hole ends the attempt. A reply that is no move
    costs a turn and `format_penalty`. On `slippery` ice a move goes aside two times out of three, half of the times to
    either side; the same turn slips alike for all siblings. What it says is a map of few characters, after the rules
    unless it is `terse`. Its state is the map.
    """

    keyed = True  # `roll play` takes keys

    task: Task
    size: int = 4
    """Cells on a side."""
    holes: float = 0.2
    """The part of the cells that are holes, on average; maps without a way are drawn again."""
    slippery: bool = False
    max_turns: int = 16
    split: Split = "all"
    """Which maps: a quarter of all is held out."""
    terse: bool = False
    """Say nothing but maps, for models that know a few characters."""
    tag: str = ""
    """Where a move stands in a reply: within the last `<tag>`. Empty: the reply is the move."""
    format_penalty: float = 0.0

    def __post_init__(self) -> None:
        check_number("frozen_lake: size", self.size, 2, 64, whole=True)
        check_number("frozen_lake: holes", self.holes, 0, 0.9)
        check_number("frozen_lake: max_turns", self.max_turns, 1, whole=True)
        check_number("frozen_lake: format_penalty", self.format_penalty, 0)
        self._lake = self._drawn(random.Random(self.task.seed))
        self._slips = random.Random(f"slips of {self.task.seed}")
        self._tally = Tally()
        self._done = False

    async def start(self) -> tuple[Message, ...]:
        rules = "" if self.terse else _RULES + asked_for(self.tag)
        return (Message("user", f"{rules}{self._lake}"),)

    async def step(self, reply: str) -> Reply:
        assert not self._done, "frozen_lake: stepped after done; an environment is single-use"
        move = chosen(reply, MOVES, self.tag)
        before, slip = self._lake, self._slips.random()  # drawn whatever was said, so that turns slip alike
        if move is not None:
            self._lake = _after(before, self._slipped(move, slip))
        lake = self._lake
        self._tally.add(valid=move is not None, effective=lake.player != before.player)
        success = lake.player == lake.goal
        self._done = success or lake.player in lake.holes or self._tally.num_turns == self.max_turns
        words = "" if self.terse or move is not None else f"That was no move. {asked_for(self.tag)}"
        return Reply(
            messages=(Message("user", f"{words}{lake}"),),
            reward=float(success) - (self.format_penalty if move is None else 0.0),
            done=self._done,
            state=str(lake),
            metrics=self._tally.metrics(success=success),
        )

    async def close(self) -> None:
        self._done = True

    def _drawn(self, draws: random.Random) -> Lake:
        """The first map of this seed that is of the split and has a way within the turns."""
        for _ in range(_MOST_DRAWS):
            lake = drawn(draws, self.size, self.holes)
            if lake.distance <= self.max_turns and belongs(str(lake), self.split):
                way = shortest_way(lake)
                if way is not None and len(way) <= self.max_turns:
                    return lake
        raise ConfigError(
            f"frozen_lake: no map with a way within {self.max_turns} turns in {_MOST_DRAWS} draws (size {self.size}, "
            f"holes {self.holes}); lower holes or raise max_turns"
        )

    def _slipped(self, move: str, slip: float) -> str:
        aside = int(slip * 3)  # 0 and 1 are the sides
        return _SIDEWAYS[move][aside] if self.slippery and aside < 2 else move


def drawn(draws: random.Random, size: int, holes: float) -> Lake:
    """A map at random, which may have no way."""
    cells = [(row, column) for row in range(size) for column in range(size)]
    player, goal = draws.sample(cells, 2)
    found = frozenset(cell for cell in cells if draws.random() < holes) - {player, goal}
    return Lake(size=size, holes=found, goal=goal, player=player)


def shortest_way(lake: Lake) -> list[str] | None:
    """The fewest moves to the goal, none of which slips; None where there is no way."""
    ways: dict[Cell, list[str]] = {lake.player: []}
    waiting = deque([lake.player])
    while waiting:
        cell = waiting.popleft()
        if cell == lake.goal:
            return ways[cell]
        for move in STEPS:
            there = moved(cell, move)
            if there in lake and there not in lake.holes and there not in ways:
                ways[there] = [*ways[cell], move]
                waiting.append(there)
    return None


def read(text: str) -> Lake | None:
    """The lake whose map `text` ends with; None where it ends with none."""
    rows = text.rstrip("\n").split("\n")
    size = len(rows[-1])
    cells = {(row, column): mark for row, line in enumerate(rows[-size:]) for column, mark in enumerate(line)}
    named = {mark: [cell for cell, found in cells.items() if found == mark] for mark in (PLAYER, GOAL, HOLE)}
    if len(cells) != size * size or len(named[PLAYER]) != 1 or len(named[GOAL]) != 1:
        return None
    return Lake(size=size, holes=frozenset(named[HOLE]), goal=named[GOAL][0], player=named[PLAYER][0])


def _after(lake: Lake, move: str) -> Lake:
    """With the player one cell on; the edge of the lake stops everyone."""
    there = moved(lake.player, move)
    if there not in lake:
        return lake
    return Lake(size=lake.size, holes=lake.holes, goal=lake.goal, player=there)
