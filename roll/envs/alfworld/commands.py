"""The possible commands: every command that has an effect now, with its action.

Any other command does nothing, so there is no second list of conditions.
"""

from __future__ import annotations

import re

from roll.envs.alfworld.world import GameAction, Verb, World

_ALWAYS = {"help": GameAction("help"), "inventory": GameAction("inventory"), "look": GameAction("look")}
_APPLIANCES: dict[str, tuple[Verb, str]] = {
    "sink": ("clean", "cleanable"),
    "sinkbasin": ("clean", "cleanable"),
    "microwave": ("heat", "heatable"),
    "fridge": ("cool", "coolable"),
}
"""By receptacle type, its action and the flag of objects that allow it."""
_KNIVES = frozenset({"knife", "butterknife"})
_PUT = re.compile(r"put (.+?) (?:in/on|in|on|into) (.+)")


def admissible(world: World) -> dict[str, GameAction]:
    """The possible commands in alphabetical order, with their actions."""
    actions = dict(_ALWAYS)
    for index, receptacle in enumerate(world.game.receptacles):
        if receptacle.loc == world.location:
            _add_here(world, index, actions)
        else:
            actions[f"go to {receptacle.name}"] = GameAction("go", -1, index)
    if world.held is not None:
        _add_held(world, world.held, actions)
    return dict(sorted(actions.items()))


def normalise(text: str) -> str:
    """A command in canonical form: lower case, single spaces; `put x in/on y` becomes `move x to y`."""
    command = " ".join(text.lower().split())
    put = _PUT.fullmatch(command)
    return f"move {put[1]} to {put[2]}" if put else command


def _add_here(world: World, index: int, actions: dict[str, GameAction]) -> None:
    """Add actions on a receptacle at the agent's location and on its contents."""
    receptacle, objects = world.game.receptacles[index], world.game.objects
    name = receptacle.name
    actions[f"examine {name}"] = GameAction("examine", -1, index)
    if receptacle.openable:
        verb = "close" if index in world.opened else "open"
        actions[f"{verb} {name}"] = GameAction(verb, -1, index)
    reachable, free = world.reachable(index), world.held is None
    for number in world.contents[index]:
        thing = objects[number]
        if "toggleable" in thing.flags:
            actions[f"use {thing.name}"] = GameAction("use", number, index)
        if reachable:
            actions[f"examine {thing.name}"] = GameAction("examine", number)
            if free and "pickupable" in thing.flags:
                actions[f"take {thing.name} from {name}"] = GameAction("take", number, index)


def _add_held(world: World, held: int, actions: dict[str, GameAction]) -> None:
    """Add actions on the object in the agent's hands."""
    thing = world.game.objects[held]
    actions[f"examine {thing.name}"] = GameAction("examine", held)
    for index, receptacle in enumerate(world.game.receptacles):
        if receptacle.loc != world.location:
            continue
        if world.reachable(index) and world.takes(index, thing):
            actions[f"move {thing.name} to {receptacle.name}"] = GameAction("move", held, index)
        if receptacle.type in _APPLIANCES:
            verb, needed = _APPLIANCES[receptacle.type]
            if needed in thing.flags:
                actions[f"{verb} {thing.name} with {receptacle.name}"] = GameAction(verb, held, index)
    if thing.type in _KNIVES:
        for number, other in enumerate(world.game.objects):
            if "sliceable" in other.flags and world.location in world.near(number):
                actions[f"slice {other.name} with {thing.name}"] = GameAction("slice", number)
