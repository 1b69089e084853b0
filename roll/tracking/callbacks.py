"""User code that receives the metrics of a run: callbacks, and sinks beside the built-in ones.

A callback is a class with a method `on_step(step, metrics)` and, optionally, `on_start(directory, step)`,
`on_checkpoint(step, path)` and `on_end()`. A sink is a class with methods `write(step, metrics)` and `close()`. They
run in the process of the loop. An exception in one ends the run with one line; what is on disk stays intact.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from roll.errors import ConfigError, RollError, describe_error, source_of
from roll.registry import CALLBACKS, SINKS, Table
from roll.types import Spec

OnStep: TypeAlias = Callable[[int, Mapping[str, float]], None]
"""Called with the number of a step and its metrics."""


class UserObject:
    """An object of a user's class, whose exceptions become `ConfigError` with the method and the line."""

    def __init__(self, table: Table[Any], spec: Spec) -> None:
        self._where = f"{table.kind} {spec.name!r}"
        self._failed, self._object = False, None
        self._object = self._guard("__init__", lambda: table[spec.name](**spec.kwargs))

    def call(self, method: str, *args: Any) -> None:
        """Call a method, unless the class lacks it or an earlier call has failed."""
        function = getattr(self._object, method, None)
        if function is None or self._failed:
            return
        if inspect.iscoroutinefunction(function):
            raise ConfigError(f"{self._where}: {method} is async, and it is not awaited; make it a plain method")
        self._guard(method, lambda: function(*args))

    def _guard(self, method: str, call: Any) -> Any:
        try:
            return call()
        except RollError:
            self._failed = True
            raise
        except (Exception, SystemExit) as error:
            self._failed = True
            what = describe_error(error, source_of(type(self._object)))
            raise ConfigError(f"{self._where}: {method}: {what}; fix its code") from error


class UserSink(UserObject):
    """`Sink` of a user's class."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self.call("write", step, dict(metrics))

    def close(self) -> None:
        self.call("close")


class Callbacks:
    """The callbacks of a run, in the order of the file; a `Sink`."""

    def __init__(self, specs: Iterable[Spec], on_step: OnStep | None = None) -> None:
        self._objects = [UserObject(CALLBACKS, spec) for spec in specs]
        self._on_step = on_step
        """Callback of the program that the run is a part of."""

    @property
    def quiet(self) -> bool:
        """Whether such a program shows the steps itself."""
        return self._on_step is not None

    def start(self, directory: Path, step: int) -> None:
        """Call `on_start` with the directory of the run and the number of finished steps."""
        self._call("on_start", directory, step)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Call `on_step`, each time with a copy."""
        for each in self._objects:
            each.call("on_step", step, dict(metrics))
        if self._on_step is not None:
            self._on_step(step, metrics)

    def checkpoint_saved(self, step: int, path: Path) -> None:
        """Call `on_checkpoint` with the folder of a complete checkpoint."""
        self._call("on_checkpoint", step, path)

    def close(self) -> None:
        """Call `on_end`, also where the run failed."""
        self._call("on_end")

    def _call(self, method: str, *args: Any) -> None:
        for each in self._objects:
            each.call(method, *args)


def build_sinks(specs: Iterable[Spec]) -> list[UserSink]:
    """The user's own sinks."""
    return [UserSink(SINKS, spec) for spec in specs]
