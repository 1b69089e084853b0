"""A training in a thread of the program: its steps can be iterated, drawn and stopped while it runs.

| call | waits for | woken by |
|---|---|---|
| iteration | the next step | the end of a step, or of the run |
| `result`, `stop`, `show` | the end of the run | its last step, an error, or `stop` |
"""

from __future__ import annotations

import atexit
import importlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roll.commands.lifecycle import Embedded
from roll.errors import ConfigError
from roll.pipelines.interrupt import EXIT_S
from roll.tracking.curve import Series, curve_svg

if TYPE_CHECKING:
    from roll.commands.train import Result
    from roll.pipelines.interrupt import Interrupt

_THREAD = "roll-training"
_SHOWN = ("reward/mean", "validation/accuracy")
_SPARSE = "validation/"
"""Prefix of metrics that only some steps have: they are drawn with markers."""
EXTRA = "pip install 'roll-rl[notebook]'"


class Picture:
    """An SVG picture, which a notebook displays."""

    def __init__(self, svg: str) -> None:
        self.svg = svg

    def __repr__(self) -> str:
        return f"Picture of {len(self.svg)} characters"

    def _repr_svg_(self) -> str:
        return self.svg


class Training:
    """A run in the background. Its rows are those of `metrics`: one per step, with step 0 for the first validation.

    Every iteration starts at the first row. It waits for further steps, ends with the run and raises its error.
    """

    def __init__(self, directory: Path, work: Callable[[Embedded], Result]) -> None:
        self.directory = directory
        """The run directory."""
        self._work = work
        self._rows: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._interrupt: Interrupt | None = None
        self._stopping = self._done = False
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=_THREAD, daemon=True)
        atexit.register(self._end_with_process)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether the run has not ended yet."""
        return not self._done

    def __iter__(self) -> Iterator[dict[str, Any]]:
        position = 0
        while (row := self._wait_for_row(position)) is not None:
            position += 1
            yield dict(row)
        self.result()

    def __repr__(self) -> str:
        step = self._rows[-1]["step"] if self._rows else 0
        if self._error is not None:
            return f"Training({str(self.directory)!r}, failed after step {step}: {self._error})"
        return f"Training({str(self.directory)!r}, {'running' if self.running else 'ended'}, step {step})"

    def result(self) -> Result:
        """Wait for the end of the run; raises the error that ended it."""
        with self._changed:
            self._changed.wait_for(lambda: self._done)
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def stop(self) -> Result:
        """Finish the step, write a checkpoint and end the run, as the first Ctrl-C of `train`."""
        self._request_stop()
        return self.result()

    def plot(self, *names: str) -> Picture:
        """The curves of some metrics so far; default: training reward and held-out accuracy."""
        return Picture(_draw(self.directory.name, list(self._rows), names or _SHOWN))

    def show(self, *names: str) -> Result:
        """Draw the curves in a notebook, again after every step, and wait for the end of the run."""
        try:
            display: Any = importlib.import_module("IPython.display")
        except ImportError:
            raise ConfigError(f"show: needs the package IPython; {EXTRA}") from None
        handle = display.display(self.plot(*names), display_id=True)
        for _ in self:
            if handle is not None:
                handle.update(self.plot(*names))
        return self.result()

    def _wait_for_row(self, position: int) -> Mapping[str, Any] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._done or len(self._rows) > position)
            return self._rows[position] if len(self._rows) > position else None

    def _run(self) -> None:
        try:
            self._result = self._work(Embedded(on_step=self._on_step, on_start=self._on_start))
        except BaseException as error:  # noqa: BLE001 - the thread of the caller raises it
            self._error = error
        atexit.unregister(self._end_with_process)
        with self._changed:
            self._done = True
            self._changed.notify_all()

    def _request_stop(self) -> None:
        with self._changed:
            self._stopping = True
            if self._interrupt is not None:
                self._interrupt.requested = True

    def _end_with_process(self) -> None:
        """Tensor operations must not outlive the interpreter. The step is abandoned; what is on disk is complete."""
        self._request_stop()
        self._thread.join(EXIT_S)

    def _on_start(self, interrupt: Interrupt) -> None:
        with self._changed:
            self._interrupt = interrupt
            interrupt.requested = self._stopping

    def _on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        with self._changed:
            self._rows.append({"step": step, **metrics})
            self._changed.notify_all()


def check_alone(directory: Path) -> None:
    """Raise `ConfigError` while a training runs in the background of this process."""
    if any(thread.name == _THREAD for thread in threading.enumerate()):
        raise ConfigError(f"{directory}: another training runs in this process; stop it, or wait for its result()")


def frame(rows: Sequence[Mapping[str, Any]], index: str | None = None) -> Any:
    """The rows as a DataFrame of pandas."""
    try:
        pandas: Any = importlib.import_module("pandas")
    except ImportError:
        raise ConfigError(f"frame: needs the package pandas; {EXTRA}") from None
    table = pandas.DataFrame(list(rows))
    return table if index is None or table.empty else table.set_index(index)


def _draw(title: str, rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    series = [
        Series(
            name=name,
            points=[(row["step"], row[name]) for row in rows if row.get(name) is not None],
            sparse=name.startswith(_SPARSE),
        )
        for name in names
    ]
    unknown = [name for name in names if rows and not any(name in row for row in rows)]
    if unknown and names != _SHOWN and rows[-1]["step"] > 0:
        raise ConfigError(f"plot: no metric {unknown[0]!r} in this run; metrics(run) has the names")
    return curve_svg(series, title=title, x_label="step", y_label=", ".join(names))
