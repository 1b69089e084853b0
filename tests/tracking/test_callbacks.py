"""Callbacks and sinks of the user's: which methods are called, and how an error in one is reported."""

from pathlib import Path
from typing import Any

import pytest

from roll.errors import ConfigError
from roll.registry import CALLBACKS, SINKS
from roll.tracking.callbacks import Callbacks, build_sinks
from roll.types import Spec

calls: list[Any] = []


class Diary:
    """Has every method."""

    def __init__(self, *, name: str = "diary") -> None:
        self.name = name

    def on_start(self, directory: Path, step: int) -> None:
        calls.append((self.name, "start", directory, step))

    def on_step(self, step: int, metrics: dict[str, float]) -> None:
        calls.append((self.name, step, dict(metrics)))
        metrics.clear()  # a copy: the next one still receives all

    def on_checkpoint(self, step: int, path: Path) -> None:
        calls.append((self.name, "checkpoint", step, path))

    def on_end(self) -> None:
        calls.append((self.name, "end"))


class Short:
    def on_step(self, step: int, metrics: dict[str, float]) -> None:
        calls.append(("short", step, metrics))


class Broken:
    def __init__(self, *, at: str) -> None:
        self.at = at
        if at == "init":
            raise KeyError("no key")

    def on_step(self, step: int, metrics: dict[str, float]) -> None:
        if self.at == "step":
            raise ValueError("first line\nsecond line")

    def on_end(self) -> None:
        calls.append("end of the broken one")
        if self.at == "end":
            raise SystemExit(0)


class Late:
    async def on_step(self, step: int, metrics: dict[str, float]) -> None: ...


class Sink:
    def __init__(self, *, prefix: str) -> None:
        self.prefix = prefix

    def write(self, step: int, metrics: dict[str, float]) -> None:
        calls.append((self.prefix, step, metrics))

    def close(self) -> None:
        calls.append((self.prefix, "closed"))


class Nothing: ...


def spec(attribute: str, **arguments: Any) -> Spec:
    return Spec(f"{__name__}:{attribute}", arguments)


def test_every_method_that_a_callback_has_is_called_in_the_order_of_the_file():
    calls.clear()
    callbacks = Callbacks([spec("Diary", name="a"), spec("Short")])
    callbacks.start(Path("runs/x"), 3)
    callbacks.write(4, {"reward/mean": 0.5})
    callbacks.checkpoint_saved(4, Path("c"))
    callbacks.close()
    assert calls == [
        ("a", "start", Path("runs/x"), 3),
        ("a", 4, {"reward/mean": 0.5}),
        ("short", 4, {"reward/mean": 0.5}),
        ("a", "checkpoint", 4, Path("c")),
        ("a", "end"),
    ]


def test_a_sink_of_the_users_gets_all_metrics_and_is_closed():
    calls.clear()
    (sink,) = build_sinks([spec("Sink", prefix="p")])
    sink.write(1, {"x": 2.0})
    sink.close()
    assert calls == [("p", 1, {"x": 2.0}), ("p", "closed")]


def test_an_error_names_the_callback_the_method_and_the_line_and_nothing_more_is_called():
    calls.clear()
    callbacks = Callbacks([spec("Broken", at="step")])
    with pytest.raises(ConfigError) as raised:
        callbacks.write(1, {})
    text = str(raised.value)
    assert text.startswith(f"callback '{__name__}:Broken': on_step: ValueError: first line second line ({__file__}:")
    assert text.endswith("; fix its code")
    callbacks.close()
    assert calls == []
    with pytest.raises(ConfigError, match="Broken': __init__: KeyError: 'no key'"):
        Callbacks([spec("Broken", at="init")])
    with pytest.raises(ConfigError, match="Broken': on_end: SystemExit: 0"):
        Callbacks([spec("Broken", at="end")]).close()


def test_an_async_method_is_refused():
    with pytest.raises(ConfigError, match="on_step is async, and it is not awaited; make it a plain method"):
        Callbacks([spec("Late")]).write(1, {})


def test_missing_methods_and_names_without_a_module_are_faults_before_the_run():
    name = f"{__name__}:Nothing"
    assert CALLBACKS.faults(name, {}) == [("", f"callback {name!r} has no method `on_step`; add it to the class")]
    assert [fault for _, fault in SINKS.faults(name, {})] == [
        f"metric sink {name!r} has no method `{method}`; add it to the class" for method in ("write", "close")
    ]
    assert "takes no 'nme'; did you mean 'name'?" in CALLBACKS.faults(f"{__name__}:Diary", {"nme": "x"})[0][1]
    assert CALLBACKS.faults("Diary", {}) == [("", "callback 'Diary' names no module; write package.module:attribute")]
