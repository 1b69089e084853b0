"""Solvable levels, standard moves, and levels from files."""

import gzip
import json
import os
from pathlib import Path

import pytest

from roll.config.load import load
from roll.envs.inputs import in_split
from roll.envs.sokoban import Sokoban
from roll.envs.sokoban_levels import apply_move, draw_listing, list_cells, parse_level, solve
from roll.errors import ConfigError
from roll.types import Task
from tests.envs.worlds import EXAMPLES, opening, openings, play

LEVEL = "#####\n#@$.#\n#---#\n#####\n"
"""Solved by one push to the right."""
TWO = "@$.\n-$-\n--.\n"
"""Two boxes: one is pushed right, the other one down and right."""
DRAWN = {"listed": False}
ROLL_DATA = os.environ.get("ROLL_DATA", "")


def room(seed: int = 0, **arguments: object) -> Sokoban:
    return Sokoban(Task(id="t", domain="d", seed=seed), **{"terse": True, **arguments})  # type: ignore[arg-type]


def staged(level: str, **arguments: object) -> Sokoban:
    task = Task(id="t", domain="d", metadata={"level": level})
    return Sokoban(task, **{"terse": True, **arguments})  # type: ignore[arg-type]


def test_a_level_is_shown_as_it_was_drawn():
    assert opening(staged(LEVEL)) == LEVEL
    assert str(parse_level("# _\n@*$\n.--\n")) == "#--\n@*$\n.--\n"
    assert str(parse_level("+$\n")) == "+$\n"


@pytest.mark.parametrize(
    ("level", "move", "then"),
    [
        ("@-$.\n", "right", "-@$.\n"),
        ("@$.\n", "right", "-@*\n"),
        ("@$#.\n", "right", "@$#.\n"),
        ("@$\n.-\n", "right", "@$\n.-\n"),  # the edge is a wall
        ("@$$..\n", "right", "@$$..\n"),  # two boxes do not move
        ("#@$.\n", "left", "#@$.\n"),
        ("-@$.\n", "left", "@-$.\n"),  # nothing is pulled
        ("@*-\n", "right", "-+$\n"),
        ("+$\n--\n", "down", ".$\n@-\n"),
    ],
)
def test_every_move_walks_pushes_or_does_nothing(level: str, move: str, then: str):
    assert str(apply_move(parse_level(level), move)) == then


def test_a_ragged_level_ends_where_its_rows_end():
    level = parse_level("@-\n--$.\n")
    assert apply_move(level, "right").player == (0, 1)
    assert apply_move(apply_move(level, "right"), "right").player == (0, 1)


def test_the_last_box_on_its_goal_earns_one_and_ends_the_attempt():
    first, second = play(staged(LEVEL), "hop", "right")
    assert not first.done and first.reward == 0.0 and first.state == LEVEL
    assert second.done and second.reward == 1.0
    assert second.metrics == {"success": 1.0, "turns": 2.0, "valid_actions": 0.5, "effective_actions": 0.5}


def test_a_listed_level_says_where_everything_is():
    env = staged("@$.\n--#\n", listed=True)
    assert opening(env) == "2x3\n#12.02$01@00\n"
    (reply,) = play(env, "right")
    assert reply.messages[0].content == "#12.02$02@01\n" and reply.done
    assert reply.state == "-@*\n--#\n"  # a state has one name, however it is shown


@pytest.mark.parametrize("level", ["@$.\n--#\n", "+$-\n---\n", "*@$\n-.#\n", "#--\n*+$\n---\n"])
def test_a_listed_level_can_be_drawn_again(level: str):
    rows = level.splitlines()
    assert draw_listing(list_cells(parse_level(level)), len(rows), len(rows[0])) == level


def test_one_box_of_two_on_its_goal_is_not_the_end():
    replies = play(staged(TWO), "right", "down", "left")
    assert not any(reply.done or reply.reward for reply in replies)


def test_turns_run_out_and_an_invalid_move_costs_the_penalty():
    replies = play(staged(LEVEL, max_turns=3, format_penalty=0.5), "left", "", "up")
    assert [reply.reward for reply in replies] == [0.0, -0.5, 0.0]
    assert [reply.done for reply in replies] == [False, False, True]
    assert replies[-1].metrics["effective_actions"] == 0.0


def test_the_fewest_moves_are_found():
    assert solve(parse_level(LEVEL)) == ["right"]
    assert solve(parse_level("@--\n-$.\n")) == ["down", "right"]
    found = solve(parse_level(TWO))
    assert found is not None
    level = parse_level(TWO)
    for move in found:
        level = apply_move(level, move)
    assert level.solved and len(found) == 5  # right; then around by down and left, and down and right
    assert solve(parse_level("$@.\n---\n")) is None  # in a corner
    assert solve(parse_level("@--\n-$.\n"), most_states=1) is None


