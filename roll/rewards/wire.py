"""How the two processes of `roll.rewards.examiner` talk: values as text with every type named, requests, and answers.

This file is sent into the sandbox as text too, and must start quickly there: it imports what costs nothing, runs on
Python 3.8, and reads what a hostile process wrote without trusting a letter of it.
"""

# pyright: basic
# Values of any type pass through here, so that strict checking would have a cast in every line.

from __future__ import annotations

import builtins
import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, BinaryIO

LONGEST = 32 * 2**20
"""Bytes of one message."""
MOST = 100_000
"""Items that are taken from an iterator which stands for a list."""
REBUILT: dict[tuple[str, str], Callable[[Any], tuple[Any, ...]]] = {
    ("builtins", "range"): lambda value: (value.start, value.stop, value.step),
    ("decimal", "Decimal"): lambda value: (str(value),),
    ("fractions", "Fraction"): lambda value: (value.numerator, value.denominator),
    ("datetime", "date"): lambda value: (value.year, value.month, value.day),
    ("datetime", "timedelta"): lambda value: (value.days, value.seconds, value.microseconds),
    ("collections", "deque"): lambda value: (list(value),),
}
"""Classes of the standard library whose objects cross as a name and the arguments that make them again."""
_KINDS: dict[str, Any] = {"l": list, "t": tuple, "s": set, "f": frozenset}
_CONSTANTS = {"N": None, "T": True, "F": False}


class Gone(BaseException):
    """The other side has left, or cannot be understood. Not caught by an `except Exception` of a test."""


class Unsupported(BaseException):
    """The tests do what cannot be done across the line between the two processes."""


class Foreign:
    """Something that lives on the other side; it can be called."""

    def __init__(self, line: Line, number: int) -> None:
        object.__setattr__(self, "_line", line)
        object.__setattr__(self, "_number", number)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return ask(self, "call", *arguments, **keywords)


def ask(target: Foreign, operation: str, *arguments: Any, **keywords: Any) -> Any:
    """What the other side makes of an operation on something of its own; raises what it raised."""
    line: Line = object.__getattribute__(target, "_line")
    return line.ask(operation, target, arguments, keywords)


