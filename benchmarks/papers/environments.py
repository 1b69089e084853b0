"""Environment-level asynchrony and redundant environments, with Gaussian latencies on virtual time.

Both use the real scheduler at staleness 0. The peer of the first steps all environments together, so that every turn
waits for the slowest one.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from dataclasses import replace
from statistics import fmean

from benchmarks.papers.figure import Claim, Figure, Report, curve
from roll.envs.base import StepResult
from roll.sim.engines import GeneratorSpeed
from roll.sim.run import SimulationConfig, simulate
from roll.sim.workload import QUESTION, Constant
from roll.types import Message, Task

GROUPS, SIBLINGS, TURNS = 16, 8, 20
MEANS_S, SPREADS_S = (5.0, 10.0, 20.0), (0.0, 2.5, 5.0, 10.0)
BATCH_GROUPS, BATCH_TURNS = 32, 4
EXTRA_GROUPS, EXTRA_SIBLINGS = (0, 1, 2, 4, 8), (0, 1, 2, 4)
MEAN_S, SPREAD_S = 10.0, 5.0
SLOW, SLOW_FACTOR = 0.02, 10.0
"""Probability that an environment is slow, and how many times longer it takes."""
_GENERATION_S = 3.0
"""Decoding time of a turn."""
_STEPS, _REDUNDANT_STEPS = 2, 9


class GaussianEnv:
    """Waits a Gaussian time, at least 0, after each of `turns` responses.

    A slow one waits `slow_factor` times as long in every turn; `slow_by` is `attempt` or `task`, whose attempts are
    then all slow.
    """

    def __init__(
        self, task: Task, *, turns: int, mean_s: float, spread_s: float, slow: float = 0.0, slow_by: str = "attempt"
    ) -> None:
        self._seed, self._turns, self._mean_s, self._spread_s = task.seed, turns, mean_s, spread_s
        self._slow, self._by_task = slow, slow_by == "task"
        self._draws = random.Random(task.seed)
        self._factor = 1.0
        self._num_turns, self._waited_s = 0, 0.0

    async def start(self) -> tuple[Message, ...]:
        return (Message("user", QUESTION),)

    async def step(self, response: str) -> StepResult:
        if self._num_turns == 0:
            self._begin(response)
        self._num_turns += 1
        latency_s = self._factor * max(0.0, self._draws.gauss(self._mean_s, self._spread_s))
        self._waited_s += latency_s
        await asyncio.sleep(latency_s)
        return StepResult(
            messages=(Message("user", QUESTION),),
            reward=float(self._draws.random() < 0.5),
            done=self._num_turns == self._turns,
            metrics={"waited_s": self._waited_s},
        )

    async def close(self) -> None:
        """Nothing to release."""

    def _begin(self, response: str) -> None:
        """Draw from the first response, which differs between siblings."""
        task_is_slow = self._draws.random() < self._slow
        self._draws = random.Random(zlib.crc32(f"{self._seed} {response[:64]}".encode()))
        is_slow = task_is_slow if self._by_task else self._draws.random() < self._slow
        self._factor = SLOW_FACTOR if is_slow else 1.0


def asynchrony(report: Report) -> Figure:
    """Gain of independent environments over environments that are stepped together."""
    gains: dict[float, list[float]] = {}
    rows: list[list[str]] = []
    for mean_s in MEANS_S:
        for spread_s in SPREADS_S:
            env = {"turns": TURNS, "mean_s": mean_s, "spread_s": spread_s}
            result = simulate(_setting(GROUPS, SIBLINGS, env, steps=_STEPS))
            ours_s, together_s = result.mean("time/wait"), stepped_together_s(mean_s, spread_s)
            gains.setdefault(mean_s, []).append(together_s / ours_s)
            row = [f"{mean_s:g}", f"{spread_s:g}", f"{together_s:.0f}", f"{ours_s:.0f}", f"{together_s / ours_s:.2f}"]
            report(f"mean {row[0]} s, spread {row[1]} s: together {row[2]} s, independent {row[3]} s per step")
            rows.append(row)
    return Figure(
        title="Environment-level asynchrony: Gaussian latencies",
        x_label="standard deviation of the latency (s)",
        y_label="gain in rollout time",
        series=[
            curve(f"mean {mean_s:g} s", list(zip(SPREADS_S, values, strict=True))) for mean_s, values in gains.items()
        ],
        columns=["mean (s)", "spread (s)", "stepped together (s)", "independent (s)", "gain"],
        rows=rows,
        claims=[
            Claim(
                text="the gain grows with the spread of the latency",
                shown=all(values == sorted(values) for values in gains.values()),
            ),
            Claim(text="at mean 10 s and spread 10 s it is at least 2", shown=gains[10.0][-1] >= 2),
        ],
    )


def redundancy(report: Report) -> Figure:
    """Rollout time over additional groups and siblings, where single environments or all of a task are slow."""
    times: dict[tuple[str, int, int], float] = {}
    for slow_by in ("attempt", "task"):
        for groups, siblings in [*((each, 0) for each in EXTRA_GROUPS), *((0, each) for each in EXTRA_SIBLINGS[1:])]:
            times[slow_by, groups, siblings] = _redundant_s(slow_by, groups, siblings, report)
    names = {"attempt": "single environments slow", "task": "all environments of a task slow"}
    series = [
        curve(
            f"{kind}, {names[slow_by]}",
            [
                (groups * SIBLINGS + siblings * BATCH_GROUPS, step_s)
                for (by, groups, siblings), step_s in times.items()
                if by == slow_by and (siblings == 0 if kind == "groups" else groups == 0)
            ],
        )
        for slow_by in names
        for kind in ("groups", "siblings")
    ]
    cells = [(groups, siblings) for by, groups, siblings in times if by == "attempt"]
    rows = [
        [
            f"{BATCH_GROUPS + groups} x {SIBLINGS + siblings}",
            *(f"{times[by, groups, siblings]:.0f}" for by in names),
            *(f"{times[by, 0, 0] / times[by, groups, siblings]:.2f}" for by in names),
        ]
        for groups, siblings in cells
    ]
    return Figure(
        title=f"Redundant environments: {SLOW:.0%} are {SLOW_FACTOR:g} times slower",
        x_label=f"attempts beyond {BATCH_GROUPS} x {SIBLINGS}",
        y_label="seconds of rollout per step",
        series=series,
        columns=[
            "groups x siblings",
            *(f"{name} (s)" for name in names.values()),
            *(f"gain, {name}" for name in names.values()),
        ],
        rows=rows,
        claims=[
            Claim(
                text="additional groups shorten the step in both cases",
                shown=all(times[by, EXTRA_GROUPS[-1], 0] < 0.7 * times[by, 0, 0] for by in names),
            ),
            Claim(
                text="where all environments of a task are slow, additional groups help more than additional siblings",
                shown=times["task", EXTRA_GROUPS[-1], 0] < min(times["task", 0, each] for each in EXTRA_SIBLINGS),
            ),
        ],
    )


def stepped_together_s(mean_s: float, spread_s: float) -> float:
    """Mean seconds of a rollout in which every turn ends with its slowest environment."""
    draws = random.Random(0)
    slowest = (
        max(max(0.0, draws.gauss(mean_s, spread_s)) for _ in range(GROUPS * SIBLINGS)) for _ in range(TURNS * 20)
    )
    return TURNS * (_GENERATION_S + fmean(slowest))


def _redundant_s(slow_by: str, groups: int, siblings: int, report: Report) -> float:
    env = {"turns": BATCH_TURNS, "mean_s": MEAN_S, "spread_s": SPREAD_S, "slow": SLOW, "slow_by": slow_by}
    setting = _setting(BATCH_GROUPS, SIBLINGS, env, steps=_REDUNDANT_STEPS)
    result = simulate(replace(setting, rollout={"redundant_groups": groups, "redundant_siblings": siblings}))
    step_s = result.mean("time/wait", 1)
    report(f"slow by {slow_by}, {groups} more groups, {siblings} more siblings: {step_s:.0f} s ({result.real_s:.0f} s)")
    return step_s


def _setting(groups: int, siblings: int, env: dict[str, object], *, steps: int) -> SimulationConfig:
    return SimulationConfig(
        steps=steps,
        lengths=Constant(value=_GENERATION_S * 10),
        speed=GeneratorSpeed(slots=2 * groups * siblings, tokens_per_s=10.0),
        num_generators=1,
        update_s=0.0,
        groups_per_step=groups,
        group_size=siblings,
        turns=int(str(env["turns"])),
        env={"kind": "benchmarks.papers.environments:GaussianEnv", **env},
    )
