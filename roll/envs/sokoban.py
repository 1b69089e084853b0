"""Sokoban: push every box onto a goal."""

from __future__ import annotations

import random
from dataclasses import dataclass

from roll.envs.actions import MOVES, Tally, asked_for, chosen
from roll.envs.arguments import check_number
from roll.envs.base import Reply
from roll.envs.sokoban_levels import Level, after, listed, made, read, read_file
from roll.envs.splits import Split, belongs
from roll.errors import ConfigError
from roll.types import Message, Task

_MOST_DRAWS = 1_000
"""Levels that are made before a size with so many boxes and walls is given up."""
_RULES = (
    "You are @ in a room. Push every box ($) onto a goal (.): a box on its goal is *, you on a goal are +. "
    "# is a wall, - is floor. Boxes cannot be pulled, and only one moves at a time.\n"
)


@dataclass(eq=False)
class Sokoban:
    """A room with boxes to be pushed onto goals; those that it makes can be solved, being made backwards from the end.

    The reward is 1 for the last box on its goal within `max_turns` moves. A reply that is no move costs a turn and
    `format_penalty`. A level is the task's own (`level` in its metadata), else one of the file `levels`, else it is
    made from the seed. What it says is the level in its usual marks, after the rules unless it is `terse`. Its state
    is the level as it stands.
    """

    keyed = True  # `roll play` takes keys

    task: Task
    size: int = 6
    """Cells on a side, the wall around them not counted and not drawn."""
    boxes: int = 1
    walls: float = 0.1
    """The part of the cells that are wall, on average."""
    pulls: int = 6
    """Most times that boxes were pulled off their goals: the fewer, the easier."""
    levels: str | None = None
    """A `.jsonl` or `.jsonl.gz` file of levels to take instead, such as Boxoban's; seeds go through it in order."""
    max_turns: int = 32
    split: Split = "all"
    """Which of the made levels: a quarter of all is held out."""
    terse: bool = False
    """Say nothing but levels, for models that know a few characters."""
    listed: bool = False
    """Say where things are (`#00.13$12@10`: mark, row, column) instead of drawing them; at most 10 by 10 cells."""
    tag: str = ""
    """Where a move stands in a reply: within the last `<tag>`. Empty: the reply is the move."""
    format_penalty: float = 0.0

    def __post_init__(self) -> None:
        check_number("sokoban: size", self.size, 3, 64, whole=True)
        check_number("sokoban: boxes", self.boxes, 1, 64, whole=True)
        check_number("sokoban: walls", self.walls, 0, 0.5)
        check_number("sokoban: pulls", self.pulls, 1, 1000, whole=True)
        check_number("sokoban: max_turns", self.max_turns, 1, whole=True)
        check_number("sokoban: format_penalty", self.format_penalty, 0)
        self._level = self._chosen()
        if self.listed and max(len(self._level.floor), *map(len, self._level.floor)) > 10:
            raise ConfigError("sokoban: listed is for levels of at most 10 by 10 cells; set it to false")
        self._tally = Tally()
        self._done = False

    async def start(self) -> tuple[Message, ...]:
        rules = "" if self.terse else _RULES + asked_for(self.tag)
        if self.listed:
            rules += f"{len(self._level.floor)}x{max(map(len, self._level.floor))}\n"
        return (Message("user", f"{rules}{self._shown()}"),)

    async def step(self, reply: str) -> Reply:
        assert not self._done, "sokoban: stepped after done; an environment is single-use"
        move = chosen(reply, MOVES, self.tag)
        before = self._level
        if move is not None:
            self._level = after(before, move)
        self._tally.add(valid=move is not None, effective=self._level != before)
        success = self._level.solved
        self._done = success or self._tally.num_turns == self.max_turns
        words = "" if self.terse or move is not None else f"That was no move. {asked_for(self.tag)}"
        return Reply(
            messages=(Message("user", f"{words}{self._shown()}"),),
            reward=float(success) - (self.format_penalty if move is None else 0.0),
            done=self._done,
            state=str(self._level),
            metrics=self._tally.metrics(success=success),
        )

    async def close(self) -> None:
        self._done = True

    def _shown(self) -> str:
        return listed(self._level) if self.listed else str(self._level)

    def _chosen(self) -> Level:
        own = self.task.metadata.get("level")
        if own is not None:
            try:
                return read(str(own))
            except ValueError as fault:
                raise ConfigError(f"sokoban: task {self.task.id!r}: {fault}") from None
        if self.levels is not None:
            levels = read_file(self.levels)
            return levels[self.task.seed % len(levels)]
        return self._made(random.Random(self.task.seed))

    def _made(self, draws: random.Random) -> Level:
        """The first level of this seed that is of the split."""
        for _ in range(_MOST_DRAWS):
            level = made(draws, size=self.size, boxes=self.boxes, walls=self.walls, pulls=self.pulls)
            if level is not None and belongs(str(level), self.split):
                return level
        raise ConfigError(
            f"sokoban: no level in {_MOST_DRAWS} draws with {self.boxes} boxes in {self.size} x {self.size} cells "
            f"(walls {self.walls}); take fewer boxes or walls"
        )
