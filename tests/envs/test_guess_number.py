"""A game played by hand."""

import asyncio

import pytest

from roll.config.schema import Shape
from roll.envs.base import StepResult
from roll.envs.guess_number import GuessNumber
from roll.envs.single_turn import SingleTurn
from roll.errors import ConfigError
from roll.types import Message, Task


def seed_of(secret: int) -> int:
    """The first seed whose secret this is, found by guessing it right at once."""
    for seed in range(1000):
        env = GuessNumber(Task(id="t", domain="d", seed=seed))
        if asyncio.run(env.step(str(secret))).done:
            return seed
    raise AssertionError(f"{secret} is never the secret")


def play(secret: int, *guesses: str, max_turns: int = 4) -> list[StepResult]:
    env = GuessNumber(Task(id="t", domain="d", seed=seed_of(secret)), max_turns=max_turns)

    async def game() -> list[StepResult]:
        await env.start()
        return [await env.step(guess) for guess in guesses]

    return asyncio.run(game())


def said(replies: list[StepResult]) -> list[str]:
    return [reply.messages[0].content for reply in replies]


def test_every_guess_is_answered_with_the_way_to_the_secret():
    replies = play(7, "5", "8", " 7 ")
    assert said(replies) == ["higher", "lower", "right"]
    assert [reply.reward for reply in replies] == [0.0, 0.0, 1.0]
    assert [reply.done for reply in replies] == [False, False, True]
    assert replies[-1].metrics == {"success": 1.0, "turns": 3.0, "valid_actions": 1.0, "effective_actions": 1.0}


def test_a_reply_that_is_no_number_of_the_range_costs_a_turn():
    replies = play(7, "five", "12", "", "\u0667")  # the last is a seven, in Arabic digits
    assert said(replies) == ["1-9?"] * 4
    assert replies[-1].done
    assert replies[-1].metrics == {"success": 0.0, "turns": 4.0, "valid_actions": 0.0, "effective_actions": 0.0}


def test_the_last_turn_may_still_win():
    assert play(7, "1", "2", "3", "7")[-1].reward == 1.0
    assert play(7, "1", max_turns=1)[-1] == StepResult(
        messages=(Message("user", "higher"),),
        done=True,
        state="2-9 after 1",
        metrics={"success": 0.0, "turns": 1.0, "valid_actions": 1.0, "effective_actions": 1.0},
    )


def test_attempts_that_know_the_same_after_as_many_turns_are_in_the_same_state():
    one, other = play(7, "5", "8", "6"), play(7, "8", "5", "5")
    assert [reply.state for reply in one] == ["6-9 after 1", "6-7 after 2", "7-7 after 3"]
    assert [reply.state for reply in other] == ["1-7 after 1", "6-7 after 2", "6-7 after 3"]


def test_a_guess_that_rules_nothing_out_was_valid_and_not_effective():
    assert [reply.metrics["effective_actions"] for reply in play(7, "5", "4", "5", "8")] == [1.0, 1 / 2, 1 / 3, 2 / 4]


def test_every_number_of_the_range_is_somebodys_secret():
    assert all(seed_of(secret) >= 0 for secret in range(1, 10))


def test_all_it_says_is_within_the_default_alphabet_of_a_small_model():
    env = GuessNumber(Task(id="t", domain="d"))
    spoken = asyncio.run(env.start())[0].content + "".join(said(play(7, "5", "8", "x", "7")))
    assert set(spoken) <= set(Shape().alphabet)


@pytest.mark.parametrize("wrong", [{"low": 9, "high": 1}, {"low": -1}, {"max_turns": 0}])
def test_an_impossible_game_is_rejected(wrong: dict[str, int]):
    with pytest.raises(ConfigError, match=r"guess_number: (needs 0 <= low < high|max_turns must be)"):
        GuessNumber(Task(id="t", domain="d"), **wrong)


def test_a_single_turn_asks_the_tasks_question_and_ends():
    task = Task(id="t", domain="d", messages=(Message("user", "1+1="),))
    env = SingleTurn(task)
    assert asyncio.run(env.start()) == task.messages
    assert asyncio.run(env.step("2")) == StepResult(done=True)
