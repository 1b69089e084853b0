"""Lakes are solvable, respect the split, and moves have the right effect."""

import asyncio
import random
from collections import Counter
from itertools import pairwise

import pytest

from roll.config.load import load
from roll.envs.frozen_lake import FrozenLake, Lake, draw_lake, parse_lake, shortest_path
from roll.envs.inputs import in_split
from roll.errors import ConfigError, UnknownName
from roll.types import Task
from tests.envs.worlds import EXAMPLES, opening, openings, play

pytestmark = pytest.mark.slow


def lake(seed: int = 0, **arguments: object) -> FrozenLake:
    return FrozenLake(Task(id="t", domain="d", seed=seed), **{"terse": True, **arguments})  # type: ignore[arg-type]


def seed_of(text: str, **arguments: object) -> int:
    """The first seed that gives this map."""
    size = text.index("\n")
    return next(seed for seed in range(10**6) if opening(lake(seed, size=size, holes=0.3, **arguments)) == text)


CORNER = seed_of(".o\npg\n")
"""One move right of the player is the goal; up and right is a hole, which is also where up and then right leads."""


def test_a_map_is_read_as_it_is_written():
    text = ".po\n..o\ng..\n"
    found = parse_lake(f"Some words.\n{text}")
    assert found == Lake(size=3, holes=frozenset({(0, 2), (1, 2)}), goal=(2, 0), player=(0, 1))
    assert str(found) == text
    assert (
        parse_lake("no map") is None
        and parse_lake("") is None
        and parse_lake("p.\n..\n") is None
        and parse_lake("pg\n") is None
    )


def test_the_shortest_way_leads_around_the_holes():
    assert shortest_path(parse_lake("po.\n.og\n...\n")) == ["down", "down", "right", "right", "up"]  # type: ignore[arg-type]
    assert shortest_path(parse_lake("pog\n.o.\n.o.\n")) is None  # type: ignore[arg-type]


def test_reaching_the_goal_earns_one_and_ends_the_attempt():
    (reply,) = play(lake(CORNER, size=2, holes=0.3), "right")
    assert reply.done and reply.reward == 1.0
    assert reply.metrics == {"success": 1.0, "turns": 1.0, "valid_actions": 1.0, "effective_actions": 1.0}


def test_a_hole_ends_the_attempt_without_a_reward():
    first, second = play(lake(CORNER, size=2, holes=0.3), "up", "right")
    assert not first.done and first.state == "po\n.g\n" == first.messages[0].content
    assert second.done and second.reward == 0.0 and second.metrics["success"] == 0.0


def test_the_edge_stops_a_move_and_words_that_are_none_cost_a_turn():
    replies = play(lake(CORNER, size=2, holes=0.3, max_turns=4, format_penalty=0.25), "left", "jump", "", "d")
    assert [reply.state for reply in replies] == [".o\npg\n"] * 4
    assert [reply.reward for reply in replies] == [0.0, -0.25, -0.25, 0.0]
    assert [reply.done for reply in replies] == [False, False, False, True]
    assert replies[-1].metrics == {"success": 0.0, "turns": 4.0, "valid_actions": 0.5, "effective_actions": 0.0}


def test_a_response_that_is_no_move_is_reported_unless_terse():
    (wordy,) = play(lake(CORNER, size=2, holes=0.3, terse=False, tag="answer"), "up")
    assert "no move" in wordy.messages[0].content and "<answer>up</answer>" in wordy.messages[0].content
    assert wordy.messages[0].content.endswith("\n.o\npg\n")
    opened = opening(lake(CORNER, size=2, holes=0.3, terse=False))
    assert "hole" in opened and opened.endswith("\n.o\npg\n")


def test_positions_name_the_cells_after_each_map():
    env = lake(CORNER, size=2, holes=0.3, positions=True)
    assert opening(env) == ".o\npg\nYou: row 2 column 1; goal: row 2 column 2; holes: row 1 column 2.\n"
    after = asyncio.run(env.step("up"))
    assert after.messages[0].content == "po\n.g\nYou: row 1 column 1; goal: row 2 column 2; holes: row 1 column 2.\n"


