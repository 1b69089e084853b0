"""The state of one game, the effect of each action, and the possible commands. The text is in `words`.

Every command that has an effect now is listed with its action. Any other command does nothing, so there is no second
list of conditions.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from roll.envs.alfworld.game import TRAITS, Fits, Game, Thing

Verb = Literal[
    "go", "open", "close", "take", "move", "clean", "heat", "cool", "use", "slice",
    "examine", "look", "inventory", "help",
]  # fmt: skip
READ_ONLY: frozenset[Verb] = frozenset({"examine", "look", "inventory", "help"})
"""Verbs that change nothing."""
_TRAIT: dict[str, tuple[str, str]] = {
    "clean": ("isClean", ""),
    "heat": ("isHot", "isCool"),
    "cool": ("isCool", "isHot"),
}
"""The trait that an action adds and the one that it removes."""


class GameAction(NamedTuple):
    """A verb with indices of its object and receptacle in the game's lists; -1 for none."""

    verb: Verb
    thing: int = -1
    receptacle: int = -1


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


class World:
    """The current state. `perform` does not check that an action is possible; `admissible` lists those that are."""

    def __init__(self, game: Game, fits: Fits | None = None) -> None:
        self.game, self.fits = game, fits
        self.location = game.agent_loc
        self.held: int | None = None
        self.opened = {index for index, each in enumerate(game.receptacles) if "opened" in each.flags}
        number = {each.name: index for index, each in enumerate(game.receptacles)}
        self.contents: list[set[int]] = [set() for _ in game.receptacles]
        """By receptacle, the objects in or on it."""
        for index, thing in enumerate(game.objects):
            for name in thing.inside:
                self.contents[number[name]].add(index)
        self._near: dict[int, frozenset[int]] = {}
        self._traits: dict[int, frozenset[str]] = {}
        self._moved: set[int] = set()

    @property
    def holding(self) -> Thing | None:
        return None if self.held is None else self.game.objects[self.held]

    def near(self, thing: int) -> frozenset[int]:
        """Locations at which an object counts as present; usually one."""
        locations = self._near.get(thing)
        return _initial_locations(self.game.objects[thing]) if locations is None else locations

    def traits(self, thing: int) -> frozenset[str]:
        traits = self._traits.get(thing)
        return self.game.objects[thing].flags & TRAITS if traits is None else traits

    def reachable(self, receptacle: int) -> bool:
        """Whether its contents can be seen and taken from its location."""
        return receptacle in self.opened or "openable" not in self.game.receptacles[receptacle].flags

    def takes(self, receptacle: int, thing: Thing) -> bool:
        """Whether the receptacle holds objects of this type."""
        return self.fits is None or thing.type in self.fits.get(self.game.receptacles[receptacle].type, ())

    def perform(self, action: GameAction) -> None:
        verb, thing, receptacle = action
        if verb == "go":
            self.location = self.game.receptacles[receptacle].loc
        elif verb == "open":
            self.opened.add(receptacle)
        elif verb == "close":
            self.opened.discard(receptacle)
        elif verb in ("take", "move"):
            self._moved.add(thing)
            if verb == "take":
                self.contents[receptacle].discard(thing)
                self._near[thing], self.held = self.near(thing) - {self.location}, thing
            else:
                self.contents[receptacle].add(thing)
                self._near[thing], self.held = self.near(thing) | {self.location}, None
        elif verb not in READ_ONLY:
            gained, lost = _TRAIT.get(verb) or ("isToggled" if verb == "use" else "isSliced", "")
            self._traits[thing] = (self.traits(thing) | {gained}) - {lost}

    def goal_reached(self) -> bool:
        goal = self.game.goal
        if goal.needs_light:
            return self._lit_by(*goal.types)
        kind, target = goal.types[:2]
        return any(
            sum(self._satisfies(thing, kind) for thing in self.contents[index]) >= len(goal.types) // 2
            for index, receptacle in enumerate(self.game.receptacles)
            if receptacle.type == target
        )

    def _satisfies(self, thing: int, kind: str) -> bool:
        item = self.game.objects[thing]
        return item.type == kind and self.game.goal.required_facts <= (item.flags - TRAITS) | self.traits(thing)

    def _lit_by(self, light: str, kind: str) -> bool:
        held = self.holding
        if held is None or held.type != kind:
            return False
        here = [index for index, each in enumerate(self.game.receptacles) if each.loc == self.location]
        return any(
            self.game.objects[thing].type == light and "isToggled" in self.traits(thing)
            for receptacle in here
            for thing in self.contents[receptacle]
        )

    def key(self) -> str:
        """Identifies the state: equal for all attempts at one game that reach the same state."""
        names = [each.name for each in self.game.receptacles]
        parts = [str(self.location), "" if (held := self.holding) is None else held.name]
        parts += sorted(names[index] for index in self.opened)
        for thing in sorted(self._moved | self._traits.keys()):
            item = self.game.objects[thing]
            inside = [name for name, contents in zip(names, self.contents, strict=True) if thing in contents]
            near, traits = self.near(thing), self.traits(thing)
            initial = sorted(item.inside), _initial_locations(item), item.flags & TRAITS
            if (sorted(inside), near, traits) != initial:
                parts.append(f"{item.name}: {', '.join((*inside, *map(str, sorted(near)), *sorted(traits)))}")
        return "; ".join(parts)


def _initial_locations(thing: Thing) -> frozenset[int]:
    return frozenset() if thing.loc is None else frozenset({thing.loc})


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
    if "openable" in receptacle.flags:
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
