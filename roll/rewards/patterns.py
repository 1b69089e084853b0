"""Regular expressions in time linear in the text, for any pattern.

`re` backtracks, so some patterns take it hours on a short text. Here a pattern becomes a position automaton: one
position per character it can match; a step maps the set of positions just matched to the set that may match next. Steps
are cached. Only whether there is a match is answered, which needs no backtracking. Constructs that are not regular
(backreferences, lookarounds, atomic and possessive forms) are refused.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from enum import IntEnum

from roll.errors import ConfigError

_MAX_SIZE = 600
"""Size of a pattern with its counted repeats expanded; bounds the work per step."""

_MAX_DEPTH = 40
_MAX_STATES = 2_000
_MAX_SYMBOLS = 20_000

_COUNTED = re.compile(r"\{(?!\})(\d*)(?:(,)(\d*))?\}")
_FLAGS = re.compile(r"\(\?([ims]+)\)")
_GROUP = re.compile(r"\((?:\?(?:P<\w+>|([ims]*)(?:-([ims]+))?:)|(?!\?))")
_SET = r"\[\^?\]?(?:[^\]\\]|\\.)*\]"
_ESCAPE = r"\\(?:x..|u.{4}|U.{8}|N\{[^}]*\}|[^0-9xuUN])"
_SINGLE = re.compile(rf"{_SET}|{_ESCAPE}|[^\\]", re.DOTALL)
_ASSERTIONS = {
    "^": ("start", "line start"),
    "$": ("near end", "line end"),
    r"\A": ("start", "start"),
    r"\Z": ("end", "end"),
    r"\b": ("boundary", "boundary"),
    r"\B": ("inside", "inside"),
}
"""By source text: the kind of assertion, and the kind with the flag `m`."""
_BITS = {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL}


class _Side(IntEnum):
    """The neighbour on one side of a position between characters."""

    EDGE = 0
    NEWLINE = 1
    WORD = 2
    OTHER = 3
    LAST_NEWLINE = 4


@dataclass(frozen=True, slots=True)
class _Atom:
    """Matches one character, with the meaning `re` gives it."""

    source: str
    flags: int


@dataclass(frozen=True, slots=True)
class _Assertion:
    """Matches an empty string at some positions, such as the start of a line."""

    kind: str


@dataclass(frozen=True, slots=True)
class _Concatenation:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Alternation:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    part: _Node
    low: int
    high: int | None


_Node = _Atom | _Assertion | _Concatenation | _Alternation | _Repeat


def matches(pattern: str, text: str, *, whole: bool = False) -> bool:
    """Whether `pattern` matches anywhere in `text` or, if `whole`, all of it; the same answer as `re`."""
    return _compile(pattern, whole).accepts(text)


@functools.lru_cache(maxsize=64)
def _compile(pattern: str, whole: bool) -> _Automaton:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigError(f"pattern {pattern!r}: Python cannot read it ({error}); fix it") from None
    parser = _Parser(pattern)
    tree = parser.parse()
    size = _size(tree)
    if size > _MAX_SIZE:
        raise ConfigError(
            f"pattern {pattern!r}: too large with its repeats expanded (got {size}, at most {_MAX_SIZE}); "
            "count less, or write * for a large count"
        )
    return _Automaton(tree, parser.kinds, whole)


class _Parser:
    """Parses a pattern that `re` accepts."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self.at, self.depth = pattern, 0, 0
        self.kinds: set[str] = set()
        """Kinds of assertion parsed so far."""

    def parse(self) -> _Node:
        flags = 0
        opening = _FLAGS.match(self.pattern)
        if opening is not None:
            self.at, flags = opening.end(), _flags(opening[1])
        return self._alternation(flags)

    def _alternation(self, flags: int) -> _Node:
        branches = [self._concatenation(flags)]
        while self._next() == "|":
            self.at += 1
            branches.append(self._concatenation(flags))
        return branches[0] if len(branches) == 1 else _Alternation(tuple(branches))

    def _concatenation(self, flags: int) -> _Node:
        parts: list[_Node] = []
        while self._next() not in ("", "|", ")"):
            parts.append(self._repeat(self._single(flags)))
        return parts[0] if len(parts) == 1 else _Concatenation(tuple(parts))

    def _repeat(self, part: _Node) -> _Node:
        simple = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(self._next())
        counted = _COUNTED.match(self.pattern, self.at)
        if simple is not None:
            (low, high), self.at = simple, self.at + 1
        elif counted is not None:
            low = int(counted[1] or 0)
            high = low if counted[2] is None else int(counted[3]) if counted[3] else None
            self.at = counted.end()
        else:
            return part
        if self._next() == "+":
            raise self._refusal("a possessive repeat")
        self.at += self._next() == "?"  # the lazy form matches wherever the greedy one does
        return _Repeat(part, low, high)

    def _single(self, flags: int) -> _Node:
        if self._next() == "(":
            return self._group(flags)
        match = _SINGLE.match(self.pattern, self.at)
        if match is None:
            raise self._refusal("a backreference or an octal escape")
        self.at, source = match.end(), match[0]
        if source in _ASSERTIONS:
            kind = _ASSERTIONS[source][bool(flags & re.MULTILINE)]
            self.kinds.add(kind)
            return _Assertion(kind)
        return _Atom(source if len(source) > 1 or source == "." else re.escape(source), flags)

    def _group(self, flags: int) -> _Node:
        opening = _GROUP.match(self.pattern, self.at)
        if opening is None:
            raise self._refusal(f"the group {self.pattern[self.at : self.at + 4]!r}")
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise self._refusal(f"groups more than {_MAX_DEPTH} deep")
        self.at = opening.end()
        inside = self._alternation((flags | _flags(opening[1] or "")) & ~_flags(opening[2] or ""))
        self.at += 1
        self.depth -= 1
        return inside

    def _next(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def _refusal(self, what: str) -> ConfigError:
        return ConfigError(
            f"pattern {self.pattern!r}: {what} cannot be matched in bounded time (at character {self.at}); "
            "write it without, using groups, sets, | and plain repeats"
        )


def _flags(letters: str) -> int:
    return sum(_BITS[letter] for letter in set(letters))


def _size(node: _Node) -> int:
    """Number of nodes with repeats expanded, computed without expanding them."""
    if isinstance(node, _Repeat):
        return 1 + _size(node.part) * (max(node.low, 1) if node.high is None else node.high)
    return 1 + sum(map(_size, node.parts)) if isinstance(node, _Concatenation | _Alternation) else 1


def _holds(kind: str, before: _Side, after: _Side) -> bool:
    words = (before == _Side.WORD) + (after == _Side.WORD)
    return {
        "start": before == _Side.EDGE,
        "line start": before in (_Side.EDGE, _Side.NEWLINE),
        "end": after == _Side.EDGE,
        "near end": after in (_Side.EDGE, _Side.LAST_NEWLINE),
        "line end": after in (_Side.EDGE, _Side.NEWLINE, _Side.LAST_NEWLINE),
        "boundary": words == 1,
        "inside": words != 1 and not before == after == _Side.EDGE,
    }[kind]


@dataclass(frozen=True, slots=True)
class _PositionSets:
    """Whether a part of a pattern matches the empty string, and bit masks of its possible first and last positions."""

    empty: bool
    first: int
    last: int


class _Transitions:
    """Which positions may follow which, given the kinds of assertions that hold."""

    def __init__(self, tree: _Node, holding: frozenset[str]) -> None:
        self.holding = holding
        self.atoms: list[_Atom] = []
        self.follow: list[int] = []
        self.all = self._visit(tree)
        neighbours = [mask & 2 << index for index, mask in enumerate(self.follow)]
        self.onward = sum(mask >> 1 for mask in neighbours)  # positions that may be followed by the next one
        others = [mask ^ neighbour for mask, neighbour in zip(self.follow, neighbours, strict=True)] + [0] * 7
        rows = [others[start : start + 8] for start in range(0, len(self.follow), 8)]
        self.num_bytes = len(rows)
        self.blocks = [(index, _unions(row)) for index, row in enumerate(rows) if any(row)]

    def after(self, live: int) -> int:
        """Positions that may match after those of `live` have matched."""
        following = (live & self.onward) << 1
        octets = live.to_bytes(self.num_bytes, "little")
        for index, unions in self.blocks:
            following |= unions[octets[index]]
        return following

    def _visit(self, node: _Node) -> _PositionSets:
        if isinstance(node, _Atom):
            self.atoms.append(node)
            self.follow.append(0)
            bit = 1 << (len(self.atoms) - 1)
            return _PositionSets(False, bit, bit)
        if isinstance(node, _Assertion):
            return _PositionSets(node.kind in self.holding, 0, 0)
        if isinstance(node, _Concatenation):
            return self._concatenate([self._visit(part) for part in node.parts])
        if isinstance(node, _Alternation):
            return functools.reduce(_unite, map(self._visit, node.parts))
        return self._repeat(node)

    def _repeat(self, node: _Repeat) -> _PositionSets:
        copies = [self._visit(node.part) for _ in range(max(node.low, 1) if node.high is None else node.high)]
        if node.high is None:
            self._link(copies[-1].last, copies[-1].first)
        optional = [_PositionSets(True, copy.first, copy.last) for copy in copies[node.low :]]
        return self._concatenate(copies[: node.low] + optional)

    def _concatenate(self, spans: list[_PositionSets]) -> _PositionSets:
        whole = _PositionSets(True, 0, 0)
        for span in spans:
            self._link(whole.last, span.first)
            whole = _PositionSets(
                whole.empty and span.empty,
                whole.first | (span.first if whole.empty else 0),
                span.last | (whole.last if span.empty else 0),
            )
        return whole

    def _link(self, last: int, first: int) -> None:
        while last:
            bit = last & -last
            self.follow[bit.bit_length() - 1] |= first
            last ^= bit


def _unite(one: _PositionSets, other: _PositionSets) -> _PositionSets:
    return _PositionSets(one.empty or other.empty, one.first | other.first, one.last | other.last)


def _unions(row: list[int]) -> list[int]:
    """The union of each of the 256 subsets of eight masks."""
    unions = [0]
    for mask in row:
        unions += [mask | other for other in unions]
    return unions


class _State(dict[tuple[int, _Side], "_State"]):
    """Positions that matched the last character; maps the next character's symbol to the next state."""

    def __init__(self, automaton: _Automaton, live: int, before: _Side, matched: bool) -> None:
        super().__init__()
        self.automaton, self.live, self.before, self.matched = automaton, live, before, matched

    def __missing__(self, symbol: tuple[int, _Side]) -> _State:
        state = self[symbol] = self.automaton.step(self, symbol)
        return state


class _Symbols(dict[str, tuple[int, _Side]]):
    """By character: a bit mask of the positions that match it, and its kind as a neighbour."""

    def __init__(self, atoms: list[_Atom]) -> None:
        super().__init__()
        masks: dict[_Atom, int] = {}
        for index, atom in enumerate(atoms):
            masks[atom] = masks.get(atom, 0) | 1 << index
        self.tests = [(re.compile(atom.source, atom.flags), mask) for atom, mask in masks.items()]

    def __missing__(self, char: str) -> tuple[int, _Side]:
        if len(self) >= _MAX_SYMBOLS:
            self.clear()
        mask = sum(mask for test, mask in self.tests if test.fullmatch(char))
        word = char == "_" or char.isalnum()
        symbol = self[char] = (mask, _Side.NEWLINE if char == "\n" else _Side.WORD if word else _Side.OTHER)
        return symbol


class _Automaton:
    """Runs one pattern over texts; caches its steps, up to a bound."""

    def __init__(self, tree: _Node, kinds: set[str], whole: bool) -> None:
        self.tree, self.kinds, self.whole = tree, kinds, whole
        self.tables: dict[frozenset[str], _Transitions] = {}
        self.between: dict[tuple[_Side, _Side], _Transitions] = {}
        self.states: dict[tuple[int, _Side, bool], _State] = {}
        self.symbols = _Symbols(self._transitions(_Side.EDGE, _Side.EDGE).atoms)

    def accepts(self, text: str) -> bool:
        state, symbols = self._state(0, _Side.EDGE, False), self.symbols
        body = text.removesuffix("\n")
        for char in body:
            state = state[symbols[char]]
        if len(body) < len(text):
            state = state[symbols["\n"][0], _Side.LAST_NEWLINE]
        return state.matched or self._ends(state, _Side.EDGE)

    def step(self, state: _State, symbol: tuple[int, _Side]) -> _State:
        mask, after = symbol
        if state.matched or (not self.whole and self._ends(state, after)):
            return self._state(0, _Side.OTHER, True)
        transitions = self._transitions(state.before, after)
        starting = transitions.all.first if not self.whole or state.before == _Side.EDGE else 0
        before = _Side.NEWLINE if after == _Side.LAST_NEWLINE else after
        return self._state((transitions.after(state.live) | starting) & mask, before, False)

    def _ends(self, state: _State, after: _Side) -> bool:
        """Whether a match may end before the next character."""
        span = self._transitions(state.before, after).all
        starting = not self.whole or state.before == _Side.EDGE
        return bool(state.live & span.last) or (span.empty and starting)

    def _transitions(self, before: _Side, after: _Side) -> _Transitions:
        transitions = self.between.get((before, after))
        if transitions is None:
            holding = frozenset(kind for kind in self.kinds if _holds(kind, before, after))
            if holding not in self.tables:
                self.tables[holding] = _Transitions(self.tree, holding)
            transitions = self.between[before, after] = self.tables[holding]
        return transitions

    def _state(self, live: int, before: _Side, matched: bool) -> _State:
        key = (live, before, matched)
        state = self.states.get(key)
        if state is not None:
            return state
        if len(self.states) >= _MAX_STATES:
            for old in list(self.states.values()):
                old.clear()  # they refer to each other
            self.states.clear()
        return self.states.setdefault(key, _State(self, live, before, matched))