def test_slippery_moves_go_aside_two_times_out_of_three_and_alike_for_siblings():
    def ways(seed: int) -> list[str]:
        return [reply.state for reply in play(lake(seed, size=8, holes=0.0, slippery=True, max_turns=64), *["up"] * 5)]

    assert all(ways(seed) == ways(seed) for seed in range(20))
    steps: Counter[tuple[int, int]] = Counter()
    for seed in range(300):
        env = lake(seed, size=8, holes=0.0, slippery=True)
        before, (reply,) = parse_lake(opening(env)), play(env, "up")
        after = parse_lake(reply.state)  # None on the goal, which hides it
        assert before is not None
        if after is not None and before.player[0] > 0 and 0 < before.player[1] < 7:
            steps[after.player[0] - before.player[0], after.player[1] - before.player[1]] += 1
    shares = {step: count / steps.total() for step, count in steps.items()}
    assert set(shares) == {(-1, 0), (0, -1), (0, 1)}
    assert all(abs(share - 1 / 3) < 0.1 for share in shares.values())  # about 190 draws: a deviation is 0.034


def test_the_same_turn_slips_alike_after_any_responses():
    compared = 0
    for seed in range(40):
        steps = [slips(seed, first) for first in ("nothing", "left")]
        if all(steps):
            compared += 1
            assert steps[0] == steps[1]
    assert compared > 5


def slips(seed: int, first: str) -> list[tuple[int, int]]:
    """How three moves up went after another reply; empty where an edge or the goal came between."""
    found = play(lake(seed, size=12, holes=0.0, slippery=True, max_turns=64), first, "up", "up", "up")
    cells = [seen.player for reply in found if (seen := parse_lake(reply.state)) is not None]
    if len(cells) < 4 or not all(0 < row < 11 and 0 < column < 11 for row, column in cells):
        return []
    return [(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(cells)]


@pytest.mark.parametrize(("size", "holes"), [(2, 0.5), (4, 0.2), (6, 0.4), (10, 0.3)])
def test_every_lake_has_a_way_within_its_turns(size: int, holes: float):
    for seed in range(100):
        found = parse_lake(opening(lake(seed, size=size, holes=holes, max_turns=20)))
        assert found is not None
        way = shortest_path(found)
        assert way is not None and 1 <= len(way) <= 20


def test_the_number_of_holes_follows_the_argument():
    draws = random.Random(0)
    found = sum(len(draw_lake(draws, 6, 0.3).holes) for _ in range(400)) / (400 * 34)  # player and goal stand on ice
    assert abs(found - 0.3) < 0.02


def test_held_out_maps_of_the_example_are_distinct_and_in_no_training():
    run = load(EXAMPLES / "frozen_lake.yaml").run
    (training,), (held_out,) = run.tasks, run.validation.tasks
    assert held_out.data is not None
    start, count = held_out.data.kwargs["start"], held_out.data.kwargs["count"]
    assert count == 300 and training.data is None  # seeds from 0 to 999,999
    unseen = openings(lake(seed, **held_out.env.kwargs) for seed in range(start, start + count))
    assert len(set(unseen)) == 300
    assert set(openings(lake(seed, **training.env.kwargs) for seed in range(1500))).isdisjoint(unseen)
    everything = openings(lake(seed, **{**training.env.kwargs, "split": "all"}) for seed in range(100))
    assert any(in_split(text, "held_out") for text in everything)  # or the split would keep nothing apart


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"size": 1}, "frozen_lake: size must be a whole number, from 2 to 64"),
        ({"size": "four"}, "(got 'four'); change it"),
        ({"holes": 1.0}, "frozen_lake: holes must be a number, from 0 to 0.9"),
        ({"max_turns": 0}, "frozen_lake: max_turns must be a whole number, 1 or more"),
        ({"format_penalty": -1}, "frozen_lake: format_penalty"),
        ({"size": 64, "max_turns": 1, "split": "held_out"}, "lower holes or raise max_turns"),
        ({"split": "test"}, "no split named 'test'"),
    ],
)
def test_an_impossible_lake_is_rejected_in_one_line(wrong: dict[str, object], says: str):
    with pytest.raises(ConfigError) as found:
        lake(**wrong)
    assert says in str(found.value) and "\n" not in str(found.value)


def test_an_unknown_split_is_an_unknown_name():
    with pytest.raises(UnknownName):
        lake(split="trian")


def test_an_attempt_takes_no_longer_than_its_turns():
    async def attempt() -> int:
        env = lake(CORNER, size=2, holes=0.3, max_turns=5)
        await env.start()
        turns = 1
        while not (await env.step("left")).done:
            turns += 1
        return turns

    assert asyncio.run(attempt()) == 5
