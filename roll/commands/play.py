"""`roll play`: a person at a terminal takes the policy's place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TextIO

import yaml

from roll.envs.base import Env, Reply
from roll.errors import ConfigError
from roll.registry import ENVS
from roll.types import Message, Task

_ARROWS = {"[A": "up", "[B": "down", "[C": "right", "[D": "left", "OA": "up", "OB": "down", "OC": "right", "OD": "left"}
"""What a terminal sends after an escape for its arrow keys."""
_KEYS = {"u": "up", "d": "down", "l": "left", "r": "right"}
_LEAVE = "q"
_ENDS = ("\x03", "\x04", "")
"""Ctrl-C, Ctrl-D and the end of a pipe."""
Say = Callable[[str], None]


def play(name: str, options: Sequence[str], *, seed: int, said: TextIO, say: Say) -> None:
    """One attempt at an environment by whoever writes `said`; shows what happens, and how it ended.

    Environments of moves take arrow keys or letters at once, others a line at a time; `q` leaves.
    """
    env = _made(name, options, seed)
    moves = getattr(ENVS[name], "keyed", False)
    with _unbuffered(said) if moves else nullcontext():
        asyncio.run(_attempt(env, _keys(said) if moves else _lines(said), say))


def _made(name: str, options: Sequence[str], seed: int) -> Env:
    arguments = dict(_option(text) for text in options)
    faults = [fault for _, fault in ENVS.faults(name, arguments)]
    if faults:
        raise ConfigError("\n".join(faults))
    return ENVS[name](Task(id=f"seed-{seed}", domain="play", seed=seed), **arguments)


def _option(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"play: {text!r} is not KEY=VALUE; write an argument of the environment, such as size=5")
    try:
        return key, yaml.safe_load(value)
    except yaml.YAMLError:
        raise ConfigError(f"play: {key}: {value!r} cannot be read; write a YAML value") from None


async def _attempt(env: Env, replies: Iterator[str], say: Say) -> None:
    try:
        _show(await env.start(), say)
        for text in replies:
            reply = await env.step(text)
            _show(reply.messages, say)
            if reply.done:
                say(_outcome(reply))
                return
        say("left before the end")
    finally:
        await env.close()


def _show(messages: Sequence[Message], say: Say) -> None:
    for message in messages:
        say(message.content.rstrip("\n") + "\n")


def _outcome(reply: Reply) -> str:
    counts = ", ".join(f"{name} {value:g}" for name, value in reply.metrics.items())
    return f"over: {counts}" if counts else "over"


def _keys(said: TextIO) -> Iterator[str]:
    """A move for each key that means one; other keys are no moves of anybody and are not heard."""
    while (key := said.read(1)) not in (*_ENDS, _LEAVE):
        if key == "\x1b":
            key = _ARROWS.get(said.read(2), "")
        move = key if key in _KEYS.values() else _KEYS.get(key.lower())
        if move is not None:
            yield move


def _lines(said: TextIO) -> Iterator[str]:
    while (line := said.readline()) and line.strip() != _LEAVE:
        yield line.rstrip("\n")


@contextmanager
def _unbuffered(said: TextIO) -> Generator[None]:
    """A terminal hands over keys at once and does not show them; anything else stays as it is."""
    if not said.isatty():
        yield
        return
    import termios
    import tty

    before = termios.tcgetattr(said)
    tty.setcbreak(said, termios.TCSADRAIN)  # keys that were pressed already count
    try:
        yield
    finally:
        termios.tcsetattr(said, termios.TCSADRAIN, before)
