"""Tic-tac-toe: self-play of two agents, or one agent against random moves."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from roll.envs.actions import extract_action, in_tag
from roll.envs.base import StepResult
from roll.envs.inputs import check_number
from roll.errors import UnknownName
from roll.types import Message, Task

SIDES = ("x", "o")
LINES = ("012", "345", "678", "036", "147", "258", "048", "246")
EMPTY = "012345678"
"""A free cell shows the number of the move that takes it."""
_MOST_OPENING = 4
"""No side can have won after this many moves."""
_OPPONENTS = ("self", "random")


@dataclass(eq=False)
class TicTacToe:
    """A game on 3 by 3 cells. A move is the number of a free cell; any other response loses the game.

    With `opponent` self both sides are agents, `x` and `o`. A win is worth 1 and a loss -1; an illegal move costs its
    side 1 and gives the other 0. With `random` one side, drawn per task, plays random moves, and the other side is the
    only agent. The message is the mark of the side to move and the board in 9 characters, after the rules unless
    `terse`. The state is this line.
    """

    task: Task
    opponent: Literal["self", "random"] = "self"
    opening: int = 0
    """Random moves before the first response."""
    terse: bool = False
    """Only mark and board, for models with a small alphabet."""
    tag: str = ""
    """Tag around the move: the last `<tag>` counts. Empty: the whole response is the move."""

    def __post_init__(self) -> None:
        check_number("tic_tac_toe: opening", self.opening, 0, _MOST_OPENING, whole=True)
        if self.opponent not in _OPPONENTS:
            raise UnknownName("opponent in tic_tac_toe", self.opponent, _OPPONENTS)
        self._draws = random.Random(self.task.seed)
        self._agent_side = self._draws.choice(SIDES)
        self._board = EMPTY
        self._prompted = set[str]()
        self._num_turns = 0
        self._done = False
        for _ in range(self.opening):
            self._play_random()
        if self.opponent == "random" and self._side != self._agent_side:
            self._play_random()
        self.agents = (self._agent_side,) if self.opponent == "random" else (self._side, _other(self._side))

    @property
    def actions(self) -> tuple[str, ...]:
        """Currently legal moves."""
        return tuple(free_cells(self._board))

    async def start(self) -> tuple[Message, ...]:
        return self._prompt()

    async def step(self, response: str) -> StepResult:
        assert not self._done, "tic_tac_toe: stepped after done; an environment is single-use"
        side, move = self._side, extract_action(response, self.tag)
        self._num_turns += 1
        if move not in self.actions:
            return self._end(illegal=True, rewards={side: -1.0}, side=side)
        self._board = place_mark(self._board, int(move), side)
        if self.opponent == "random" and not game_over(self._board):
            self._play_random()
        if not game_over(self._board):
            state = f"{self._side}{self._board}"
            return StepResult(messages=self._prompt(), to=self._side, state=state, metrics=self._metrics())
        winner = winner_of(self._board)
        rewards = {each: 1.0 if each == winner else -1.0 for each in SIDES} if winner else {}
        return self._end(illegal=False, rewards=rewards, side=side)

    async def close(self) -> None:
        self._done = True

    @property
    def _side(self) -> str:
        """The side to move."""
        return SIDES[(9 - len(free_cells(self._board))) % 2]

    def _play_random(self) -> None:
        self._board = place_mark(self._board, int(self._draws.choice(free_cells(self._board))), self._side)

    def _prompt(self) -> tuple[Message, ...]:
        """The message to the side to move, the first time with the rules."""
        rules = "" if self.terse or self._side in self._prompted else _rules(self._side, self.tag)
        self._prompted.add(self._side)
        return (Message("user", f"{rules}{self._side}{self._board}"),)

    def _end(self, *, illegal: bool, rewards: dict[str, float], side: str) -> StepResult:
        self._done = True
        return StepResult(
            messages=(Message("user", self._board),),
            reward=rewards.get(side, 0.0),
            rewards={each: reward for each, reward in rewards.items() if each != side and each in self.agents},
            done=True,
            state=self._board,
            metrics=self._metrics(illegal=illegal, winner=winner_of(self._board), ended=True),
        )

    def _metrics(self, *, illegal: bool = False, winner: str = "", ended: bool = False) -> dict[str, float]:
        metrics = {
            "turns": float(self._num_turns),
            "illegal": float(illegal),
            "drawn": float(ended and not illegal and not winner),
        }
        if self.opponent == "random":
            lost = illegal or winner == _other(self._agent_side)
            return {**metrics, "won": float(winner == self._agent_side), "lost": float(lost)}
        return {**metrics, **{f"{side}_won": float(winner == side) for side in SIDES}}


def free_cells(board: str) -> str:
    """The legal moves."""
    return "".join(cell for cell in board if cell in EMPTY)


def place_mark(board: str, move: int, side: str) -> str:
    """The board after a move."""
    return f"{board[:move]}{side}{board[move + 1 :]}"


def winner_of(board: str) -> str:
    """The side with a line of three; empty if none has."""
    return next((side for side in SIDES for line in LINES if all(board[int(cell)] == side for cell in line)), "")


def game_over(board: str) -> bool:
    """Whether the game has ended."""
    return bool(winner_of(board)) or not free_cells(board)


def _other(side: str) -> str:
    return SIDES[1 - SIDES.index(side)]


def _rules(side: str, tag: str) -> str:
    return (
        f"You play tic-tac-toe as {side}. The line is the board, row by row from the top left: x, o, or the number of "
        "a free cell, after the mark of who moves. Three in a row win.\n"
        f"Reply with a free cell (such as {in_tag('4', tag)}).\n"
    )
