"""The protocol between the two processes of `roll.rewards.code.examiner`: typed values as text, requests, answers.

This file is also sent into the sandbox as text and must start quickly there: it has only cheap imports, runs on Python
3.8, and treats everything it reads as written by a hostile process.
"""

# pyright: basic
# Values of any type pass through here; strict checking would need a cast on every line.

from __future__ import annotations

import builtins
import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, BinaryIO

MAX_MESSAGE_BYTES = 32 * 2**20
MAX_ITEMS = 100_000
"""Items taken from an iterator that is sent as a list."""
REBUILT: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "builtins.range": lambda value: (value.start, value.stop, value.step),
    "decimal.Decimal": lambda value: (str(value),),
    "fractions.Fraction": lambda value: (value.numerator, value.denominator),
    "datetime.date": lambda value: (value.year, value.month, value.day),
    "datetime.timedelta": lambda value: (value.days, value.seconds, value.microseconds),
    "collections.deque": lambda value: (list(value),),
}
"""Standard-library classes sent as a name and constructor arguments."""
_KINDS: dict[str, Any] = {"l": list, "t": tuple, "s": set, "f": frozenset}
MUTABLE = (list, dict, set, bytearray)
_CONSTANTS = {"N": None, "T": True, "F": False}
_ATOMS: dict[str, Callable[[str], Any]] = {
    "i": lambda head: int(head, 16),
    "r": float.fromhex,
    "c": lambda head: complex(*map(float.fromhex, head.split(","))),
    "b": bytes.fromhex,
    "a": bytearray.fromhex,
}
"""By type letter: the value of its text."""


class Disconnected(BaseException):
    """The other side has ended, or sent an invalid message. An `except Exception` in a test does not catch it."""


class Unsupported(BaseException):
    """The tests need an operation that cannot cross the process boundary."""


class LibraryFunction(str):
    """The path of a function of the standard library, which is sent by name because each process has it."""

    __slots__ = ()


class RemoteObject:
    """A callable object of the other process."""

    def __init__(self, connection: Connection, number: int) -> None:
        object.__setattr__(self, "_connection", connection)
        object.__setattr__(self, "_number", number)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return request(self, "call", *arguments, **keywords)


def request(target: RemoteObject, operation: str, *arguments: Any, **keywords: Any) -> Any:
    """The result of an operation on an object of the other process; raises its error."""
    connection: Connection = object.__getattribute__(target, "_connection")
    return connection.request(operation, target, arguments, keywords)


