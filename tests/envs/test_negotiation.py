"""Negotiation: deals are divided, each agent uses its own values, and the other's stay hidden."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from roll.commands import train as commands
from roll.config.load import load
from roll.envs.base import StepResult
from roll.envs.negotiation import AGENTS, WORTH, Negotiation, draw_game
from roll.errors import ConfigError
from roll.tracking.sinks import read_lines
from roll.types import Task
from tests.envs.worlds import EXAMPLES


def table(seed: int = 0, **arguments: object) -> Negotiation:
    env = Negotiation(Task(id="t", domain="d", seed=seed), **{"terse": True, **arguments})  # type: ignore[arg-type]
    env.counts, env.values = (2, 1, 3), {"first": (1, 2, 2), "second": (5, 0, 0)}
    return env


def play(env: Negotiation, replies: Sequence[str]) -> list[StepResult]:
    async def go() -> list[StepResult]:
        await env.start()
        return [await env.step(reply) for reply in replies]

    return asyncio.run(go())


def test_all_things_are_worth_the_same_to_both_and_the_seed_decides_the_rest() -> None:
    for seed in range(50):
        counts, values = draw_game(random.Random(seed), 3)
        assert (counts, values) == draw_game(random.Random(seed), 3)
        assert all(1 <= number <= 3 for number in counts) and values["first"] != values["second"]
        for agent in AGENTS:
            assert sum(number * value for number, value in zip(counts, values[agent], strict=True)) == WORTH


def test_a_deal_gives_each_agent_the_value_of_its_part() -> None:
    assert play(table(), ["2", "a"])[1].rewards == {"first": 0.2}, "what is not named is left to the other"
    offer, deal = play(table(), ["013", "accept"])
    assert not offer.done and (offer.reward, offer.rewards, offer.to) == (0.0, {}, "second")
    assert deal.done and deal.reward == 1.0 and deal.rewards == {"first": 0.8}  # both books; a hat and three balls
    assert deal.metrics == {"success": 1.0, "turns": 2.0, "offers": 1.0, "worth": 1.8}


def test_each_agent_gets_the_counts_and_its_own_values_once_then_offers() -> None:
    env = table()
    opening = asyncio.run(env.start())
    assert opening[0].content == "213:1,2,2\n-\n"
    first, second, third = (asyncio.run(env.step(said)) for said in ("1 1 1", "200", "113"))
    assert [reply.messages[0].content for reply in (first, second, third)] == ["213:5,0,0\n111\n", "200\n", "113\n"]
    assert [reply.to for reply in (first, second, third)] == ["second", "first", "second"]


def test_no_agent_can_accept_its_own_or_a_missing_offer() -> None:
    early, offer, nonsense, own = play(table(format_penalty=0.25), ["a", "200", "maybe", "a"])
    assert not early.done and early.reward == -0.25 == nonsense.reward == own.reward
    assert offer.reward == 0.0 and not own.done and own.metrics["success"] == 0.0


@pytest.mark.parametrize("said", ["310", "3", "2000", "", "-1 0 0", "two books"])
def test_too_many_items_or_no_numbers_are_no_offer(said: str) -> None:
    (reply,) = play(table(format_penalty=0.5), [said])
    assert reply.reward == -0.5 and reply.metrics["offers"] == 0.0 and reply.messages[0].content.endswith("-\n")


def test_without_a_deal_in_time_both_get_nothing() -> None:
    *_, last = play(table(max_turns=4), ["111"] * 4)
    assert last.done and last.reward == 0.0 and not last.rewards and last.metrics["success"] == 0.0


def test_the_long_form_does_not_reveal_the_others_values() -> None:
    env = table(terse=False, tag="offer")
    opening = asyncio.run(env.start())[0].content
    assert "1 for each of the books, 2 for each of the hats, 2 for each of the balls" in opening
    assert "<offer>accept</offer>" in opening and "5 for each" not in opening
    reply = asyncio.run(env.step("Mine: <offer>2 0 1</offer>"))
    told = reply.messages[0].content
    assert "5 for each of the books" in told and "2 books, 0 hats, 1 balls" in told


def test_arguments_that_make_no_table_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_turns must be a whole number, 2 or more"):
        table(max_turns=1)


@pytest.mark.slow
def test_the_example_trains_both_agents(tmp_path: Path) -> None:
    small = ["steps=2", "threads=1", "rollout.groups_per_step=8", f"directory={tmp_path}"]
    loaded = load(EXAMPLES / "negotiation.yaml", [*small, "deterministic=false", "tracking.tensorboard=false"])
    commands.train(loaded, overwrite=False)
    lines = read_lines(tmp_path / "negotiation" / "metrics.jsonl")
    assert {"domain/table/reward/first", "domain/table/reward/second", "env/table/worth"} <= lines[-1].keys()
    assert 2 <= lines[-1]["env/table/turns"] <= 4 and max(line.get("loss/grad_norm", 0) for line in lines) > 0