class Line:
    """One end of the conversation. Each side serves the other's requests while it waits for an answer to its own."""

    def __init__(self, source: BinaryIO, sink: BinaryIO, serve: Callable[..., Any], wrap: Callable[..., Any]) -> None:
        self.source, self.sink, self.serve, self.wrap = source, sink, serve, wrap
        self.objects: dict[int, Any] = {}
        self.errors: dict[str, Any] = {}
        self.handed: Callable[[Any], Any] = lambda value: value
        """Decides what may be handed over as a handle: returns it, or something else to hand over, or raises."""
        self.broken = False

    def ask(self, operation: str, target: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        self.send("do", operation, self.pack(target), self.pack(list(arguments)), self.pack(keywords))
        while True:
            kind, *rest = self.receive()
            if kind == "do":
                self.answer(*rest)
            elif kind == "raise":
                raise self.error(*rest)
            else:
                value, changed = rest
                if changed:
                    update(arguments, self.unpack(changed))
                return self.unpack(value)

    def answer(self, operation: str, target: str, arguments: str, keywords: str) -> None:
        """Serve one request."""
        given = self.unpack(arguments)
        try:
            value = self.serve(operation, self.unpack(target), given, self.unpack(keywords))
            after = self.pack(given)
            reply = ("return", self.pack(value), "" if after == arguments else after)
        except Exception as error:  # noqa: BLE001 - it is for the other side, and crosses by name
            reply = ("raise", type(error).__name__, str(error)[:1000])
        self.send(*reply)

    def error(self, name: str, text: str) -> Exception:
        known: Any = self.errors.get(name) or getattr(builtins, name, None)
        plain = isinstance(known, type) and issubclass(known, Exception) and not issubclass(known, UnicodeError)
        error: Any = known(text) if plain else Exception(f"{name}: {text}")
        error.foreign = True  # so that it is never taken for a fault of the tests
        return error

    def send(self, *words: str) -> None:
        text = write(list(words), self._unwritable).encode("utf-8", "surrogatepass")
        try:
            self.sink.write(b"%d\n" % len(text) + text)
            self.sink.flush()
        except OSError as error:
            raise self.leave() from error

    def receive(self) -> list[str]:
        """The next message: a kind and its parts, all of them texts, and as many as the kind has."""
        try:
            size = int(self.source.readline(12))
            if not 0 < size <= LONGEST:
                raise ValueError(size)
            message = read(self.source.read(size).decode("utf-8", "surrogatepass"), self._unwritable)
            if {"do": 5, "return": 3, "raise": 3, "load": 2, "names": 2}[message[0]] != len(message):
                raise ValueError(message[0])
            if not all(type(word) is str for word in message):
                raise TypeError(message[0])
            return message
        except (OSError, ValueError, RecursionError, MemoryError, TypeError, LookupError, EOFError) as error:
            raise self.leave() from error

    def leave(self) -> Gone:
        self.broken = True
        return Gone()

    def pack(self, value: Any) -> str:
        """A value as text, with handles for what is not plain data."""
        return write(value, self._hand_over)

    def unpack(self, text: str) -> Any:
        """The value of a text from the other side."""
        try:
            return read(text, self._take)
        except Exception as error:  # whatever the text did, its sender is not to be spoken to
            raise self.leave() from error

    def _hand_over(self, value: Any) -> str:
        if isinstance(value, Foreign):
            return f"m{object.__getattribute__(value, '_number')};"
        handed = self.handed(value)
        if handed is not value:
            return self.pack(handed)
        self.objects[id(value)] = value
        return f"o{id(value)};"

    def _take(self, tag: str, number: int) -> Any:
        return self.objects[number] if tag == "m" else self.wrap(self, number)

    def _unwritable(self, *found: Any) -> Any:
        raise TypeError(found)


def write(value: Any, hand_over: Callable[[Any], str]) -> str:
    """Plain data as text: a letter for the type, a length or count, the content. Subclasses cross as their base."""
    if value is None or isinstance(value, bool):
        return {None: "N", True: "T", False: "F"}[value]
    if isinstance(value, int):
        return f"i{int(value):x};"
    if isinstance(value, float):
        return f"r{float(value).hex()};"
    if isinstance(value, str):
        return f"u{len(value)};{str.__str__(value)}"
    for tag, kind in _KINDS.items():
        if isinstance(value, kind):
            items: Any = value
            return f"{tag}{len(items)};" + "".join([write(item, hand_over) for item in items])
    if isinstance(value, dict):
        parts = [write(key, hand_over) + write(item, hand_over) for key, item in _any(value).items()]
        return f"d{len(parts)};" + "".join(parts)
    return _write_object(value, hand_over)


def _write_object(value: Any, hand_over: Callable[[Any], str]) -> str:
    if isinstance(value, (bytes, bytearray)):
        return ("b" if isinstance(value, bytes) else "a") + f"{value.hex()};"
    if isinstance(value, complex):
        return f"c{value.real.hex()},{value.imag.hex()};"
    if isinstance(value, type) and value.__module__ == "builtins":
        return f"k{value.__name__};"
    kind: Any = type(_any(value))
    place = (kind.__module__, kind.__name__)
    if place in REBUILT:
        return f"x{'.'.join(place)};" + write(list(REBUILT[place](value)), hand_over)
    if hasattr(kind, "__index__"):  # numbers of other libraries
        return write(_any(value).__index__(), hand_over)
    return hand_over(value)


def _any(value: Any) -> Any:
    """Forgets what a check has shown of a type, where its items are of any."""
    return value


def read(text: str, take: Callable[[str, int], Any]) -> Any:
    """The value that `write` wrote; any exception means that the text is not one of its."""
    value, end = _read(text, 0, take)
    if end != len(text):
        raise ValueError("text goes on")
    return value


def _read(text: str, at: int, take: Callable[[str, int], Any]) -> tuple[Any, int]:
    tag = text[at]
    if tag in _CONSTANTS:
        return _CONSTANTS[tag], at + 1
    end = text.index(";", at)
    head, at = text[at + 1 : end], end + 1
    if tag == "u":
        stop = at + int(head)
        if stop > len(text) or stop < at:
            raise ValueError("text ends")
        return text[at:stop], stop
    if tag in _KINDS or tag == "d":
        items: list[Any] = []
        for _ in range(int(head) * (2 if tag == "d" else 1)):
            item, at = _read(text, at, take)
            items.append(item)
        return (_KINDS[tag](items) if tag != "d" else dict(zip(items[::2], items[1::2]))), at  # noqa: B905 - Python 3.8
    if tag == "x":
        arguments, at = _read(text, at, take)
        return _rebuild(head, arguments), at
    return _read_atom(tag, head, take), at


def _read_atom(tag: str, head: str, take: Callable[[str, int], Any]) -> Any:
    if tag == "i":
        return int(head, 16)
    if tag == "r":
        return float.fromhex(head)
    if tag == "c":
        real, _, imaginary = head.partition(",")
        return complex(float.fromhex(real), float.fromhex(imaginary))
    if tag == "k":
        kind = getattr(builtins, head)
        if isinstance(kind, type):
            return kind
    if tag in "ba":
        return (bytes if tag == "b" else bytearray).fromhex(head)
    if tag in "mo":
        return take(tag, int(head))
    raise ValueError(tag)


def _rebuild(place: str, arguments: Any) -> Any:
    module, _, name = place.partition(".")
    if (module, name) not in REBUILT:
        raise ValueError(place)
    return getattr(importlib.import_module(module), name)(*arguments)


def update(before: tuple[Any, ...], after: list[Any]) -> None:
    """Let what was done to the arguments over there be seen by whoever holds them here."""
    for old, new in zip(before, after):  # noqa: B905 - Python 3.8
        if type(old) is not type(new):
            continue
        if isinstance(old, (list, bytearray)):
            old[:] = new
        elif isinstance(old, (dict, set)):
            _any(old).clear()
            _any(old).update(new)


def listed(stream: Any) -> list[Any]:
    """The items of an iterator, up to a bound."""
    items: list[Any] = []
    for item in stream:
        items.append(item)
        if len(items) > MOST:
            raise ValueError("too many items")
    return items