class Connection:
    """One end of the pipe pair. Each side serves the other's requests while it waits for an answer."""

    def __init__(self, source: BinaryIO, sink: BinaryIO, serve: Callable[..., Any], wrap: Callable[..., Any]) -> None:
        self.source, self.sink, self.serve, self.wrap = source, sink, serve, wrap
        self.objects: dict[int, Any] = {}
        self.errors: dict[str, Any] = {}
        self.before_handle: Callable[[Any], Any] = lambda value: value
        """Called before an object is sent as a handle: returns the object or a replacement, or raises."""
        self.broken = False
        self.num_requests = 0
        """Requests sent to the other side."""
        self.texts: set[str] = set()
        """Texts that the other side returned."""
        self.may_stop = True
        """Whether an operation other than `next` may raise `StopIteration`, which would end a loop over `map`."""
        self.handles: dict[int, Any] = {}
        """Handles by number, so that one object has one handle."""
        self.resolve: Callable[[str], Any] = refuse
        """Turns the path of a library function into the function; only a candidate does so."""

    def request(self, operation: str, target: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        self.num_requests += 1
        self.send("do", operation, self.pack(target), self.pack(list(arguments)), self.pack(keywords))
        while True:
            kind, *rest = self.receive()
            if kind == "do":
                self.answer(*rest)
            elif kind == "raise":
                raise self.error(*rest, may_stop=self.may_stop or operation == "next")
            else:
                value, changed = rest
                originals = (*arguments, *keywords.values())
                if changed:
                    update(originals, self.unpack(changed))
                if value.startswith("p"):
                    return self.original(originals, value)
                result = self.unpack(value)
                self.texts.update(texts_of(result))
                return result

    def original(self, arguments: tuple[Any, ...], value: str) -> Any:
        """The argument that the other side returned."""
        try:
            return arguments[int(value[1:])]
        except (ValueError, IndexError) as error:
            raise self.disconnect() from error

    def answer(self, operation: str, target: str, arguments: str, keywords: str) -> None:
        """Serve one request."""
        values, named = self.unpack(arguments), self.unpack(keywords)
        try:
            value = self.serve(operation, self.unpack(target), values, named)
            originals = [*values, *named.values()]
            after = self.pack(originals)
            same = [n for n, one in enumerate(originals) if one is value and isinstance(value, MUTABLE)]
            answer = f"p{same[0]}" if same else self.pack(value)
            response = ("return", answer, "" if not named and after == arguments else after)
        except Exception as error:  # noqa: BLE001 - sent to the other side by name
            response = ("raise", base_names(type(error)), text_of(error)[:1000], self.pack_attributes(error))
        self.send(*response)

    def pack_attributes(self, error: Exception) -> str:
        """Attributes of an error that are plain data."""
        attributes: dict[str, Any] = {}
        for name, value in vars(error).items():
            if isinstance(value, (str, int, float, list, tuple, dict, set, type(None))):
                attributes[name] = value
        try:
            return write(attributes, refuse)
        except TypeError:
            return write({}, refuse)

    def error(self, names: str, text: str, attributes: str, *, may_stop: bool) -> Exception:
        """The error of the first of these class names that is known; custom classes come before their bases."""
        error: Any = Exception(f"{names.partition(',')[0]}: {text}")
        for name in names.split(","):
            known: Any = self.errors.get(name) or getattr(builtins, name, None)
            if isinstance(known, type) and issubclass(known, Exception) and known is not Exception:
                try:
                    error = known(text)
                    break
                except TypeError:  # it needs more arguments, such as `UnicodeDecodeError`
                    continue
        if not may_stop and issubclass(type(error), StopIteration):
            error = RuntimeError("the response raised StopIteration")
        values = self.unpack(attributes)
        if isinstance(values, dict):
            error.__dict__.update({name: values[name] for name in values if type(name) is str})
        error.foreign = True  # not an error of the tests themselves
        return error

    def send(self, *words: str) -> None:
        text = write(list(words), refuse).encode("utf-8", "surrogatepass")
        try:
            self.sink.write(b"%d\n" % len(text) + text)
            self.sink.flush()
        except OSError as error:
            raise self.disconnect() from error

    def receive(self) -> list[str]:
        """The next message: its kind and a fixed number of texts per kind."""
        try:
            size = int(self.source.readline(12))
            if not 0 < size <= MAX_MESSAGE_BYTES:
                raise ValueError(size)
            message = read(self.source.read(size).decode("utf-8", "surrogatepass"), refuse)
            if {"do": 5, "return": 3, "raise": 4, "load": 2, "names": 2}[message[0]] != len(message):
                raise ValueError(message[0])
            if not all(type(word) is str for word in message):
                raise TypeError(message[0])
            return message
        except (OSError, ValueError, RecursionError, MemoryError, TypeError, LookupError, EOFError) as error:
            raise self.disconnect() from error

    def disconnect(self) -> Disconnected:
        self.broken = True
        return Disconnected()

    def pack(self, value: Any) -> str:
        """A value as text, with handles for anything but plain data."""
        return write(value, self._write_handle)

    def unpack(self, text: str) -> Any:
        """The value of a text from the other side."""
        try:
            return read(text, self._read_handle)
        except Exception as error:  # an invalid text ends the connection
            raise self.disconnect() from error

    def _write_handle(self, value: Any) -> str:
        if isinstance(value, RemoteObject):
            return f"m{object.__getattribute__(value, '_number')};"
        replacement = self.before_handle(value)
        if isinstance(replacement, LibraryFunction):
            return f"g{replacement};"
        if replacement is not value:
            return self.pack(replacement)
        self.objects[id(value)] = value
        return f"o{id(value)};"

    def _read_handle(self, tag: str, text: str) -> Any:
        if tag == "g":
            return self.resolve(text)
        if tag == "m":
            return self.objects[int(text)]
        return self.handles.setdefault(int(text), self.wrap(self, int(text)))


def base_names(kind: type) -> str:
    """The names of a class and its bases."""
    return ",".join([base.__name__ for base in kind.__mro__])


def text_of(error: Exception) -> str:
    """The text of an error; that of a `KeyError` without the quotation marks that it adds."""
    plain = isinstance(error, KeyError) and len(error.args) == 1 and isinstance(error.args[0], str)
    return str(error.args[0]) if plain else str(error)


def texts_of(value: Any) -> list[str]:
    """The texts within plain data."""
    if isinstance(value, str):
        return [str(value)]
    items = [*value, *value.values()] if isinstance(value, dict) else value
    return [text for item in items for text in texts_of(item)] if isinstance(items, (list, tuple, set)) else []


def refuse(*handle: Any) -> Any:
    """For texts without handles, in place of the function that writes or reads one."""
    raise TypeError(handle)


def write(value: Any, write_handle: Callable[[Any], str]) -> str:
    """Plain data as text: a type letter, a length or count, the content. Subclasses are sent as their base."""
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
            return f"{tag}{len(value)};" + "".join([write(item, write_handle) for item in value])
    if isinstance(value, dict):
        parts = [write(key, write_handle) + write(item, write_handle) for key, item in value.items()]
        return f"d{len(parts)};" + "".join(parts)
    return _write_object(value, write_handle)


def _write_object(value: Any, write_handle: Callable[[Any], str]) -> str:
    if isinstance(value, (bytes, bytearray)):
        return ("b" if isinstance(value, bytes) else "a") + f"{value.hex()};"
    if isinstance(value, complex):
        return f"c{value.real.hex()},{value.imag.hex()};"
    if isinstance(value, type) and value.__module__ == "builtins":
        return f"k{value.__name__};"
    kind = type(value)
    path = f"{kind.__module__}.{kind.__name__}"
    if path in REBUILT:
        return f"x{path};" + write(list(REBUILT[path](value)), write_handle)
    if hasattr(kind, "__index__"):  # numbers of other libraries
        return write(value.__index__(), write_handle)
    return write_handle(value)


def read(text: str, read_handle: Callable[[str, str], Any]) -> Any:
    """The inverse of `write`; any exception means that the text is invalid."""
    value, end = _read(text, 0, read_handle)
    if end != len(text):
        raise ValueError("trailing text")
    return value


def _read(text: str, at: int, read_handle: Callable[[str, str], Any]) -> tuple[Any, int]:
    tag = text[at]
    if tag in _CONSTANTS:
        return _CONSTANTS[tag], at + 1
    end = text.index(";", at)
    head, at = text[at + 1 : end], end + 1
    if tag == "u":
        stop = at + int(head)
        if stop > len(text) or stop < at:
            raise ValueError("truncated text")
        return text[at:stop], stop
    if tag in _KINDS or tag == "d":
        items: list[Any] = []
        for _ in range(int(head) * (2 if tag == "d" else 1)):
            item, at = _read(text, at, read_handle)
            items.append(item)
        return (_KINDS[tag](items) if tag != "d" else dict(zip(items[::2], items[1::2]))), at  # noqa: B905 - Python 3.8
    if tag == "x" and head in REBUILT:
        arguments, at = _read(text, at, read_handle)
        module, _, name = head.partition(".")
        return getattr(importlib.import_module(module), name)(*arguments), at
    return _read_atom(tag, head, read_handle), at


def _read_atom(tag: str, head: str, read_handle: Callable[[str, str], Any]) -> Any:
    if tag in _ATOMS:
        return _ATOMS[tag](head)
    if tag in "mog":
        return read_handle(tag, head)
    kind = getattr(builtins, head) if tag == "k" else None
    if not isinstance(kind, type):
        raise ValueError(tag)
    return kind


def update(before: tuple[Any, ...], after: list[Any]) -> None:
    """Apply the other side's in-place changes of arguments to the originals here."""
    for old, new in zip(before, after):  # noqa: B905 - Python 3.8
        if type(old) is not type(new):
            continue
        if isinstance(old, (list, bytearray)):
            old[:] = new
        elif isinstance(old, (dict, set)):
            old.clear()
            old.update(new)


def collect_items(stream: Any) -> list[Any]:
    """The items of an iterator; raises past `MAX_ITEMS`."""
    items: list[Any] = []
    for item in stream:
        items.append(item)
        if len(items) > MAX_ITEMS:
            raise ValueError("too many items")
    return items
