"""The records of one game: its initial state and its goal.

Facts have the names of ALFWorld's planning domain, so its games can be used unchanged.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Literal, get_args

import msgspec

from roll.envs.inputs import parse_row, read_json
from roll.errors import ConfigError
from roll.types import Task

Trait = Literal["isClean", "isHot", "isCool", "isSliced", "isToggled"]
"""Facts about an object that actions change."""
Flag = Literal[
    Trait, "pickupable", "cleanable", "heatable", "coolable", "sliceable", "toggleable", "isReceptacleObject", "isOn"
]
TRAITS: frozenset[str] = frozenset(get_args(Trait))
_ABILITIES: dict[str, str] = {"isClean": "cleanable", "isHot": "heatable", "isCool": "coolable"}
"""By goal fact, the ability that the object needs."""

Fits = Mapping[str, frozenset[str]]
"""By receptacle type, the object types that it holds."""


class Receptacle(msgspec.Struct, frozen=True, kw_only=True):
    """A place to go to that holds objects."""

    name: str
    type: str
    loc: int
    """The location in front of it; several receptacles may share one."""
    flags: frozenset[Literal["openable", "opened"]] = frozenset()


class Thing(msgspec.Struct, frozen=True, kw_only=True, rename={"inside": "in", "outer": "in_object"}):
    """An object. It may be in several receptacles at once; taking it from one leaves it in the others."""

    name: str
    type: str
    loc: int | None = None
    inside: tuple[str, ...] = ()
    outer: str | None = None
    """The object that contains it, such as a bowl; this never changes."""
    flags: frozenset[Flag] = frozenset()


class HouseholdGoal(msgspec.Struct, frozen=True, kw_only=True):
    """The goal: types of things and facts about them.

    `[object, receptacle]`: one such object is in or on one such receptacle, clean, hot or cool if a fact says so. Both
    types twice: two such objects in or on the same receptacle. With the fact `isToggled` it is `[light, object]`: the
    agent holds the object at a location with such a light that is switched on.
    """

    types: tuple[str, ...]
    preds: frozenset[
        Literal[
            "inReceptacle", "holds", "toggleable", "isToggled",
            "cleanable", "isClean", "heatable", "isHot", "coolable", "isCool",
        ]
    ]  # fmt: skip

    @property
    def needs_light(self) -> bool:
        """Whether the goal is to look at an object in the light."""
        return "isToggled" in self.preds

    @property
    def required_facts(self) -> frozenset[str]:
        """Flags and traits that each placed object must have."""
        traits = self.preds & _ABILITIES.keys()
        return frozenset(traits) | {_ABILITIES[trait] for trait in traits}


class Game(msgspec.Struct, frozen=True, kw_only=True):
    """The initial state of one game. Other fields of a row are ignored."""

    receptacles: tuple[Receptacle, ...]
    objects: tuple[Thing, ...]
    agent_loc: int
    goal: HouseholdGoal


def parse_game(task: Task) -> Game:
    """The game in a task's metadata; ConfigError names the task and the faulty field."""
    game = parse_row(task, Game, "alfworld")
    if fault := _inconsistency(game):
        raise ConfigError(f"alfworld: task {task.id!r}: {fault}; correct its row")
    return game


def _inconsistency(game: Game) -> str:
    """Why a well-formed game is inconsistent; empty if it is consistent."""
    receptacles = {receptacle.name for receptacle in game.receptacles}
    objects = {thing.name for thing in game.objects}
    if len(receptacles | objects) < len(game.receptacles) + len(game.objects):
        return "two things have the same name"
    for thing in game.objects:
        if not receptacles.issuperset(thing.inside):
            return f"object {thing.name!r} is in {list(thing.inside)}, not all of them receptacles"
        if thing.outer is not None and thing.outer not in objects:
            return f"object {thing.name!r} is in object {thing.outer!r}, which does not exist"
    types = game.goal.types
    if len(types) != 2 and (len(types) != 4 or types[:2] != types[2:] or game.goal.needs_light):
        return f"goal.types {list(types)} is neither two types nor the same two twice"
    if "inReceptacle" not in game.goal.preds:
        return f"goal.preds {sorted(game.goal.preds)} has no inReceptacle"
    return ""


@functools.lru_cache(maxsize=16)
def read_fits(path: str) -> Fits:
    """The object types that each receptacle type holds, from a JSON file of lists; read once per process."""
    return read_json(path, dict[str, frozenset[str]], "alfworld: can_contain")
