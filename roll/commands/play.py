"""`roll play`: plays an environment from the terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import TextIO

from roll.config.document import COMMAND_LINE, Document, override
from roll.config.faults import raise_all
from roll.data.tools import Tool
from roll.envs.base import StepResult
from roll.envs.guarded import GuardedEnv
from roll.errors import ConfigError, EnvFailed, blame
from roll.registry import ENVS
from roll.rollout.environments import env_label
from roll.rollout.episode.turns import CutShort, take_turns
from roll.types import Message, Spec, Task

_ARROWS = {"[A": "up", "[B": "down", "[C": "right", "[D": "left", "OA": "up", "OB": "down", "OC": "right", "OD": "left"}
"""Escape sequences of the arrow keys, without the escape."""
_KEYS = {"u": "up", "d": "down", "l": "left", "r": "right"}
_QUIT = "q"
_EOF = ("\x03", "\x04", "")
"""Ctrl-C, Ctrl-D and the end of a pipe."""
Echo = Callable[[str], None]


def play(name: str, options: Sequence[str], *, seed: int, keyboard: TextIO, echo: Echo) -> None:
    """Play one episode with the responses typed at `keyboard`; echoes its messages, rewards and metrics.

    Environments with moves read single keys (arrows or letters), others whole lines; `q` quits.
    """
    spec = _parse_spec(name, options)
    task = Task(id=f"seed-{seed}", domain="play", seed=seed)
    try:
        env = GuardedEnv(spec, task)
        moves = getattr(ENVS[name], "keyed", False)
        with _unbuffered(keyboard) if moves else nullcontext():
            asyncio.run(_attempt(env, env_label(spec, task), _keys(keyboard) if moves else _lines(keyboard), echo))
    except EnvFailed as error:
        raise ConfigError(str(error)) from None


def _parse_spec(name: str, options: Sequence[str]) -> Spec:
    document = Document(COMMAND_LINE, {})
    for option in options:
        override(document, option)
    raise_all(document.faults)
    faults = [fault for _, fault in ENVS.faults(name, document.tree)]
    if faults:
        raise ConfigError("\n".join(faults))
    return Spec(name, document.tree)


async def _attempt(env: GuardedEnv, label: str, responses: Iterator[str], echo: Echo) -> None:
    try:
        if reason := await take_turns(env, _Person(responses, echo), guard=partial(blame, EnvFailed, label)):
            echo(reason)
    except BaseException:
        with suppress(EnvFailed):  # the first error matters more
            await env.close()
        raise
    await env.close()


class _Person:
    """`Responder` that shows messages and takes the next typed response."""

    def __init__(self, responses: Iterator[str], echo: Echo) -> None:
        self._responses, self._echo = responses, echo
        self._total = 0.0
        """Sum of the rewards of all turns so far."""

    def start(self, messages: Sequence[Message], tools: Sequence[Tool], agents: Sequence[str]) -> None:
        _show(messages, self._echo)

    async def respond(self, turn: int) -> str:
        response = next(self._responses, None)
        if response is None:
            raise CutShort("quit before the end")
        return response

    def observe(self, turn: int, result: StepResult) -> None:
        _show(result.messages, self._echo)
        self._total += result.reward
        rewards = {"reward": result.reward, **result.rewards}
        if any(rewards.values()) and not (result.done and rewards == {"reward": self._total}):
            self._echo(f"{_format(rewards)}\n")
        if result.done:
            self._echo(", ".join(filter(None, (f"over: {_format({'reward': self._total})}", _format(result.metrics)))))


def _show(messages: Sequence[Message], echo: Echo) -> None:
    for message in messages:
        if text := message.content.rstrip("\n"):
            echo(f"{text}\n")


def _format(numbers: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {round(value, 3):g}" for name, value in numbers.items())


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
