"""The state of one game and the effect of each action. The text is in `words`."""

from __future__ import annotations

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


class World:
    """The current state. `perform` does not check that an action is possible; `commands` lists those that are."""

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
        return receptacle in self.opened or not self.game.receptacles[receptacle].openable

    def takes(self, receptacle: int, thing: Thing) -> bool:
        """Whether the receptacle holds objects of this type."""
        return self.fits is None or thing.type in self.fits.get(self.game.receptacles[receptacle].type, ())

    def perform(self, action: GameAction) -> None:
        """Apply an action."""
        verb, thing, receptacle = action
        if verb == "go":
            self.location = self.game.receptacles[receptacle].loc
        elif verb == "open":
            self.opened.add(receptacle)
        elif verb == "close":
            self.opened.discard(receptacle)
        elif verb in ("take", "move"):
            self._carry(thing, receptacle, take=verb == "take")
        elif verb not in READ_ONLY:
            gained, lost = _TRAIT.get(verb) or ("isToggled" if verb == "use" else "isSliced", "")
            self._traits[thing] = (self.traits(thing) | {gained}) - {lost}

    def _carry(self, thing: int, receptacle: int, *, take: bool) -> None:
        if take:
            self.contents[receptacle].discard(thing)
            self._near[thing] = self.near(thing) - {self.location}
            self.held = thing
        else:
            self.contents[receptacle].add(thing)
            self._near[thing] = self.near(thing) | {self.location}
            self.held = None
        self._moved.add(thing)

    def goal_reached(self) -> bool:
        """Whether the goal is reached."""
        goal, game = self.game.goal, self.game
        if goal.needs_light:
            return self._lit_by(*goal.types)
        kind, target = goal.types[:2]
        for index, receptacle in enumerate(game.receptacles):
            if receptacle.type == target:
                right = [thing for thing in self.contents[index] if self._satisfies(thing, kind)]
                if len(right) >= goal.num_objects:
                    return True
        return False

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
            if (
                sorted(inside) != sorted(item.inside)
                or near != _initial_locations(item)
                or traits != item.flags & TRAITS
            ):
                parts.append(f"{item.name}: {', '.join((*inside, *map(str, sorted(near)), *sorted(traits)))}")
        return "; ".join(parts)


def _initial_locations(thing: Thing) -> frozenset[int]:
    return frozenset() if thing.loc is None else frozenset({thing.loc})
