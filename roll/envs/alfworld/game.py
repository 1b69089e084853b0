"""The records of one game: what stands where when it begins, and what is asked for.

Facts are called as ALFWorld's planning domain calls them, so its games can be written down as they are.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from roll.errors import ConfigError
from roll.types import Task

Trait = Literal["isClean", "isHot", "isCool", "isSliced", "isToggled"]
"""What actions change about an object."""
Flag = Literal[
    Trait, "pickupable", "cleanable", "heatable", "coolable", "sliceable", "toggleable", "isReceptacleObject", "isOn"
]
TRAITS: frozenset[str] = frozenset({"isClean", "isHot", "isCool", "isSliced", "isToggled"})
_NEEDED: dict[str, str] = {"isClean": "cleanable", "isHot": "heatable", "isCool": "coolable"}
"""What an object must be able to become, for a goal to ask for the trait."""

Fits = Mapping[str, frozenset[str]]
"""By type of receptacle, the types of objects that it takes."""


class Receptacle(msgspec.Struct, frozen=True, kw_only=True):
    """Something to go to, in or on which objects are."""

    name: str
    type: str
    loc: int
    """The place where the agent stands before it; several receptacles may share one."""
    flags: frozenset[Literal["openable", "opened"]] = frozenset()

    @property
    def openable(self) -> bool:
        return "openable" in self.flags


class Thing(msgspec.Struct, frozen=True, kw_only=True, rename={"inside": "in", "outer": "in_object"}):
    """An object. It may be in several receptacles at once; taking it from one leaves it in the others."""

    name: str
    type: str
    loc: int | None = None
    inside: tuple[str, ...] = ()
    outer: str | None = None
    """The object that it lies in, such as a bowl; nothing that happens changes it."""
    flags: frozenset[Flag] = frozenset()


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for: types of things and facts about them.

    `[object, receptacle]`: one such object is in or on one such receptacle, clean, hot or cool if a fact says so. Both
    types twice: two of them in or on the same one. With the fact `isToggled` it is `[light, object]`: the object is
    held where such a light stands that has been used.
    """

    types: tuple[str, ...]
    preds: frozenset[
        Literal[
            "inReceptacle", "holds", "toggleable", "isToggled",
            "cleanable", "isClean", "heatable", "isHot", "coolable", "isCool",
        ]
    ]  # fmt: skip

    @property
    def lit(self) -> bool:
        """Whether an object is to be looked at in the light."""
        return "isToggled" in self.preds

    @property
    def num_wanted(self) -> int:
        return len(self.types) // 2

    @property
    def wanted(self) -> frozenset[str]:
        """Flags and traits that each placed object must have."""
        traits = self.preds & _NEEDED.keys()
        return frozenset(traits) | {_NEEDED[trait] for trait in traits}


class Game(msgspec.Struct, frozen=True, kw_only=True):
    """One world at its beginning. Other fields of a row are left alone."""

    receptacles: tuple[Receptacle, ...]
    objects: tuple[Thing, ...]
    agent_loc: int
    goal: Goal


def game_of(task: Task) -> Game:
    """The game in a task's metadata, or a ConfigError that names the task and the field at fault."""
    try:
        game = msgspec.convert(task.metadata, Game)
    except msgspec.ValidationError as error:
        raise ConfigError(f"alfworld: task {task.id!r} is no game ({error}); correct its row") from None
    fault = _fault(game)
    if fault:
        raise ConfigError(f"alfworld: task {task.id!r} is no game ({fault}); correct its row")
    return game


def _fault(game: Game) -> str:
    """What keeps a game of the right form from making sense; empty when nothing does."""
    receptacles = {receptacle.name for receptacle in game.receptacles}
    objects = {thing.name for thing in game.objects}
    if len(receptacles | objects) < len(game.receptacles) + len(game.objects):
        return "two things have the same name"
    for thing in game.objects:
        if not receptacles.issuperset(thing.inside):
            return f"object {thing.name!r} is in {list(thing.inside)}, not all of them receptacles"
        if thing.outer is not None and thing.outer not in objects:
            return f"object {thing.name!r} is in object {thing.outer!r}, and there is none"
    types = game.goal.types
    if len(types) != 2 and (len(types) != 4 or types[:2] != types[2:] or game.goal.lit):
        return f"goal.types {list(types)} is neither two types nor the same two twice"
    if "inReceptacle" not in game.goal.preds:
        return f"goal.preds {sorted(game.goal.preds)} has no inReceptacle"
    return ""


@functools.lru_cache(maxsize=16)
def fits_of(path: str) -> Fits:
    """What each type of receptacle takes, from a JSON file of lists by type; read once in a process."""
    file = Path(path)
    try:
        found: Any = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file; check the path (it is relative to the current directory)") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read ({error}); it must be UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{file}:{error.lineno}: broken JSON ({error.msg}); correct it") from None
    try:
        return cast(Fits, msgspec.convert(found, dict[str, frozenset[str]]))
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{file}: is not lists of types of objects by type of receptacle ({error}); correct it"
        ) from None
