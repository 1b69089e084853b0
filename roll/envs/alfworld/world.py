"""The state of one game, and what each action changes about it. No words: those are in `words`."""

from __future__ import annotations

from typing import Literal, NamedTuple

from roll.envs.alfworld.game import TRAITS, Fits, Game, Thing

Verb = Literal[
    "go", "open", "close", "take", "move", "clean", "heat", "cool", "use", "slice",
    "examine", "look", "inventory", "help",
]  # fmt: skip
SILENT: frozenset[Verb] = frozenset({"examine", "look", "inventory", "help"})
"""What changes nothing."""
_TRAIT: dict[str, tuple[str, str]] = {
    "clean": ("isClean", ""),
    "heat": ("isHot", "isCool"),
    "cool": ("isCool", "isHot"),
}
"""The trait that an action gives, and the one that it takes away."""


class Action(NamedTuple):
    """A verb with what it is done to, as places in the game's lists; -1 where there is none."""

    verb: Verb
    thing: int = -1
    receptacle: int = -1


class World:
    """Where everything is now. `perform` trusts its caller that the action is possible: `commands` says which are."""

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
        """The locations at which an object counts as being; one is the rule."""
        found = self._near.get(thing)
        return _first_near(self.game.objects[thing]) if found is None else found

    def traits(self, thing: int) -> frozenset[str]:
        found = self._traits.get(thing)
        return self.game.objects[thing].flags & TRAITS if found is None else found

    def reachable(self, receptacle: int) -> bool:
        """Whether what is in it can be seen and touched by whoever stands there."""
        return receptacle in self.opened or not self.game.receptacles[receptacle].openable

    def takes(self, receptacle: int, thing: Thing) -> bool:
        """Whether the object's type belongs there."""
        return self.fits is None or thing.type in self.fits.get(self.game.receptacles[receptacle].type, ())

    def perform(self, action: Action) -> None:
        """Change what the action changes."""
        verb, thing, receptacle = action
        if verb == "go":
            self.location = self.game.receptacles[receptacle].loc
        elif verb == "open":
            self.opened.add(receptacle)
        elif verb == "close":
            self.opened.discard(receptacle)
        elif verb in ("take", "move"):
            self._carry(thing, receptacle, taken=verb == "take")
        elif verb not in SILENT:
            given, lost = _TRAIT.get(verb) or ("isToggled" if verb == "use" else "isSliced", "")
            self._traits[thing] = (self.traits(thing) | {given}) - {lost}

    def _carry(self, thing: int, receptacle: int, *, taken: bool) -> None:
        if taken:
            self.contents[receptacle].discard(thing)
            self._near[thing] = self.near(thing) - {self.location}
            self.held = thing
        else:
            self.contents[receptacle].add(thing)
            self._near[thing] = self.near(thing) | {self.location}
            self.held = None
        self._moved.add(thing)

    def won(self) -> bool:
        """Whether the goal is reached."""
        goal, game = self.game.goal, self.game
        if goal.lit:
            return self._lit(*goal.types)
        kind, place = goal.types[:2]
        for index, receptacle in enumerate(game.receptacles):
            if receptacle.type == place:
                right = [thing for thing in self.contents[index] if self._wanted(thing, kind)]
                if len(right) >= goal.num_wanted:
                    return True
        return False

    def _wanted(self, thing: int, kind: str) -> bool:
        found = self.game.objects[thing]
        return found.type == kind and self.game.goal.wanted <= (found.flags - TRAITS) | self.traits(thing)

    def _lit(self, light: str, kind: str) -> bool:
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
        """Names the state: equal for all attempts at one game that have come to the same one."""
        names = [each.name for each in self.game.receptacles]
        parts = [str(self.location), "" if (held := self.holding) is None else held.name]
        parts += sorted(names[index] for index in self.opened)
        for thing in sorted(self._moved | self._traits.keys()):
            found = self.game.objects[thing]
            inside = [name for name, contents in zip(names, self.contents, strict=True) if thing in contents]
            near, traits = self.near(thing), self.traits(thing)
            if sorted(inside) != sorted(found.inside) or near != _first_near(found) or traits != found.flags & TRAITS:
                parts.append(f"{found.name}: {', '.join((*inside, *map(str, sorted(near)), *sorted(traits)))}")
        return "; ".join(parts)


def _first_near(thing: Thing) -> frozenset[int]:
    return frozenset() if thing.loc is None else frozenset({thing.loc})
