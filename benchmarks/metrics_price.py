"""`roll bench metrics_price`: seconds per step of a run that is observed, and of the same run while it is not.

Observed: its metrics are fetched each second, and `roll watch` shows it in a browser. The run keeps two cores busy, on
which everything else runs, too. The details have the same with a core for the run, which answers the fetches there, and
another core for `roll watch`, the browser and the fetches; and the CPU seconds of these.

Short windows with and without alternate, so that other work on the machine affects both kinds alike. Between them the
browser and `roll watch` are paused, not closed: to load a page costs more than to show it for a window.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path

import numpy as np
import typer
from prometheus_client import CollectorRegistry, generate_latest

from benchmarks.recovery import read_events
from benchmarks.result import Result
from benchmarks.watch_browser import BrowserPage
from roll.errors import ConfigError
from roll.journal.events import WeightsPublished
from roll.journal.store import Journal
from roll.monitoring.monitor import Monitor, RunLabels
from roll.monitoring.server import ScrapeCollector
from roll.tracking.directory import JOURNAL, METRICS
from roll.tracking.sinks import read_lines
from roll.watch.changes import EVERY_S

GOAL = 1.01
RUN = """\
name: scraped
threads: {threads}
steps: 1000000
model:
  shape: {alphabet: "0123456789+=", hidden: 192, layers: 4, heads: 4, kv_heads: 2, mlp: 512, max_seq_len: 64}
algorithm: grpo
tasks: [{name: sums, data: {kind: arithmetic, count: 1000}, reward: exact}]
rollout: {groups_per_step: 16, group_size: 8, max_seq_len: 64, max_new_tokens: 32}
actor_infer: {max_num_seqs: 128}
actor_train: {optimizer: {lr: 1.0e-9}}
checkpoint: {every: 0}
journal: {keep_steps: 4}
tracking: {tensorboard: false}
metrics: {port: 0}
"""
"""The sizes of `trl_cpu`."""
_PATTERN = (True, False, False, True)
"""Whether a window is observed; a drift of the machine over four windows affects both kinds alike."""
ROUNDS, APART_ROUNDS, WINDOW_S = 40, 10, 3 * EVERY_S
"""Repetitions of the pattern where all share the cores, and where the run has its own; and seconds of a window.

