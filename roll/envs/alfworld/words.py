"""The game's text in ALFWorld's wording, for the state after an action."""

from __future__ import annotations

from collections.abc import Iterable

from roll.envs.alfworld.world import GameAction, World

NOTHING_HAPPENS = "Nothing happens."
HELP = """
Available commands:
  look                              see where you are
  inventory                         see what you carry
  go to (receptacle)                walk there
  open (receptacle)
  close (receptacle)
  take (object) from (receptacle)   with empty hands
  move (object) to (receptacle)     put it in or on it
  examine (something)               a receptacle here, or an object in reach
  use (object)                      switch it on
  heat (object) with (receptacle)
  clean (object) with (receptacle)
  cool (object) with (receptacle)
  slice (object) with (object)      with a knife in your hand
"""
_OUTCOMES = {
    "go": "You arrive at {receptacle}.",
    "open": "You open the {receptacle}.",
    "close": "You close the {receptacle}.",
    "take": "You pick up the {thing} from the {receptacle}.",
    "move": "You move the {thing} to the {receptacle}.",
    **dict.fromkeys(("clean", "heat", "cool"), "You {verb} the {thing} using the {receptacle}."),
    "use": "You turn on the {thing}.",  # as in the original, also if it is already on
    "slice": "You sliced the {thing} with the {held}.",
    "help": HELP,
}
"""The text after each action; after `go` and `open`, a description of the receptacle follows."""
_CONDITIONS = (
    ({"isClean", "isHot", "isSliced"}, "This is a hot and clean sliced {}."),
    ({"isClean", "isCool", "isSliced"}, "This is a cool and clean sliced {}."),
    ({"isClean", "isSliced"}, "This is a clean sliced {}."),
    ({"isHot", "isSliced"}, "This is a hot sliced {}."),
    ({"isCool", "isSliced"}, "This is a cool sliced {}."),
    ({"isClean", "isHot"}, "This is a hot and clean {}."),
    ({"isClean", "isCool"}, "This is a cool and clean {}."),
    ({"isHot"}, "This is a hot {}."),
    ({"isClean"}, "This is a clean {}."),
    ({"isCool"}, "This is a cold {}."),
    ({"isSliced"}, "This is a sliced {}."),
)
"""The first entry whose traits an object has describes it."""


def opening_text(world: World, task: str) -> str:
    """The opening text of a game."""
    return f"-= Welcome to TextWorld, ALFRED! =-\n\n{_around(world)}\n\nYour task is to: {task}"


def describe_outcome(world: World, action: GameAction) -> str:
    """The text after an action."""
    verb, thing, receptacle = action
    if verb == "examine":
        return _receptacle(world, receptacle) if receptacle >= 0 else _thing(world, thing)
    if verb == "look":
        return _around(world)
    held = "" if world.holding is None else world.holding.name
    if verb == "inventory":
        return f"You are carrying: a {held}." if held else "You are not carrying anything."
    text = _OUTCOMES[verb].format(
        verb=verb,
        thing=world.game.objects[thing].name if thing >= 0 else "",
        receptacle=world.game.receptacles[receptacle].name if receptacle >= 0 else "",
        held=held,
    )
    return f"{text} {_receptacle(world, receptacle)}" if verb in ("go", "open") else text


def _around(world: World) -> str:
    here = [index for index, each in enumerate(world.game.receptacles) if each.loc == world.location]
    if not here:
        names = [f"a {each.name}" for each in world.game.receptacles]
        return f"You are in the middle of a room. Looking quickly around you, you see {_list(names)}."
    facing = _list(world.game.receptacles[index].name for index in here)
    return f"You are facing the {facing}. Next to it, you see {_list(_strays(world, here))}."


def _strays(world: World, here: list[int]) -> Iterable[str]:
    """Objects at this location that are not in all receptacles here.

    The original knows this only for objects that started in several receptacles: for others it stores one location and
    no fact about where they are not.
    """
    for number, thing in enumerate(world.game.objects):
        if len(thing.inside) > 1 and world.location in world.near(number):
            missing = (index for index in here if number not in world.contents[index])
            if any(world.takes(each, thing) or world.game.receptacles[each].name in thing.inside for each in missing):
                yield f"a {thing.name}"


def _receptacle(world: World, index: int) -> str:
    name = world.game.receptacles[index].name
    if not world.reachable(index):
        return f"The {name} is closed."
    inside = _list(f"a {world.game.objects[number].name}" for number in sorted(world.contents[index]))
    if index in world.opened:
        return f"The {name} is open. In it, you see {inside}."
    return f"On the {name}, you see {inside}."


def _thing(world: World, number: int) -> str:
    thing, traits = world.game.objects[number], world.traits(number)
    if "isReceptacleObject" in thing.flags:
        inside = _list(f"a {each.name}" for each in world.game.objects if each.outer == thing.name)
        return f"This is a normal {thing.name}. In it, you see {inside}."
    for needed, words in _CONDITIONS:
        if needed <= traits:
            return words.format(thing.name)
    if "toggleable" in thing.flags:
        return f"This {thing.name} is {'on' if 'isToggled' in traits else 'off'}."
    return f"There's nothing special about {thing.name}."


def _list(names: Iterable[str]) -> str:
    *others, last = (*names,) or ("nothing",)
    return f"{', '.join(others)}, and {last}" if others else last
