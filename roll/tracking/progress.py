"""Progress of a run on the console: a live view on a terminal, plain lines anywhere else, JSON objects on request.

The view is redrawn only on updates and redirects no stream, so a `breakpoint()` stays usable.
"""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from roll.tracking.log import announce, structured
from roll.tracking.sinks import Sink

_SHOWN: dict[str, tuple[str, Callable[[float], str]]] = {
    "reward/mean": ("reward", lambda value: f"{value:.3f}"),
    "sft/loss": ("loss", lambda value: f"{value:.3f}"),
    "preference/loss": ("loss", lambda value: f"{value:.3f}"),
    "distillation/loss": ("loss", lambda value: f"{value:.4f}"),
    "preference/accuracy": ("pairs right", lambda value: f"{value:.3f}"),
    "reward_model/loss": ("loss", lambda value: f"{value:.3f}"),
    "reward_model/accuracy": ("right", lambda value: f"{value:.3f}"),
    "sft/turns": ("turns", lambda value: f"{value:,.0f}"),
    "sft/tokens": ("tokens", lambda value: f"{value:,.0f}"),
    "speed/tokens_per_s": ("tokens/s", lambda value: f"{value:,.0f}"),
    "staleness/mean": ("staleness", lambda value: f"{value:.2f}"),
}
_LOG = logging.getLogger(__name__)
_HELD_OUT = ("validation/accuracy", "validation/reward", "sft/accuracy", "reward_model/held_out_accuracy")
_DOMAIN = re.compile(r"domain/(.+)/reward")
_MAX_NAME, _MAX_DOMAINS = 12, 60
"""Most characters of a domain's name, and of the rewards of all domains."""
_WINDOW = 20
"""Number of recent updates that the remaining time is estimated from."""
_PLAIN_EVERY_S = 5.0
_STEP_EVERY_S = 2.0
"""Least time between two plain lines about steps; a step with a held-out measurement is always printed."""


