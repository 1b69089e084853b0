"""What can be done now: every command that would do something, and the action it stands for.

A command that is not among them does nothing, so there is no second list of conditions.
"""

from __future__ import annotations

import re

from roll.envs.alfworld.world import Action, Verb, World

_ALWAYS = {"help": Action("help"), "inventory": Action("inventory"), "look": Action("look")}
_APPLIANCES: dict[str, tuple[Verb, str]] = {
    "sink": ("clean", "cleanable"),
    "sinkbasin": ("clean", "cleanable"),
    "microwave": ("heat", "heatable"),
    "fridge": ("cool", "coolable"),
}
"""By type of receptacle, what is done with it, and to which objects."""
_KNIVES = frozenset({"knife", "butterknife"})
_PUT = re.compile(r"put (.+?) (?:in/on|in|on|into) (.+)")


def admissible(world: World) -> dict[str, Action]:
    """The commands that would do something now, in alphabetical order."""
    found = dict(_ALWAYS)
    for index, receptacle in enumerate(world.game.receptacles):
        if receptacle.loc == world.location:
            _add_here(world, index, found)
        else:
            found[f"go to {receptacle.name}"] = Action("go", -1, index)
    if world.held is not None:
        _add_held(world, world.held, found)
    return dict(sorted(found.items()))


def normalised(text: str) -> str:
    """A command as the list has it: lower case, single spaces; `put x in/on y` is `move x to y`."""
    command = " ".join(text.lower().split())
    put = _PUT.fullmatch(command)
    return f"move {put[1]} to {put[2]}" if put else command


def _add_here(world: World, index: int, found: dict[str, Action]) -> None:
    """What can be done with a receptacle that the agent stands before, and with what is in it."""
    receptacle, objects = world.game.receptacles[index], world.game.objects
    name = receptacle.name
    found[f"examine {name}"] = Action("examine", -1, index)
    if receptacle.openable:
        verb = "close" if index in world.opened else "open"
        found[f"{verb} {name}"] = Action(verb, -1, index)
    reachable, free = world.reachable(index), world.held is None
    for number in world.contents[index]:
        thing = objects[number]
        if "toggleable" in thing.flags:
            found[f"use {thing.name}"] = Action("use", number, index)
        if reachable:
            found[f"examine {thing.name}"] = Action("examine", number)
            if free and "pickupable" in thing.flags:
                found[f"take {thing.name} from {name}"] = Action("take", number, index)


def _add_held(world: World, held: int, found: dict[str, Action]) -> None:
    """What can be done with the object in the agent's hands."""
    thing = world.game.objects[held]
    found[f"examine {thing.name}"] = Action("examine", held)
    for index, receptacle in enumerate(world.game.receptacles):
        if receptacle.loc != world.location:
            continue
        if world.reachable(index) and world.takes(index, thing):
            found[f"move {thing.name} to {receptacle.name}"] = Action("move", held, index)
        if receptacle.type in _APPLIANCES:
            verb, needed = _APPLIANCES[receptacle.type]
            if needed in thing.flags:
                found[f"{verb} {thing.name} with {receptacle.name}"] = Action(verb, held, index)
    if thing.type in _KNIVES:
        for number, other in enumerate(world.game.objects):
            if "sliceable" in other.flags and world.location in world.near(number):
                found[f"slice {other.name} with {thing.name}"] = Action("slice", number)
