"""Tic-tac-toe: two agents that may be one policy, or one that plays against chance."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from roll.envs.actions import inside
from roll.envs.arguments import check_number
from roll.envs.base import Reply
from roll.errors import UnknownName
from roll.types import Message, Task

SIDES = ("x", "o")
LINES = ("012", "345", "678", "036", "147", "258", "048", "246")
EMPTY = "012345678"
"""A free cell shows the number of the move that takes it."""
_MOST_OPENING = 4
"""Moves after which nobody can have won yet."""
_OPPONENTS = ("self", "random")


@dataclass(eq=False)
class TicTacToe:
    """A game on 3 by 3 cells. A move is the number of a free cell; anything else loses the game.

    With `opponent` self both sides are agents, `x` and `o`. A win is worth 1 and a loss -1; whoever makes no move loses
    1, and the other one gains nothing by it. With `random` one side, drawn for each task, is played by chance, and the
    other one is the only agent. The board is one line of 9 characters, after the mark of whoever is asked and, unless
    it is `terse`, after the rules. Its state is what it shows.
    """

    task: Task
    opponent: Literal["self", "random"] = "self"
    opening: int = 0
    """Moves made by chance before the first reply."""
    terse: bool = False
    """Say nothing but mark and board, for models that know a few characters."""
    tag: str = ""
    """Where a move stands in a reply: within the last `<tag>`. Empty: the reply is the move."""

    def __post_init__(self) -> None:
        check_number("tic_tac_toe: opening", self.opening, 0, _MOST_OPENING, whole=True)
        if self.opponent not in _OPPONENTS:
            raise UnknownName("opponent in tic_tac_toe", self.opponent, _OPPONENTS)
        self._draws = random.Random(self.task.seed)
        self._own = self._draws.choice(SIDES)
        self._board = EMPTY
        self._heard = set[str]()
        self._num_turns = 0
        self._done = False
        for _ in range(self.opening):
            self._chance()
        if self.opponent == "random" and self._side != self._own:
            self._chance()
        self.agents = (self._own,) if self.opponent == "random" else (self._side, _other(self._side))

    @property
    def actions(self) -> tuple[str, ...]:
        """Moves that can be made now."""
        return tuple(free(self._board))

    async def start(self) -> tuple[Message, ...]:
        return self._asked()

    async def step(self, reply: str) -> Reply:
        assert not self._done, "tic_tac_toe: stepped after done; an environment is single-use"
        side, move = self._side, inside(reply, self.tag)
        self._num_turns += 1
        if move not in self.actions:
            return self._end(illegal=True, rewards={side: -1.0}, side=side)
        self._board = played(self._board, int(move), side)
        if self.opponent == "random" and not over(self._board):
            self._chance()
        if not over(self._board):
            return Reply(messages=self._asked(), to=self._side, state=self._shown, metrics=self._metrics())
        winner = won(self._board)
        rewards = {each: 1.0 if each == winner else -1.0 for each in SIDES} if winner else {}
        return self._end(illegal=False, rewards=rewards, side=side)

    async def close(self) -> None:
        self._done = True

    @property
    def _side(self) -> str:
        """Whose move it is."""
        return SIDES[(9 - len(free(self._board))) % 2]

    @property
    def _shown(self) -> str:
        return f"{self._side}{self._board}"

    def _chance(self) -> None:
        self._board = played(self._board, int(self._draws.choice(free(self._board))), self._side)

    def _asked(self) -> tuple[Message, ...]:
        """What whoever is next is told, the first time with the rules."""
        rules = "" if self.terse or self._side in self._heard else _rules(self._side, self.tag)
        self._heard.add(self._side)
        return (Message("user", f"{rules}{self._shown}"),)

    def _end(self, *, illegal: bool, rewards: dict[str, float], side: str) -> Reply:
        self._done = True
        return Reply(
            messages=(Message("user", self._board),),
            reward=rewards.get(side, 0.0),
            rewards={each: reward for each, reward in rewards.items() if each != side and each in self.agents},
            done=True,
            state=self._board,
            metrics=self._metrics(illegal=illegal, winner=won(self._board), ended=True),
        )

    def _metrics(self, *, illegal: bool = False, winner: str = "", ended: bool = False) -> dict[str, float]:
        found = {
            "turns": float(self._num_turns),
            "illegal": float(illegal),
            "drawn": float(ended and not illegal and not winner),
        }
        if self.opponent == "random":
            lost = illegal or winner == _other(self._own)
            return {**found, "won": float(winner == self._own), "lost": float(lost)}
        return {**found, **{f"{side}_won": float(winner == side) for side in SIDES}}


def free(board: str) -> str:
    """The moves that are left."""
    return "".join(cell for cell in board if cell in EMPTY)


def played(board: str, move: int, side: str) -> str:
    """The board with one cell taken."""
    return f"{board[:move]}{side}{board[move + 1 :]}"


def won(board: str) -> str:
    """The side that has a line; empty where none has."""
    return next((side for side in SIDES for line in LINES if all(board[int(cell)] == side for cell in line)), "")


def over(board: str) -> bool:
    """Whether nobody can move any more."""
    return bool(won(board)) or not free(board)


def _other(side: str) -> str:
    return SIDES[1 - SIDES.index(side)]


def _rules(side: str, tag: str) -> str:
    form = f"<{tag}>4</{tag}>" if tag else "4"
    return (
        f"You play tic-tac-toe as {side}. The line is the board, row by row from the top left: x, o, or the number of "
        f"a free cell, after the mark of who moves. Three in a row win.\nReply with a free cell (such as {form}).\n"
    )