class Progress:
    """Shows the state of a run of `total_steps`: start, update after each step, close."""

    def __init__(
        self,
        total_steps: int,
        title: str,
        *,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total, self._title, self._clock = total_steps, title, clock
        self._console, self._structured = console or Console(), structured()
        self._live = Live(
            console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False, transient=False
        )
        self._marks: deque[tuple[float, int]] = deque(maxlen=_WINDOW)
        self._held_out: float | None = None
        self._domains: dict[str, float] = {}
        """Newest reward of each domain; a step need not train on all of them."""
        self._last_printed: float | None = None
        """Time of the last plain line."""
        self._pending = ""
        """The newest plain line that has not been printed."""

    def start(self) -> None:
        if self._console.is_terminal and not self._structured:
            self._live.start()
        else:
            self.note(f"{self._title}: {self._total} steps")

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show that `step` steps are done, the last of them with `metrics`."""
        self._marks.append((self._clock(), step))
        for name in _HELD_OUT:
            if name in metrics:
                self._held_out = metrics[name]
                break
        self._domains |= {match[1]: value for name, value in metrics.items() if (match := _DOMAIN.fullmatch(name))}
        values, phases = self._values(metrics), _phases(metrics)
        parts = [f"{name} {value}" for name, value in values.items()]
        line = " | ".join([f"step {step}/{self._total}", *parts, *phases[:3], f"eta {self._eta(step)}"])
        if self._structured:
            announce(line)
            return
        _LOG.info("%s", line)
        if self._live.is_started:
            self._live.update(self._view(step, values, phases), refresh=True)
        else:
            self._print_step(line, now=any(name in metrics for name in _HELD_OUT))

    def note(self, line: str) -> None:
        """Print one permanent line above the live view."""
        if self._structured:
            announce(line)
            return
        self._console.print(Text(line), soft_wrap=True)

    def close(self) -> None:
        """Show the last step and release the terminal."""
        if self._live.is_started:
            self._live.stop()
        elif self._pending:
            self._print_step(self._pending, now=True)

    def _print_step(self, line: str, *, now: bool) -> None:
        """Print a plain line, or keep it pending if the last one is too recent."""
        time_s = self._clock()
        if now or self._last_printed is None or time_s - self._last_printed >= _STEP_EVERY_S:
            self._last_printed, self._pending = time_s, ""
            self.note(line)
        else:
            self._pending = line

    def _values(self, metrics: Mapping[str, float]) -> dict[str, str]:
        values = {title: show(metrics[name]) for name, (title, show) in _SHOWN.items() if name in metrics}
        if len(self._domains) > 1:
            values["by domain"] = _domain_rewards(self._domains)
        return values if self._held_out is None else {**values, "held-out": f"{self._held_out:.3f}"}

    def _view(self, step: int, values: dict[str, str], phases: list[str]) -> Group:
        head = Table.grid(padding=(0, 2))
        head.add_row(
            Text(self._title, style="bold"),
            ProgressBar(total=self._total, completed=step, width=30),
            Text(f"step {step}/{self._total}"),
            Text(f"eta {self._eta(step)}", style="cyan"),
        )
        numbers = Text("  ").join(Text.assemble((name, "dim"), " ", (value, "bold")) for name, value in values.items())
        return Group(head, numbers, Text("  ".join(phases), style="dim"))

    def _eta(self, step: int) -> str:
        (start, first), (now, last) = self._marks[0], self._marks[-1]
        if last <= first:
            return "-"
        return _duration((now - start) / (last - first) * max(self._total - step, 0))


class Reporter:
    """Sends the metrics of each step to the terminal and to every sink; callable with a step and its metrics."""

    def __init__(self, progress: Progress, sinks: Sequence[Sink]) -> None:
        self._progress, self._sinks = progress, sinks
        progress.start()

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        for sink in self._sinks:
            sink.write(step, metrics)
        self._progress.update(step, metrics)

    def show(self, line: str) -> None:
        """Print one line above the progress."""
        self._progress.note(line)

    def note(self, line: str) -> None:
        """Log a warning, which the terminal shows at once."""
        _LOG.warning("%s", line)

    def close(self) -> None:
        self._progress.close()
        for sink in self._sinks:
            sink.close()


@contextmanager
def bar(
    total: int, description: str, *, console: Console | None = None, clock: Callable[[], float] = time.monotonic
) -> Generator[Callable[[int], None]]:
    """Progress bar for work of more than a few seconds; call the result with the number of items just done."""
    console = console or Console()
    live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False, transient=True)
    shown, done = clock(), 0

    def advance(num: int) -> None:
        nonlocal shown, done
        done += num
        wait = 0.1 if live.is_started else _PLAIN_EVERY_S
        if clock() - shown < wait:
            return
        shown = clock()
        if live.is_started:
            live.update(_bar_view(total, done, description), refresh=True)
        elif structured():
            announce(f"{description} {done}/{total}")
        else:
            console.print(Text(f"{description} {done}/{total}"), soft_wrap=True)

    if not console.is_terminal or structured():
        yield advance
        return
    with live:
        live.update(_bar_view(total, 0, description), refresh=True)
        yield advance


def _bar_view(total: int, done: int, description: str) -> Table:
    view = Table.grid(padding=(0, 2))
    view.add_row(Text(description), ProgressBar(total=total, completed=done, width=30), Text(f"{done}/{total}"))
    return view


def _phases(metrics: Mapping[str, float]) -> list[str]:
    """Seconds per phase, the longest first."""
    spent = [(value, name.removeprefix("time/")) for name, value in metrics.items() if name.startswith("time/")]
    return [f"{name} {value:.1f}s" for value, name in sorted(spent, reverse=True) if name != "step"]


def _domain_rewards(rewards: Mapping[str, float]) -> str:
    """As many domains as fit, the lowest reward first, and the number of the others."""
    texts = [f"{name[:_MAX_NAME]} {value:.2f}" for name, value in sorted(rewards.items(), key=lambda item: item[1])]
    shown = texts[:1]
    for text in texts[1:]:
        if len(", ".join([*shown, text])) > _MAX_DOMAINS:
            return f"{', '.join(shown)}, {len(texts) - len(shown)} more"
        shown.append(text)
    return ", ".join(shown)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
