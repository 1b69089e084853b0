"""Sokoban: push every box onto a goal."""

from __future__ import annotations

import random
from dataclasses import dataclass

from roll.envs.actions import MOVES, move_instructions, parse_choice
from roll.envs.base import StepResult
from roll.envs.inputs import Split, check_number, in_split
from roll.envs.sokoban_levels import SokobanLevel, apply_move, generate_level, list_cells, parse_level, read_levels
from roll.envs.turn_recorder import TurnRecorder
from roll.errors import ConfigError
from roll.types import Message, Task

_MOST_DRAWS = 1_000
"""Attempts at generating a level before giving up."""
_RULES = (
    "You are @ in a room. Push every box ($) onto a goal (.): a box on its goal is *, you on a goal are +. "
    "# is a wall, - is floor. Boxes cannot be pulled, and only one moves at a time.\n"
)


@dataclass(eq=False)
class Sokoban:
    """A room with boxes to push onto goals; generated levels are solvable, being built backwards from the end.

    The reward is 1 for the last box on its goal within `max_turns` moves. A response that is no move costs a turn and
    `format_penalty`. The level comes from the task (`level` in its metadata), otherwise from the file `levels`,
    otherwise from the seed. Each message is the level in its usual marks, after the rules unless `terse`. The state is
    the current level.
    """

    keyed = True  # `roll play` takes keys

    task: Task
    size: int = 6
    """Cells per side, not counting the surrounding wall, which is not drawn."""
    boxes: int = 1
    walls: float = 0.1
    """Average fraction of cells that are wall."""
    pulls: int = 6
    """Most pulls of boxes off their goals during generation: fewer is easier."""
    levels: str | None = None
    """A `.jsonl` or `.jsonl.gz` file of levels to use instead, such as Boxoban's, in the order of seeds."""
    max_turns: int = 32
    split: Split = "all"
    """Which generated levels are used; a quarter of all levels is held out."""
    terse: bool = False
    """Only levels, for models with a small alphabet."""
    listed: bool = False
    """List positions (`#00.13$12@10`: mark, row, column) instead of a drawing; at most 10 by 10 cells."""
    tag: str = ""
    """Tag around the move: the last `<tag>` counts. Empty: the whole response is the move."""
    format_penalty: float = 0.0

    def __post_init__(self) -> None:
        check_number("sokoban: size", self.size, 3, 64, whole=True)
        check_number("sokoban: boxes", self.boxes, 1, 64, whole=True)
        check_number("sokoban: walls", self.walls, 0, 0.5)
        check_number("sokoban: pulls", self.pulls, 1, 1000, whole=True)
        self._recorder = TurnRecorder("sokoban", self.max_turns, self.format_penalty)
        self._level = self._choose_level()
        if self.listed and max(len(self._level.floor), *map(len, self._level.floor)) > 10:
            raise ConfigError("sokoban: listed is for levels of at most 10 by 10 cells; set it to false")

    async def start(self) -> tuple[Message, ...]:
        rules = "" if self.terse else _RULES + move_instructions(self.tag)
        if self.listed:
            rules += f"{len(self._level.floor)}x{max(map(len, self._level.floor))}\n"
        return (Message("user", f"{rules}{self._render()}"),)

    async def step(self, response: str) -> StepResult:
        self._recorder.check_open()
        move = parse_choice(response, MOVES, self.tag)
        before = self._level
        if move is not None:
            self._level = apply_move(before, move)
        words = "" if self.terse or move is not None else f"That was no move. {move_instructions(self.tag)}"
        return self._recorder.record(
            [Message("user", f"{words}{self._render()}")],
            str(self._level),
            valid=move is not None,
            effective=self._level != before,
            reward=1.0 if self._level.solved else None,
        )

    async def close(self) -> None:
        self._recorder.done = True

    def _render(self) -> str:
        return list_cells(self._level) if self.listed else str(self._level)

    def _choose_level(self) -> SokobanLevel:
        drawing = self.task.metadata.get("level")
        if drawing is not None:
            try:
                return parse_level(str(drawing))
            except ValueError as fault:
                raise ConfigError(f"sokoban: task {self.task.id!r}: {fault}") from None
        if self.levels is not None:
            levels = read_levels(self.levels)
            return levels[self.task.seed % len(levels)]
        return self._generate(random.Random(self.task.seed))

    def _generate(self, draws: random.Random) -> SokobanLevel:
        """The first level of this seed that is in the split."""
        for _ in range(_MOST_DRAWS):
            level = generate_level(draws, size=self.size, boxes=self.boxes, walls=self.walls, pulls=self.pulls)
            if level is not None and in_split(str(level), self.split):
                return level
        raise ConfigError(
            f"sokoban: no level in {_MOST_DRAWS} draws with {self.boxes} boxes in {self.size} x {self.size} cells "
            f"(walls {self.walls}); take fewer boxes or walls"
        )
