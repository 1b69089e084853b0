"""`roll play`: plays an environment from the terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TextIO

import yaml

from roll.data.tools import Tool
from roll.envs.base import Env, StepResult
from roll.errors import ConfigError
from roll.registry import ENVS
from roll.rollout.episode.turns import CutShort, take_turns
from roll.types import Message, Task

_ARROWS = {"[A": "up", "[B": "down", "[C": "right", "[D": "left", "OA": "up", "OB": "down", "OC": "right", "OD": "left"}
"""Escape sequences of the arrow keys, without the escape."""
_KEYS = {"u": "up", "d": "down", "l": "left", "r": "right"}
_QUIT = "q"
_EOF = ("\x03", "\x04", "")
"""Ctrl-C, Ctrl-D and the end of a pipe."""
Echo = Callable[[str], None]


def play(name: str, options: Sequence[str], *, seed: int, keyboard: TextIO, echo: Echo) -> None:
    """Play one episode with the responses typed at `keyboard`; echoes its messages and outcome.

    Environments with moves read single keys (arrows or letters), others whole lines; `q` quits.
    """
    env = _build_env(name, options, seed)
    moves = getattr(ENVS[name], "keyed", False)
    with _unbuffered(keyboard) if moves else nullcontext():
        asyncio.run(_attempt(env, _keys(keyboard) if moves else _lines(keyboard), echo))


def _build_env(name: str, options: Sequence[str], seed: int) -> Env:
    arguments = dict(_option(text) for text in options)
    faults = [fault for _, fault in ENVS.faults(name, arguments)]
    if faults:
        raise ConfigError("\n".join(faults))
    return ENVS[name](Task(id=f"seed-{seed}", domain="play", seed=seed), **arguments)


def _option(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"play: {text!r} is not KEY=VALUE; give an argument of the environment, such as size=5")
    try:
        return key, yaml.safe_load(value)
    except yaml.YAMLError:
        raise ConfigError(f"play: {key}: {value!r} cannot be read; write a YAML value") from None


async def _attempt(env: Env, responses: Iterator[str], echo: Echo) -> None:
    try:
        if reason := await take_turns(env, _Person(responses, echo)):
            echo(reason)
    finally:
        await env.close()


class _Person:
    """`Responder` that shows messages and takes the next typed response."""

    def __init__(self, responses: Iterator[str], echo: Echo) -> None:
        self._responses, self._echo = responses, echo

    def start(self, messages: Sequence[Message], tools: Sequence[Tool], agents: Sequence[str]) -> None:
        _show(messages, self._echo)

    async def respond(self, turn: int) -> str:
        response = next(self._responses, None)
        if response is None:
            raise CutShort("quit before the end")
        return response

    def observe(self, turn: int, result: StepResult) -> None:
        _show(result.messages, self._echo)
        if result.done:
            self._echo(_outcome(result))


def _show(messages: Sequence[Message], echo: Echo) -> None:
    for message in messages:
        echo(message.content.rstrip("\n") + "\n")


def _outcome(result: StepResult) -> str:
    counts = ", ".join(f"{name} {value:g}" for name, value in result.metrics.items())
    return f"over: {counts}" if counts else "over"


def _keys(keyboard: TextIO) -> Iterator[str]:
    """One move per key that maps to one; other keys are ignored."""
    while (key := keyboard.read(1)) not in (*_EOF, _QUIT):
        if key == "\x1b":
            key = _ARROWS.get(keyboard.read(2), "")
        move = key if key in _KEYS.values() else _KEYS.get(key.lower())
        if move is not None:
            yield move


def _lines(keyboard: TextIO) -> Iterator[str]:
    while (line := keyboard.readline()) and line.strip() != _QUIT:
        yield line.rstrip("\n")


@contextmanager
def _unbuffered(keyboard: TextIO) -> Generator[None]:
    """Switches a terminal to unbuffered input without echo inside this block; other files are not changed."""
    if not keyboard.isatty():
        yield
        return
    import termios
    import tty

    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard, termios.TCSADRAIN)  # keeps keys that were pressed already
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
