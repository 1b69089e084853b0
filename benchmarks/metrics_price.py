"""`roll bench metrics_price`: seconds per step of a run that is observed, and of the same run while it is not.

Observed: its metrics are fetched each second, and `roll watch` shows it in a browser. The run keeps two cores busy, on
which everything else runs, too. The details have the same with a core for the run, which answers the fetches there, and
another core for `roll watch`, the browser and the fetches; and the CPU seconds of these.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import pairwise
from pathlib import Path

import typer
from prometheus_client import CollectorRegistry, generate_latest

from benchmarks.recovery import read_events
from benchmarks.result import Result
from benchmarks.watch_browser import open_tab
from roll.errors import ConfigError
from roll.journal.events import WeightsPublished
from roll.journal.store import Journal
from roll.monitoring.monitor import Monitor, RunLabels
from roll.monitoring.server import ScrapeCollector
from roll.tracking.directory import JOURNAL, METRICS
from roll.tracking.sinks import read_lines

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
ROUNDS, APART_ROUNDS, WINDOW_S = 10, 5, 10.0
"""Repetitions of the pattern where all share the cores, and where the run has its own; and seconds of a window."""
_EVERY_S = 1.0
_START_S = 600.0
_WARM_UP_STEPS = 10
_REPETITIONS = 100


def run() -> Result:
    """Mean seconds per step over all windows that are observed, against the others, in one run."""
    if shutil.which("chromium") is None:
        raise ConfigError("bench metrics_price: no chromium on this machine; `make programs` installs it")
    with tempfile.TemporaryDirectory() as folder:
        windows = measure(Path(folder), rounds=ROUNDS, window_s=WINDOW_S, page=True, shared=True)
        cpu_s = scrape_cpu(Path(folder) / "runs" / "scraped")
    with tempfile.TemporaryDirectory() as folder:
        apart = measure(Path(folder), rounds=APART_ROUNDS, window_s=WINDOW_S, page=True, shared=False)
    ours, peer = (seconds_per_step(windows, observed=observed) for observed in (True, False))
    own_core = [seconds_per_step(apart, observed=observed) for observed in (True, False)]
    observed = [window for window in windows if window.observed]
    scrapes = [seconds for window in observed for seconds in window.scrapes_s]
    return Result(
        name="metrics_price",
        unit="s/step",
        higher_is_better=False,
        ours=ours,
        peer=peer,
        details={
            "goal": GOAL,
            "cpu_s_per_scrape": round(cpu_s, 5),
            "seconds_per_scrape": round(statistics.median(scrapes), 4),
            "reader_cpu_s_per_s": round(reader_cpu(windows), 4),
            "server_cpu_s_per_s": round(reader_cpu(windows, server=True), 4),
            "own_core_with_s": round(own_core[0], 4),
            "own_core_without_s": round(own_core[1], 4),
            "own_core_ratio": round(own_core[0] / own_core[1], 4),
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
        """Seconds of each step within the window."""
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


def reader_cpu(windows: list[Window], *, server: bool = False) -> float:
    """CPU seconds per second of `roll watch`, the browser and the fetches, or of `roll watch`, while they observe."""
    observed = [window for window in windows if window.observed]
    spent_s = sum(each.server_cpu_s if server else each.reader_cpu_s for each in observed)
    return spent_s / sum(each.ended - each.began for each in observed)


def measure(folder: Path, *, rounds: int, window_s: float, page: bool, shared: bool) -> list[Window]:
    """Windows of one run, in turns; with `page`, the observed ones also have its page open in a browser.

    With `shared`, everything is on the same two cores; otherwise the run has one of them for itself.
    """
    windows: list[Window] = []
    with ExitStack() as stack:
        first, *_, last = sorted(stack.enter_context(_restored_cores()))
        os.sched_setaffinity(0, {first, last} if shared else {last})
        url, trained = stack.enter_context(_training(folder, {first, last} if shared else {first}))
        show: Callable[[bool], int] = stack.enter_context(_page(folder / "runs" / "scraped")) if page else lambda on: 0
        for _ in range(rounds):
            for observed in _PATTERN:
                server = show(observed)
                window = Window(observed=observed)
                before, server_before = _cpu_s(os.getpid()) - _cpu_s(trained), _cpu_s(server)
                _fill(window, url, window_s)
                window.reader_cpu_s = _cpu_s(os.getpid()) - _cpu_s(trained) - before
                window.server_cpu_s = _cpu_s(server) - server_before
                windows.append(window)
    times = [entry.time for entry in read_events(folder / "runs" / "scraped", WeightsPublished)]
    for window in windows:
        inside = [at for at in times if window.began <= at <= window.ended]
        window.steps_s = [after - before for before, after in pairwise(inside)]
    return windows


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


def _fill(window: Window, url: str, window_s: float) -> None:
    """Wait until the window is over; scrape meanwhile if it is observed."""
    while (left_s := window.began + window_s - time.time()) > 0:
        before = time.time()
        if window.observed:
            _fetch(f"{url}/metrics")
            window.scrapes_s.append(time.time() - before)
        time.sleep(min(left_s, max(0.0, _EVERY_S - (time.time() - before))))
    window.ended = time.time()


@contextmanager
def _page(directory: Path) -> Iterator[Callable[[bool], int]]:
    """A function that opens and closes the page of a run and returns the pid of its server, stopped while closed."""
    command = [sys.executable, "-m", "roll", "watch", str(directory), "--no-open"]
    with open_tab() as tab, subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        link = server.stdout.readline().strip()
        tab.goto(link)

        def show(on: bool) -> int:
            tab.goto("about:blank")
            server.send_signal(signal.SIGCONT if on else signal.SIGSTOP)
            if on:
                tab.goto(f"{link.partition('?')[0]}#/run/{directory.name}/overview")
            return server.pid

        try:
            yield show
        finally:
            server.kill()


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


def _cpu_s(pid: int) -> float:
    """CPU seconds of a process and all that it has started."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = [each.read_text() for each in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return 0.0  # it has ended since it was listed
    own = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return own + sum(_cpu_s(int(child)) for child in " ".join(children).split())


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


def _fetch(url: str) -> None:
    with urllib.request.urlopen(url, timeout=60) as response:
        response.read()
