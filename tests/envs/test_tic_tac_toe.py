"""Tic-tac-toe: games end by the rules, and each side gets its reward."""

import asyncio
from collections.abc import Sequence

import pytest

from roll.envs.base import StepResult
from roll.envs.tic_tac_toe import EMPTY, TicTacToe, free_cells, game_over, place_mark, winner_of
from roll.errors import ConfigError, UnknownName
from roll.types import Task


def game(seed: int = 0, **arguments: object) -> TicTacToe:
    return TicTacToe(Task(id="t", domain="d", seed=seed), **{"terse": True, **arguments})  # type: ignore[arg-type]


def play(env: TicTacToe, moves: Sequence[str]) -> list[StepResult]:
    async def go() -> list[StepResult]:
        await env.start()
        return [await env.step(move) for move in moves]

    return asyncio.run(go())


def opening(env: TicTacToe) -> str:
    return asyncio.run(env.start())[0].content


def test_a_board_shows_the_moves_that_are_left() -> None:
    board = place_mark(place_mark(EMPTY, 4, "x"), 0, "o")
    assert board == "o123x5678" and free_cells(board) == "1235678"
    assert winner_of("xxx3oo678") == "x" and winner_of("o1xo4xo7x") == "x" and winner_of("o1xoxx6o8") == ""
    assert game_over("xoxxoxoxo") and not game_over("xoxxoxox8")


def test_each_side_sees_the_board_with_its_own_mark_and_the_side_to_move() -> None:
    env = game()
    assert env.agents == ("x", "o") and opening(env) == "x012345678"
    first, second = (asyncio.run(env.step(move)) for move in ("4", "0"))
    assert (first.to, first.messages[0].content, first.state) == ("o", "o0123x5678", "o0123x5678")
    assert (second.to, second.messages[0].content) == ("x", "xo123x5678")
    assert not first.done and first.reward == 0.0 == second.reward and not first.rewards


def test_a_win_is_the_others_loss() -> None:
    *_, last = play(game(), ["0", "3", "1", "4", "2"])
    assert last.done and last.reward == 1.0 and last.rewards == {"o": -1.0}
    assert last.metrics == {"turns": 5.0, "illegal": 0.0, "drawn": 0.0, "x_won": 1.0, "o_won": 0.0}
    *_, last = play(game(), ["0", "3", "1", "4", "8", "5"])
    assert last.done and last.reward == 1.0 and last.rewards == {"x": -1.0} and last.metrics["o_won"] == 1.0


def test_a_full_board_without_a_line_is_a_draw() -> None:
    *_, last = play(game(), list("012453786"))
    assert last.done and last.reward == 0.0 and not last.rewards and last.metrics["drawn"] == 1.0


@pytest.mark.parametrize("said", ["4", "x", "", "9", "44", "²"])
def test_an_illegal_move_loses_and_the_other_side_gains_nothing(said: str) -> None:
    _, last = play(game(), ["4", said])
    assert last.done and last.reward == -1.0 and not last.rewards
    assert last.metrics["illegal"] == 1.0 and last.metrics["drawn"] == 0.0


def test_against_chance_there_is_one_agent_and_either_side_may_be_its() -> None:
    sides = [game(seed, opponent="random").agents for seed in range(20)]
    assert set(sides) == {("x",), ("o",)}
    for seed in range(20):
        env = game(seed, opponent="random")
        shown = opening(env)
        assert shown[0] == env.agents[0] and len(free_cells(shown[1:])) == (9 if env.agents == ("x",) else 8)
        while not (reply := asyncio.run(env.step(env.actions[0]))).done:
            assert reply.to == env.agents[0]
        counts = reply.metrics
        assert counts["won"] + counts["lost"] + counts["drawn"] == 1.0
        assert reply.reward == counts["won"] - counts["lost"] and not reply.rewards


def test_openings_are_drawn_by_the_seed_and_have_no_winner() -> None:
    boards = [opening(game(seed, opening=4)) for seed in range(30)]
    assert boards == [opening(game(seed, opening=4)) for seed in range(30)] and len(set(boards)) > 20
    assert all(board[0] == "x" and len(free_cells(board[1:])) == 5 and not game_over(board[1:]) for board in boards)
    odd = game(3, opening=3)
    assert odd.agents == ("o", "x") and opening(odd)[0] == "o"


def test_each_side_gets_the_rules_once() -> None:
    env = game(terse=False, tag="move")
    assert "as x" in opening(env) and "<move>4</move>" in opening(game(terse=False, tag="move"))
    first, second = (asyncio.run(env.step(f"I take <move>{move}</move>")) for move in ("4", "0"))
    assert "as o" in first.messages[0].content and second.messages[0].content == "xo123x5678"


def test_arguments_that_make_no_game_are_refused() -> None:
    with pytest.raises(ConfigError, match="opening must be a whole number, from 0 to 4"):
        game(opening=5)
    with pytest.raises(UnknownName, match="selv"):
        game(opponent="selv")
