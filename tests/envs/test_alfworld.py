"""A household played by hand, in the original's wording."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from roll.envs.alfworld.env import ALFWorld
from roll.envs.base import StepResult
from roll.errors import ConfigError
from roll.types import Message, Task

FITS = {"countertop": ["mug", "apple", "knife", "plate"], "cabinet": ["mug"], "fridge": ["apple", "mug"]}
ABLE = ["pickupable", "cleanable", "heatable", "coolable"]
KITCHEN: dict[str, Any] = {
    "agent_loc": 0,
    "receptacles": [
        {"name": "cabinet 2", "type": "cabinet", "loc": 1, "flags": ["openable"]},
        {"name": "cabinet 1", "type": "cabinet", "loc": 1, "flags": ["openable"]},
        {"name": "countertop 1", "type": "countertop", "loc": 2},
        {"name": "fridge 1", "type": "fridge", "loc": 3, "flags": ["openable"]},
        {"name": "microwave 1", "type": "microwave", "loc": 4, "flags": ["openable"]},
        {"name": "sinkbasin 1", "type": "sinkbasin", "loc": 5},
    ],
    "objects": [
        {"name": "apple 1", "type": "apple", "loc": 2, "in": ["countertop 1"], "flags": [*ABLE, "sliceable"]},
        {"name": "chair 1", "type": "chair", "loc": None},
        {"name": "desklamp 1", "type": "desklamp", "loc": 2, "in": ["countertop 1"], "flags": ["toggleable"]},
        {"name": "egg 1", "type": "egg", "loc": 6, "in_object": "plate 1", "flags": ["pickupable"]},
        {"name": "knife 1", "type": "knife", "loc": 2, "in": ["countertop 1"], "flags": ["pickupable", "cleanable"]},
        {"name": "mug 2", "type": "mug", "loc": 1, "in": ["cabinet 1"], "flags": ABLE},
        {"name": "mug 1", "type": "mug", "loc": 3, "in": ["fridge 1"], "flags": [*ABLE, "isCool"]},
        {"name": "plate 1", "type": "plate", "loc": 2, "in": ["countertop 1"], "flags": ["isReceptacleObject"]},
    ],
    "goal": {"types": ["mug", "cabinet"], "preds": ["inReceptacle", "coolable", "isCool"]},
}


def task(**changes: Any) -> Task:
    return Task(
        id="t",
        domain="d",
        messages=(Message("system", "Be brief."), Message("user", "put a cool mug in a cabinet.")),
        metadata={**KITCHEN, **changes},
    )


@pytest.fixture
def fits(tmp_path: Path) -> str:
    path = tmp_path / "can_contain.json"
    path.write_text(json.dumps(FITS))
    return str(path)


def play(env: ALFWorld, *commands: str) -> list[StepResult]:
    async def game() -> list[StepResult]:
        return [await env.step(command) for command in commands]

    return asyncio.run(game())


def said(env: ALFWorld, *commands: str) -> list[str]:
    return [reply.messages[0].content for reply in play(env, *commands)]


def silent(**changes: Any) -> ALFWorld:
    """Everything fits everywhere, and no list of commands."""
    return ALFWorld(task(**changes), listed=False)


def test_the_opening_names_the_room_and_the_task_after_a_system_message():
    system, opening = asyncio.run(silent().start())
    assert system == Message("system", "Be brief.")
    assert opening == Message(
        "user",
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see "
        "a cabinet 2, a cabinet 1, a countertop 1, a fridge 1, a microwave 1, and a sinkbasin 1.\n\n"
        "Your task is to: put a cool mug in a cabinet.",
    )


def test_receptacles_are_described_as_open_closed_or_a_surface():
    assert said(
        silent(), "go to countertop 1", "go to fridge 1", "open fridge 1", "close fridge 1", "examine fridge 1",
        "go to sinkbasin 1", "open fridge 1",
    ) == [
        "You arrive at countertop 1. On the countertop 1, you see a apple 1, a desklamp 1, a knife 1, and a plate 1.",
        "You arrive at fridge 1. The fridge 1 is closed.",
        "You open the fridge 1. The fridge 1 is open. In it, you see a mug 1.",
        "You close the fridge 1.",
        "The fridge 1 is closed.",
        "You arrive at sinkbasin 1. On the sinkbasin 1, you see nothing.",
        "Nothing happens.",
    ]  # fmt: skip


def test_a_location_is_listed_once_and_faces_all_receptacles_there():
    assert said(silent(), "go to cabinet 1", "go to cabinet 1", "go to cabinet 2", "look", "open cabinet 1") == [
        "You arrive at cabinet 1. The cabinet 1 is closed.",
        "Nothing happens.",
        "Nothing happens.",
        "You are facing the cabinet 2, and cabinet 1. Next to it, you see nothing.",
        "You open the cabinet 1. The cabinet 1 is open. In it, you see a mug 2.",
    ]


def test_one_object_is_carried_at_a_time():
    assert said(
        silent(), "inventory", "go to countertop 1", "take apple 1 from countertop 1", "inventory",
        "take knife 1 from countertop 1", "examine countertop 1", "move apple 1 to countertop 1",
        "examine countertop 1",
    ) == [
        "You are not carrying anything.",
        "You arrive at countertop 1. On the countertop 1, you see a apple 1, a desklamp 1, a knife 1, and a plate 1.",
        "You pick up the apple 1 from the countertop 1.",
        "You are carrying: a apple 1.",
        "Nothing happens.",
        "On the countertop 1, you see a desklamp 1, a knife 1, and a plate 1.",
        "You move the apple 1 to the countertop 1.",
        "On the countertop 1, you see a apple 1, a desklamp 1, a knife 1, and a plate 1.",
    ]  # fmt: skip


def test_objects_in_a_closed_receptacle_are_out_of_reach():
    assert said(
        silent(), "go to fridge 1", "take mug 1 from fridge 1", "examine mug 1", "open fridge 1", "examine mug 1",
        "take mug 1 from fridge 1", "close fridge 1", "move mug 1 to fridge 1",
    )[1:] == [
        "Nothing happens.",
        "Nothing happens.",
        "You open the fridge 1. The fridge 1 is open. In it, you see a mug 1.",
        "This is a cold mug 1.",
        "You pick up the mug 1 from the fridge 1.",
        "You close the fridge 1.",
        "Nothing happens.",
    ]  # fmt: skip


def test_a_held_object_is_cleaned_heated_and_cooled_where_that_is_done():
    env = silent()
    assert said(env, "go to countertop 1", "take apple 1 from countertop 1", "go to sinkbasin 1")[2].startswith(
        "You arr"
    )
    assert said(env, "clean apple 1 with sinkbasin 1", "examine apple 1", "heat apple 1 with microwave 1") == [
        "You clean the apple 1 using the sinkbasin 1.",
        "This is a clean apple 1.",
        "Nothing happens.",
    ]
    assert said(env, "go to microwave 1", "heat apple 1 with microwave 1", "examine apple 1")[1:] == [
        "You heat the apple 1 using the microwave 1.",
        "This is a hot and clean apple 1.",
    ]
    assert said(env, "go to fridge 1", "cool apple 1 with fridge 1", "examine apple 1")[1:] == [
        "You cool the apple 1 using the fridge 1.",
        "This is a cool and clean apple 1.",
    ]


def test_a_knife_slices_objects_in_reach():
    assert said(
        silent(), "go to countertop 1", "slice apple 1 with knife 1", "take knife 1 from countertop 1",
        "slice apple 1 with knife 1", "examine apple 1", "go to sinkbasin 1", "slice apple 1 with knife 1",
    )[1:] == [
        "Nothing happens.",
        "You pick up the knife 1 from the countertop 1.",
        "You sliced the apple 1 with the knife 1.",
        "This is a sliced apple 1.",
        "You arrive at sinkbasin 1. On the sinkbasin 1, you see nothing.",
        "Nothing happens.",
    ]  # fmt: skip


def test_nothing_is_sliced_without_a_knife_or_where_it_no_longer_is():
    env = silent()
    play(env, "go to fridge 1", "open fridge 1", "take mug 1 from fridge 1", "go to countertop 1")
    assert said(env, "slice apple 1 with mug 1") == ["Nothing happens."]
    play(env, "move mug 1 to countertop 1", "take apple 1 from countertop 1", "go to sinkbasin 1")
    play(env, "move apple 1 to sinkbasin 1", "go to countertop 1", "take knife 1 from countertop 1")
    assert said(env, "slice apple 1 with knife 1", "go to sinkbasin 1", "slice apple 1 with knife 1") == [
        "Nothing happens.",
        "You arrive at sinkbasin 1. On the sinkbasin 1, you see a apple 1.",
        "You sliced the apple 1 with the knife 1.",
    ]


def test_a_lamp_is_off_until_it_was_used():
    assert said(
        silent(), "use desklamp 1", "go to countertop 1", "examine desklamp 1", "use desklamp 1", "examine desklamp 1"
    )[2:] == ["This desklamp 1 is off.", "You turn on the desklamp 1.", "This desklamp 1 is on."]
    assert said(silent(), "use desklamp 1") == ["Nothing happens."]


def test_a_container_shows_its_contents_and_other_objects_have_nothing_special():
    assert said(silent(), "go to countertop 1", "examine plate 1", "examine knife 1")[1:] == [
        "This is a normal plate 1. In it, you see a egg 1.",
        "There's nothing special about knife 1.",
    ]


def test_help_names_every_verb():
    (text,) = said(silent(), "help")
    verbs = ("look", "inventory", "go to", "open", "close", "take", "move", "examine", "use", "heat", "clean", "cool")
    assert text.startswith("\nAvailable commands:\n") and all(f"  {verb} " in text for verb in (*verbs[:2], "slice"))
    assert all(f"  {verb}" in text for verb in verbs)


def test_an_object_in_two_receptacles_is_taken_from_one_of_them():
    objects = [{"name": "box 1", "type": "box", "loc": 1, "in": ["cabinet 1", "countertop 1"], "flags": ["pickupable"]}]
    assert said(
        silent(objects=objects), "go to cabinet 1", "open cabinet 1", "take box 1 from cabinet 1", "open cabinet 2",
        "move box 1 to cabinet 2", "look", "go to countertop 1",
    )[2:] == [
        "You pick up the box 1 from the cabinet 1.",
        "You open the cabinet 2. The cabinet 2 is open. In it, you see nothing.",
        "You move the box 1 to the cabinet 2.",
        "You are facing the cabinet 2, and cabinet 1. Next to it, you see a box 1.",
        "You arrive at countertop 1. On the countertop 1, you see a box 1.",
    ]  # fmt: skip


def test_a_file_of_fits_limits_what_a_receptacle_holds(fits: str):
    env = ALFWorld(task(), can_contain=fits, listed=False)
    play(env, "go to countertop 1", "take apple 1 from countertop 1", "go to sinkbasin 1")
    assert said(
        env, "move apple 1 to sinkbasin 1", "go to cabinet 1", "open cabinet 1", "move apple 1 to cabinet 1"
    ) == [
        "Nothing happens.",
        "You arrive at cabinet 1. The cabinet 1 is closed.",
        "You open the cabinet 1. The cabinet 1 is open. In it, you see a mug 2.",
        "Nothing happens.",
    ]
    assert said(env, "go to countertop 1", "put apple 1 in/on countertop 1")[1] == (
        "You move the apple 1 to the countertop 1."
    )


def test_the_commands_of_a_turn_are_all_that_would_do_something_in_alphabetical_order(fits: str):
    env = ALFWorld(task(), can_contain=fits)
    (*_, last) = play(env, "go to countertop 1", "take knife 1 from countertop 1")
    assert env.commands == (
        "examine apple 1", "examine countertop 1", "examine desklamp 1", "examine knife 1", "examine plate 1",
        "go to cabinet 1", "go to cabinet 2", "go to fridge 1", "go to microwave 1", "go to sinkbasin 1",
        "help", "inventory", "look", "move knife 1 to countertop 1", "slice apple 1 with knife 1", "use desklamp 1",
    )  # fmt: skip
    assert last.messages[0].content == (
        f"You pick up the knife 1 from the countertop 1.\n\nCommands: {', '.join(env.commands)}"
    )


def test_a_command_is_parsed_in_any_case_and_spacing_and_inside_a_tag():
    assert said(silent(), "  Go  TO fridge 1\n")[0].startswith("You arrive at fridge 1.")
    env = ALFWorld(task(), tag="action", listed=False)
    assert said(
        env, "go to fridge 1", "<think>look</think><action>go to fridge 1</action>", "<action>dance</action>"
    ) == [
        "Nothing happens.",
        "You arrive at fridge 1. The fridge 1 is closed.",
        "Nothing happens.",
    ]


@pytest.mark.parametrize(
    "reply", ["", "\ud800\0", "x" * 100_000, "put a in " * 20_000, "go to go to fridge 1", "take from"]
)
def test_any_other_reply_does_nothing(reply: str):
    assert said(silent(), reply, "look")[0] == "Nothing happens."


def test_the_goal_ends_the_game_with_a_reward_and_rates_of_all_turns():
    replies = play(
        ALFWorld(task(), format_penalty=0.25), "dance", "go to fridge 1", "look", "open fridge 1",
        "take mug 1 from fridge 1", "go to cabinet 2", "open cabinet 2", "move mug 1 to cabinet 2",
    )  # fmt: skip
    assert [reply.reward for reply in replies] == [-0.25, 0, 0, 0, 0, 0, 0, 1]
    assert [reply.done for reply in replies] == [False] * 7 + [True]
    # 8 turns: one was no command, one only looked
    assert replies[-1].metrics == {"success": 1.0, "turns": 8.0, "valid_actions": 7 / 8, "effective_actions": 6 / 8}


def test_a_mug_that_is_not_cool_does_not_win_and_a_heated_one_is_not_cool():
    before = ("go to cabinet 1", "open cabinet 1", "take mug 2 from cabinet 1")
    assert not play(silent(), *before, "move mug 2 to cabinet 1")[-1].done
    env = silent()
    play(env, "go to fridge 1", "open fridge 1", "take mug 1 from fridge 1", "go to microwave 1")
    play(env, "heat mug 1 with microwave 1", "go to cabinet 1", "open cabinet 1")
    assert not play(env, "move mug 1 to cabinet 1")[-1].done


def test_two_objects_must_be_in_the_same_receptacle():
    env = silent(goal={"types": ["mug", "cabinet", "mug", "cabinet"], "preds": ["inReceptacle"]})
    play(env, "go to fridge 1", "open fridge 1", "take mug 1 from fridge 1", "go to cabinet 2", "open cabinet 2")
    assert not play(env, "move mug 1 to cabinet 2")[-1].done
    play(env, "take mug 1 from cabinet 2", "open cabinet 1")
    assert play(env, "move mug 1 to cabinet 1")[-1].reward == 1.0


def test_a_held_object_is_lit_at_the_location_of_a_used_lamp():
    goal = {"types": ["desklamp", "mug"], "preds": ["holds", "inReceptacle", "isToggled", "toggleable"]}
    env = silent(goal=goal)
    assert not play(env, "go to countertop 1", "use desklamp 1")[-1].done  # nothing is held
    play(env, "go to cabinet 1", "open cabinet 1")
    assert not play(env, "take mug 2 from cabinet 1")[-1].done  # no light
    assert play(env, "go to countertop 1")[-1].reward == 1.0


def test_the_last_turn_ends_the_game():
    replies = play(ALFWorld(task(), max_turns=2), "look", "help")
    assert [reply.done for reply in replies] == [False, True] and replies[-1].metrics["success"] == 0.0
    with pytest.raises(AssertionError, match="single-use"):
        play(ALFWorld(task(), max_turns=1), "look", "look")


def test_the_state_is_where_everything_is_and_not_how_it_came_there():
    there, back, looked = silent(), silent(), silent()
    (at_once,) = play(there, "go to countertop 1")
    carried = play(back, "go to countertop 1", "take apple 1 from countertop 1", "move apple 1 to countertop 1")
    assert carried[-1].state == at_once.state != carried[1].state
    assert [reply.state for reply in play(looked, "go to countertop 1", "look", "dance")] == [at_once.state] * 3
    assert play(there, "use desklamp 1")[-1].state != at_once.state
    opened = play(back, "go to fridge 1", "open fridge 1", "close fridge 1")
    assert opened[0].state == opened[2].state != opened[1].state


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"receptacles": None}, r"Expected `array`, got `null` - at `\$.receptacles`"),
        ({"objects": [{"name": "x", "type": "x", "in": ["moon 1"]}]}, r"object 'x' is in \['moon 1'\]"),
        (
            {"objects": [{"name": "x", "type": "x", "in_object": "y"}]},
            "object 'x' is in object 'y', which does not exist",
        ),
        ({"objects": [{"name": "fridge 1", "type": "x"}]}, "two things have the same name"),
        ({"objects": [{"name": "x", "type": "x", "flags": ["edible"]}]}, "Invalid enum value 'edible'"),
        ({"goal": {"types": ["mug"], "preds": ["inReceptacle"]}}, "neither two types nor the same two twice"),
        ({"goal": {"types": ["mug", "cabinet"], "preds": []}}, "has no inReceptacle"),
    ],
)
def test_a_row_that_is_no_game_is_refused_by_name(changes: dict[str, Any], fault: str):
    with pytest.raises(ConfigError, match=rf"^alfworld: task 't': .*{fault}.*; correct its row$"):
        silent(**changes)


def test_a_row_without_a_question_and_arguments_out_of_bounds_are_refused():
    with pytest.raises(ConfigError, match="task 't' has no question; give its row a 'prompt'"):
        ALFWorld(Task(id="t", domain="d", metadata=KITCHEN))
    with pytest.raises(ConfigError, match="alfworld: max_turns must be a whole number, 1 or more"):
        ALFWorld(task(), max_turns=0)


def test_a_malformed_file_of_fits_is_rejected_with_its_path(tmp_path: Path):
    path = tmp_path / "fits.json"
    with pytest.raises(ConfigError, match=f"^alfworld: can_contain: {path} cannot be read .*No such file"):
        ALFWorld(task(), can_contain=str(path))
    path.write_text('{"cabinet": ["mug"],\n oops}')
    with pytest.raises(ConfigError, match=f"^alfworld: can_contain: {path}: JSON is malformed"):
        ALFWorld(task(), can_contain=str(path))
    path.write_text('{"cabinet": "mug"}')
    with pytest.raises(ConfigError, match=f"^alfworld: can_contain: {path}: Expected `array`, got `str`"):
        ALFWorld(task(), can_contain=str(path))