@pytest.mark.parametrize(("size", "boxes", "pulls"), [(3, 1, 2), (5, 1, 6), (5, 2, 4), (6, 1, 12)])
@pytest.mark.slow
def test_every_level_that_is_made_can_be_solved_and_is_not_solved_yet(size: int, boxes: int, pulls: int):
    for seed in range(60 if boxes == 1 else 15):
        level = parse_level(opening(room(seed, size=size, boxes=boxes, pulls=pulls)))
        assert len(level.boxes) == boxes and len(level.floor) == size == len(level.floor[0])
        found = solve(level)
        assert found is not None and len(found) >= 1


def test_seeds_give_different_levels_and_a_seed_always_the_same():
    assert opening(room(1)) == opening(room(1))
    assert len({opening(room(seed)) for seed in range(50)}) == 50


@pytest.mark.slow
def test_held_out_levels_of_the_example_are_distinct_and_in_no_training():
    run = load(EXAMPLES / "sokoban.yaml").run
    (training,), (held_out,) = run.tasks, run.validation.tasks
    assert held_out.data is not None
    start, count = held_out.data.kwargs["start"], held_out.data.kwargs["count"]
    assert count == 300 and training.data is None
    unseen = set(openings(room(seed, **held_out.env.kwargs | DRAWN) for seed in range(start, start + count)))
    assert len(unseen) == 300
    seen = set(openings(room(seed, **training.env.kwargs | DRAWN) for seed in range(400)))
    assert seen.isdisjoint(unseen)
    assert all(in_split(level, "held_out") for level in unseen) and not any(
        in_split(level, "held_out") for level in seen
    )


def test_levels_of_a_file_are_taken_in_order_of_seeds(tmp_path: Path):
    plain, packed = tmp_path / "levels.jsonl", tmp_path / "levels.jsonl.gz"
    text = "".join(json.dumps({"level": level}) + "\n" for level in (LEVEL, TWO))
    plain.write_text(f"\n{text}")
    packed.write_bytes(gzip.compress(text.encode()))
    for path in (plain, packed):
        assert [opening(room(seed, levels=str(path))) for seed in (0, 1, 2)] == [LEVEL, TWO, LEVEL]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"level": "@$."}\n{"level": "@$"}', ":2: a level has as many boxes as goals, at least one (got 1 and 0)"),
        ('\n{"level": "@@$."}', ":2: a level has one player (got 2)"),
        ('{"level": "@$x"}', ":1: a level cannot contain 'x'"),
        ('{"room": "@$."}', ":1: no 'level' as text"),
        ("[1]", ":1: no 'level' as text"),
        ('{"level": ', ":1: broken JSON"),
        ("", ": no levels in it"),
    ],
)
def test_a_malformed_file_of_levels_is_reported_by_line(tmp_path: Path, content: str, says: str):
    path = tmp_path / "levels.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigError) as found:
        room(levels=str(path))
    assert f"{path}{says}" in str(found.value) and "\n" not in str(found.value)


def test_a_missing_or_binary_file_of_levels_is_reported(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"nowhere.jsonl: no such file; check the path"):
        room(levels=str(tmp_path / "nowhere.jsonl"))
    (tmp_path / "levels.jsonl.gz").write_bytes(b"not gzip")
    with pytest.raises(ConfigError, match=r"levels.jsonl.gz: cannot be read"):
        room(levels=str(tmp_path / "levels.jsonl.gz"))


def test_a_task_with_a_broken_level_is_reported_by_name():
    with pytest.raises(ConfigError, match=r"sokoban: task 't': a level has one player \(got 0\)"):
        staged("$.")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"size": 2}, "sokoban: size must be a whole number, from 3 to 64"),
        ({"boxes": 0}, "sokoban: boxes"),
        ({"walls": 0.9}, "sokoban: walls"),
        ({"pulls": 1.5}, "sokoban: pulls must be a whole number"),
        ({"max_turns": True}, "sokoban: max_turns"),
        ({"format_penalty": -0.1}, "sokoban: format_penalty"),
        ({"size": 3, "boxes": 9}, "take fewer boxes or walls"),
        ({"size": 11, "listed": True}, "sokoban: listed is for levels of at most 10 by 10 cells"),
        ({"split": "test"}, "no split named 'test'"),
    ],
)
def test_an_impossible_room_is_rejected_in_one_line(wrong: dict[str, object], says: str):
    with pytest.raises(ConfigError) as found:
        room(**wrong)
    assert says in str(found.value) and "\n" not in str(found.value)


@pytest.mark.skipif(not ROLL_DATA, reason="ROLL_DATA is not set: it names the folder with Boxoban's levels")
def test_boxobans_levels_can_be_loaded():
    path = Path(ROLL_DATA, "agentic", "boxoban_unfiltered_valid.jsonl.gz")
    level = parse_level(opening(room(299, levels=str(path))))
    assert len(level.boxes) == 4 and len(level.floor) == 10
    assert opening(room(0, levels=str(path))) != opening(room(1, levels=str(path)))
