"""Regular expressions that no text makes slow: the work is linear in the text, whatever the pattern.

`re` goes back and tries again, so some patterns take it hours on a short text. Here a pattern becomes an automaton (one
position for each character it can match; a step goes from the set of positions just matched to the set that may match
next), and the steps seen are kept. Only whether there is a match is answered, which needs no going back. What is not
regular (backreferences, looking ahead or behind, atomic and possessive forms) is refused.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from enum import IntEnum

from roll.errors import ConfigError

_LARGEST = 600
"""Size of a pattern with its counted repeats written out; bounds the work of a step."""

_DEEPEST = 40
_MOST_STATES = 2_000
_MOST_SYMBOLS = 20_000

_COUNTED = re.compile(r"\{(?!\})(\d*)(?:(,)(\d*))?\}")
_FLAGS = re.compile(r"\(\?([ims]+)\)")
_GROUP = re.compile(r"\((?:\?(?:P<\w+>|([ims]*)(?:-([ims]+))?:)|(?!\?))")
_ESCAPE = re.compile(r"\\(?:x..|u.{4}|U.{8}|N\{[^}]*\}|[^0-9xuUN])", re.DOTALL)
_SET = re.compile(r"\[\^?\]?(?:[^\]\\]|\\.)*\]", re.DOTALL)
_BITS = {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL}


class _Side(IntEnum):
    """What stands on one side of a place between characters."""

    EDGE = 0
    NEWLINE = 1
    WORD = 2
    OTHER = 3
    LAST_NEWLINE = 4


@dataclass(frozen=True, slots=True)
class _Atom:
    """Matches one character, as `re` has it."""

    source: str
    flags: int


@dataclass(frozen=True, slots=True)
class _Place:
    """Matches no character, but only some places between them."""

    kind: str


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    branches: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    part: _Node
    low: int
    high: int | None


_Node = _Atom | _Place | _Sequence | _Choice | _Repeat


def matches(pattern: str, text: str, *, whole: bool = False) -> bool:
    """Whether `pattern` matches anywhere in `text`, or, if `whole`, the text from end to end; as `re` would say."""
    return _machine(pattern, whole).accepts(text)


@functools.lru_cache(maxsize=64)
def _machine(pattern: str, whole: bool) -> _Machine:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigError(f"pattern {pattern!r}: Python cannot read it ({error}); mend it") from None
    tree = _Parser(pattern).tree()
    size = _size(tree)
    if size > _LARGEST:
        raise ConfigError(
            f"pattern {pattern!r}: too large with its repeats written out (got {size}, at most {_LARGEST}); "
            "count less, or write * for a large count"
        )
    return _Machine(tree, whole)


class _Parser:
    """Reads a pattern that `re` has found to be well formed."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self.at, self.depth = pattern, 0, 0

    def tree(self) -> _Node:
        flags = 0
        opening = _FLAGS.match(self.pattern)
        if opening is not None:
            self.at, flags = opening.end(), _flags(opening[1])
        return self._choice(flags)

    def _choice(self, flags: int) -> _Node:
        branches = [self._sequence(flags)]
        while self._next() == "|":
            self.at += 1
            branches.append(self._sequence(flags))
        return branches[0] if len(branches) == 1 else _Choice(tuple(branches))

    def _sequence(self, flags: int) -> _Node:
        parts: list[_Node] = []
        while self._next() not in ("", "|", ")"):
            parts.append(self._repeated(self._single(flags)))
        return parts[0] if len(parts) == 1 else _Sequence(tuple(parts))

    def _repeated(self, part: _Node) -> _Node:
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
            raise self._refused("a possessive repeat")
        self.at += self._next() == "?"  # the lazy form matches where the greedy one does
        return _Repeat(part, low, high)

    def _single(self, flags: int) -> _Node:
        char = self._next()
        if char == "(":
            return self._group(flags)
        if char == "^":
            return self._place("line start" if flags & re.MULTILINE else "start")
        if char == "$":
            return self._place("line end" if flags & re.MULTILINE else "near end")
        if char == "\\":
            return self._escape(flags)
        found = _SET.match(self.pattern, self.at) if char == "[" else None
        source = found[0] if found is not None else char
        self.at += len(source)
        return _Atom(source if found is not None or char == "." else re.escape(char), flags)

    def _place(self, kind: str) -> _Place:
        self.at += 1
        return _Place(kind)

    def _escape(self, flags: int) -> _Node:
        kind = {"A": "start", "Z": "end", "b": "boundary", "B": "inside"}.get(self.pattern[self.at + 1])
        if kind is not None:
            self.at += 1
            return self._place(kind)
        found = _ESCAPE.match(self.pattern, self.at)
        if found is None:
            raise self._refused("a backreference or an octal escape")
        self.at = found.end()
        return _Atom(found[0], flags)

    def _group(self, flags: int) -> _Node:
        found = _GROUP.match(self.pattern, self.at)
        if found is None:
            raise self._refused(f"the group {self.pattern[self.at : self.at + 4]!r}")
        self.depth += 1
        if self.depth > _DEEPEST:
            raise self._refused(f"groups more than {_DEEPEST} deep")
        self.at = found.end()
        inside = self._choice((flags | _flags(found[1] or "")) & ~_flags(found[2] or ""))
        self.at += 1
        self.depth -= 1
        return inside

    def _next(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def _refused(self, what: str) -> ConfigError:
        return ConfigError(
            f"pattern {self.pattern!r}: {what} cannot be matched in bounded time (at character {self.at}); "
            "write it without, using groups, sets, | and plain repeats"
        )


def _flags(letters: str) -> int:
    return sum(_BITS[letter] for letter in set(letters))


def _size(node: _Node) -> int:
    """Nodes with repeats written out; nothing is written out to count them."""
    if isinstance(node, _Repeat):
        return 1 + _size(node.part) * (max(node.low, 1) if node.high is None else node.high)
    if isinstance(node, _Sequence):
        return 1 + sum(map(_size, node.parts))
    if isinstance(node, _Choice):
        return 1 + sum(map(_size, node.branches))
    return 1


def _places(node: _Node) -> set[str]:
    if isinstance(node, _Place):
        return {node.kind}
    inner = node.parts if isinstance(node, _Sequence) else node.branches if isinstance(node, _Choice) else ()
    inner = (node.part,) if isinstance(node, _Repeat) else inner
    return {kind for part in inner for kind in _places(part)}


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
class _Span:
    """What a part of a pattern can match: nothing at all, and which positions may be its first and last."""

    empty: bool
    first: int
    last: int


class _Steps:
    """From which position one may go to which, where the given kinds of places hold."""

    def __init__(self, tree: _Node, holding: frozenset[str]) -> None:
        self.holding = holding
        self.atoms: list[_Atom] = []
        self.follow: list[int] = []
        self.all = self._visit(tree)
        neighbours = [mask & 2 << index for index, mask in enumerate(self.follow)]
        self.onward = sum(mask >> 1 for mask in neighbours)  # those that may be followed by the one after them
        others = [mask ^ neighbour for mask, neighbour in zip(self.follow, neighbours, strict=True)] + [0] * 7
        rows = [others[start : start + 8] for start in range(0, len(self.follow), 8)]
        self.num_bytes = len(rows)
        self.blocks = [(index, _unions(row)) for index, row in enumerate(rows) if any(row)]

    def after(self, live: int) -> int:
        """Every position that may match next once those of `live` have matched."""
        found = (live & self.onward) << 1
        eights = live.to_bytes(self.num_bytes, "little")
        for index, unions in self.blocks:
            found |= unions[eights[index]]
        return found

    def _visit(self, node: _Node) -> _Span:
        if isinstance(node, _Atom):
            self.atoms.append(node)
            self.follow.append(0)
            bit = 1 << (len(self.atoms) - 1)
            return _Span(False, bit, bit)
        if isinstance(node, _Place):
            return _Span(node.kind in self.holding, 0, 0)
        if isinstance(node, _Sequence):
            return self._joined([self._visit(part) for part in node.parts])
        if isinstance(node, _Choice):
            return _either([self._visit(branch) for branch in node.branches])
        return self._repeat(node)

    def _repeat(self, node: _Repeat) -> _Span:
        copies = [self._visit(node.part) for _ in range(max(node.low, 1) if node.high is None else node.high)]
        if node.high is None:
            self._link(copies[-1].last, copies[-1].first)
        optional = [_Span(True, copy.first, copy.last) for copy in copies[node.low :]]
        return self._joined(copies[: node.low] + optional)

    def _joined(self, spans: list[_Span]) -> _Span:
        whole = _Span(True, 0, 0)
        for span in spans:
            self._link(whole.last, span.first)
            whole = _Span(
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


def _either(spans: list[_Span]) -> _Span:
    return functools.reduce(
        lambda one, other: _Span(one.empty or other.empty, one.first | other.first, one.last | other.last), spans
    )


def _unions(row: list[int]) -> list[int]:
    """For each of 256 subsets of eight masks, their union."""
    found = [0]
    for mask in row:
        found += [mask | other for other in found]
    return found


class _State(dict[tuple[int, _Side], "_State"]):
    """Positions that matched the last character; maps the next character's symbol to the state after it."""

    def __init__(self, machine: _Machine, live: int, before: _Side, matched: bool) -> None:
        super().__init__()
        self.machine, self.live, self.before, self.matched = machine, live, before, matched

    def __missing__(self, symbol: tuple[int, _Side]) -> _State:
        found = self[symbol] = self.machine.step(self, symbol)
        return found


class _Symbols(dict[str, tuple[int, _Side]]):
    """By character: the positions that match it, and what it is to its neighbours."""

    def __init__(self, atoms: list[_Atom]) -> None:
        super().__init__()
        masks: dict[_Atom, int] = {}
        for index, atom in enumerate(atoms):
            masks[atom] = masks.get(atom, 0) | 1 << index
        self.tests = [(re.compile(atom.source, atom.flags), mask) for atom, mask in masks.items()]

    def __missing__(self, char: str) -> tuple[int, _Side]:
        if len(self) >= _MOST_SYMBOLS:
            self.clear()
        mask = sum(mask for test, mask in self.tests if test.fullmatch(char))
        word = char == "_" or char.isalnum()
        found = self[char] = (mask, _Side.NEWLINE if char == "\n" else _Side.WORD if word else _Side.OTHER)
        return found


class _Machine:
    """Runs one pattern over texts; remembers the steps it has taken, up to a bound."""

    def __init__(self, tree: _Node, whole: bool) -> None:
        self.tree, self.whole, self.kinds = tree, whole, _places(tree)
        self.tables: dict[frozenset[str], _Steps] = {}
        self.between: dict[tuple[_Side, _Side], _Steps] = {}
        self.states: dict[tuple[int, _Side, bool], _State] = {}
        self.symbols = _Symbols(self._steps(_Side.EDGE, _Side.EDGE).atoms)

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
        steps = self._steps(state.before, after)
        starting = steps.all.first if not self.whole or state.before == _Side.EDGE else 0
        before = _Side.NEWLINE if after == _Side.LAST_NEWLINE else after
        return self._state((steps.after(state.live) | starting) & mask, before, False)

    def _ends(self, state: _State, after: _Side) -> bool:
        """Whether a match may end before what comes next."""
        span = self._steps(state.before, after).all
        starting = not self.whole or state.before == _Side.EDGE
        return bool(state.live & span.last) or (span.empty and starting)

    def _steps(self, before: _Side, after: _Side) -> _Steps:
        found = self.between.get((before, after))
        if found is None:
            holding = frozenset(kind for kind in self.kinds if _holds(kind, before, after))
            if holding not in self.tables:
                self.tables[holding] = _Steps(self.tree, holding)
            found = self.between[before, after] = self.tables[holding]
        return found

    def _state(self, live: int, before: _Side, matched: bool) -> _State:
        key = (live, before, matched)
        found = self.states.get(key)
        if found is not None:
            return found
        if len(self.states) >= _MOST_STATES:
            for state in list(self.states.values()):
                state.clear()  # they point at each other
            self.states.clear()
        return self.states.setdefault(key, _State(self, live, before, matched))