The page looks for changes when it continues, and then at the same interval, so that a window has three looks.
"""
WARM_UP_S = 90.0
"""Seconds from the start of the browser to the first window: it has work of its own at the start."""
_BETWEEN_S = 1.0
"""Seconds between two windows. What the page has missed is drawn in them, not in the window."""
_EVERY_S = 1.0
_START_S = 600.0
_WARM_UP_STEPS = 10
_REPETITIONS = 100
_DRAW_S = _TIMEOUT_S = 60.0


def run() -> Result:
    """Mean seconds per step over all windows that are observed, against the others, in one run."""
    if shutil.which("chromium") is None:
        raise ConfigError("bench metrics_price: no chromium on this machine; `make programs` installs it")
    with tempfile.TemporaryDirectory() as folder:
        windows = measure(Path(folder), rounds=ROUNDS, page=True, shared=True)
        cpu_s = scrape_cpu(Path(folder) / "runs" / "scraped")
    with tempfile.TemporaryDirectory() as folder:
        apart = measure(Path(folder), rounds=APART_ROUNDS, page=True, shared=False)
    observed = [window for window in windows if window.observed]
    scrapes = [seconds for window in observed for seconds in window.scrapes_s]
    return Result(
        name="metrics_price",
        unit="s/step",
        higher_is_better=False,
        ours=seconds_per_step(windows, observed=True),
        peer=seconds_per_step(windows, observed=False),
        details={
            "goal": GOAL,
            **describe_pairs(windows),
            "cpu_s_per_scrape": round(cpu_s, 5),
            "seconds_per_scrape": round(statistics.median(scrapes), 4),
            "reader_cpu_s_per_s": round(reader_cpu(windows), 4),
            "server_cpu_s_per_s": round(reader_cpu(windows, server=True), 4),
            **{f"own_core_{name}": value for name, value in describe_pairs(apart).items()},
            "own_core_with_s": round(seconds_per_step(apart, observed=True), 4),
            "own_core_without_s": round(seconds_per_step(apart, observed=False), 4),
            "own_core_reader_cpu_s_per_s": round(reader_cpu(apart), 4),
            "own_core_server_cpu_s_per_s": round(reader_cpu(apart, server=True), 4),
            "with_s": [round(each.mean_s, 4) for each in observed],
            "without_s": [round(each.mean_s, 4) for each in windows if not each.observed],
        },
    )


class Window:
    """A time in which the run is observed, or not."""

    def __init__(self, *, observed: bool) -> None:
        self.observed = observed
        self.began = self.ended = time.time()
        self.scrapes_s: list[float] = []
        self.steps_s: list[float] = []
        """Seconds of each step within the window, as if all steps had equally many tokens."""
        self.server_cpu_s = 0.0
        """CPU seconds of `roll watch`."""
        self.reader_cpu_s = 0.0
        """CPU seconds of `roll watch`, the browser and the fetches."""

    @property
    def mean_s(self) -> float:
        """Mean seconds per step."""
        return statistics.mean(self.steps_s)


def seconds_per_step(windows: list[Window], *, observed: bool) -> float:
    """Mean over all steps of one kind of window: the cost of a scrape is in few of the steps, which a median hides."""
    return statistics.mean(seconds for each in windows if each.observed == observed for seconds in each.steps_s)


def describe_pairs(windows: Sequence[Window]) -> dict[str, float]:
    """The ratio of the two kinds with its standard error, from one comparison per repetition of the pattern.

    The order within a repetition cancels a drift, and repetitions differ by what else the machine does.
    """
    size = len(_PATTERN)
    repetitions = [list(windows[first : first + size]) for first in range(0, len(windows), size)]
    logs = [
        math.log(seconds_per_step(each, observed=True) / seconds_per_step(each, observed=False)) for each in repetitions
    ]
    ratio = math.exp(statistics.mean(logs))
    error = ratio * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan
    return {"paired_ratio": round(ratio, 4), "standard_error": round(error, 4)}


def equal_tokens(steps: Sequence[tuple[float, float]]) -> list[float]:
    """The seconds of steps, given with their tokens, as if each had the mean number; a straight line fits the effect.

    The lengths of responses are random, and are the same with and without observers.
    """
    if not steps:
        return []
    seconds, tokens = np.array(steps, np.float64).reshape(-1, 2).T
    centred = tokens - tokens.mean()
    slope = (centred @ seconds) / max(centred @ centred, 1.0)
    return (seconds - slope * centred).tolist()


def reader_cpu(windows: list[Window], *, server: bool = False) -> float:
    """CPU seconds per second of `roll watch`, the browser and the fetches, or of `roll watch`, while they observe."""
    observed = [window for window in windows if window.observed]
    spent_s = sum(each.server_cpu_s if server else each.reader_cpu_s for each in observed)
    return spent_s / sum(each.ended - each.began for each in observed)


def measure(
    folder: Path, *, rounds: int, page: bool, shared: bool, window_s: float = WINDOW_S, warm_up_s: float = WARM_UP_S
) -> list[Window]:
    """Windows of one run, in turns; with `page`, the observed ones also have its page open in a browser.

    With `shared`, everything is on the same two cores; otherwise the run has one of them for itself.
    """
    windows: list[Window] = []
    directory = folder / "runs" / "scraped"
    with ExitStack() as stack:
        first, *_, last = sorted(stack.enter_context(_restored_cores()))
        os.sched_setaffinity(0, {first, last} if shared else {last})
        url, trained = stack.enter_context(_training(folder, {first, last} if shared else {first}))
        scraper = stack.enter_context(closing(HTTPConnection(url.removeprefix("http://"), timeout=_TIMEOUT_S)))
        show = stack.enter_context(_page(directory)) if page else _show_nothing
        time.sleep(warm_up_s if page else 0.0)
        for _ in range(rounds):
            for observed in _PATTERN:
                server = show(observed)
                time.sleep(_BETWEEN_S)
                window = Window(observed=observed)
                before, server_before = _cpu_s(os.getpid()) - _cpu_s(trained), _cpu_s(server)
                _fill(window, scraper, window_s)
                window.reader_cpu_s = _cpu_s(os.getpid()) - _cpu_s(trained) - before
                window.server_cpu_s = _cpu_s(server) - server_before
                windows.append(window)
        show(True)
    _add_steps(windows, directory)
    return windows


def _show_nothing(_: bool) -> int:
    return 0


def _add_steps(windows: Sequence[Window], directory: Path) -> None:
    """Give each window the steps that are entirely in it."""
    published = {entry.event.step: entry.time for entry in read_events(directory, WeightsPublished)}
    lines = read_lines(directory / METRICS)
    tokens: dict[int, float] = {line["step"]: line["tokens/generated"] for line in lines if "tokens/generated" in line}
    steps = [
        (window, after, published[before], published[after])
        for window in windows
        for before, after in pairwise(published)
    ]
    inside = [each for each in steps if each[0].began <= each[2] and each[3] <= each[0].ended and each[1] in tokens]
    adjusted = equal_tokens([(end - start, tokens[step]) for _, step, start, end in inside])
    for (window, *_), seconds in zip(inside, adjusted, strict=True):
        window.steps_s.append(seconds)


def scrape_cpu(directory: Path) -> float:
    """CPU seconds of a scrape after one second of the finished run, whatever else the machine does meanwhile."""
    labels = RunLabels(run="", version="", algorithm="", model="", steps=1, trajectories_per_step=1)
    monitor, newest = Monitor(labels, stalled_after_s=1.0), read_lines(directory / METRICS)[-1]
    monitor.steps.write(newest["step"], {name: value for name, value in newest.items() if value is not None})
    with closing(Journal(directory / JOURNAL)) as journal:
        events = [entry.time for entry in journal.events()]
        monitor.attach(journal)
        first_s = _cpu_of_scrape(monitor)
        steady_s = statistics.mean(_cpu_of_scrape(monitor) for _ in range(_REPETITIONS))
    return steady_s + first_s / (events[-1] - events[0])


def _cpu_of_scrape(monitor: Monitor) -> float:
    before, registry = time.thread_time(), CollectorRegistry()
    registry.register(ScrapeCollector(monitor.scrape()))
    generate_latest(registry)
    return time.thread_time() - before


def _fill(window: Window, scraper: HTTPConnection, window_s: float) -> None:
    """Wait until the window is over; scrape meanwhile if it is observed."""
    scraper.close()  # it opens again; the run closes a connection that was idle
    while (left_s := window.began + window_s - time.time()) > 0:
        before = time.time()
        if window.observed:
            _scrape(scraper)
            window.scrapes_s.append(time.time() - before)
        time.sleep(min(left_s, max(0.0, _EVERY_S - (time.time() - before))))
    window.ended = time.time()


@contextmanager
def _page(directory: Path) -> Iterator[Callable[[bool], int]]:
    """A function that lets the page of a run and its server continue, or pauses them; it returns the server's pid.

    At the end the page must show a step of the last windows: otherwise nothing was measured.
    """
    command = [sys.executable, "-m", "roll", "watch", str(directory), "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        link = server.stdout.readline().strip()
        with BrowserPage(link) as browser:

            def show(on: bool) -> int:
                for pid in (server.pid, *descendants(browser.pid)):
                    with suppress(ProcessLookupError):  # it has ended since it was listed
                        os.kill(pid, signal.SIGCONT if on else signal.SIGSTOP)
                return server.pid

            try:
                yield show
                show(True)
                _check_page(browser, directory)
            finally:
                show(True)
                server.kill()


def _check_page(browser: BrowserPage, directory: Path) -> None:
    """Raise `RuntimeError` unless the page shows the newest steps; it has some time to draw them."""
    newest: int = read_lines(directory / METRICS)[-1]["step"]
    deadline = time.monotonic() + _DRAW_S
    shown = -1
    while shown < newest and time.monotonic() < deadline:
        time.sleep(EVERY_S)
        shown = int(browser.read(".figures dd").partition(" ")[0].replace(",", ""))
    if shown < newest:
        raise RuntimeError(f"the page shows step {shown} of {newest}")


@contextmanager
def _restored_cores() -> Iterator[set[int]]:
    """The cores that this process may use, before and after the block."""
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        raise ConfigError("bench metrics_price: needs two cores; found 1")
    try:
        yield cores
    finally:
        os.sched_setaffinity(0, cores)


def descendants(pid: int) -> list[int]:
    """A process and all that it has started."""
    try:
        children = [each.read_text() for each in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return [pid]  # it has ended since it was listed
    return [pid, *(each for child in " ".join(children).split() for each in descendants(int(child)))]


def _cpu_s(pid: int) -> float:
    """CPU seconds of a process and all that it has started."""
    total = 0
    for each in descendants(pid):
        with suppress(OSError):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))
    return total / os.sysconf("SC_CLK_TCK")


@contextmanager
def _training(folder: Path, cores: set[int]) -> Iterator[tuple[str, int]]:
    """The address of the metrics of a run that has done its first steps, and its process; interrupts it at the end."""
    (folder / "run.yaml").write_text(RUN.replace("{threads}", str(len(cores))), encoding="utf-8")
    command = [sys.executable, "-m", "roll", "train", "run.yaml"]
    with (folder / "output").open("w", encoding="utf-8") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)
        os.sched_setaffinity(process.pid, cores)
        try:
            yield _wait_for_steps(folder, process), process.pid
            process.send_signal(signal.SIGINT)
            process.wait(_START_S)
        finally:
            process.kill()
            process.wait()


def _wait_for_steps(folder: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        match = re.search(r"http://[\d.:]+", (folder / "output").read_text(encoding="utf-8"))
        if match and len(read_events(folder / "runs" / "scraped", WeightsPublished)) > _WARM_UP_STEPS:
            return match[0]
        time.sleep(0.5)
    typer.echo((folder / "output").read_text(encoding="utf-8"), err=True)
    raise RuntimeError("the run did not start")


def _scrape(connection: HTTPConnection) -> None:
    """Fetch the metrics over a connection that stays open, as Prometheus does."""
    connection.request("GET", "/metrics")
    response = connection.getresponse()
    if response.status != 200 or not response.read():
        raise RuntimeError(f"/metrics answered with status {response.status}")
