"""Queue scheduling and prompt replication against rollout in batches.

The queue is the real scheduler. The peers replay lengths of the same distribution without one: a device receives whole
prompts, and all responses of a prompt occupy it until the longest has ended.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean

from benchmarks.papers.figure import Claim, Figure, Report, curve
from roll.envs.base import StepResult
from roll.sim.engines import GeneratorSpeed
from roll.sim.run import SimulationConfig, simulate
from roll.sim.workload import QUESTION, LogNormal
from roll.types import Message, Task

DEVICES, SLOTS = 8, 8
GROUPS, SIBLINGS = 8, 8
REDUNDANT = (0, 2, 4, 8, 16)
UNIFORM = 0.5
"""Share of the prompts whose responses all have the same reward; they are replaced."""
REPLICATED = ((16, 16), (32, 16), (64, 16), (16, 32), (16, 64))
"""Prompts and responses per prompt."""
_REPLICATED_SLOTS = 32
_LENGTHS = LogNormal(median=40.0, sigma=1.1)
_LONGEST = 800
"""Most tokens of a response, 20 times the median."""
_TOKENS_PER_S = 2.0
_STEPS = 30


class GradedEnv:
    """One response; for some tasks all responses are right, for the others every second one."""

    def __init__(self, task: Task, *, uniform: float = UNIFORM) -> None:
        self._uniform = random.Random(task.seed).random() < uniform

    async def start(self) -> tuple[Message, ...]:
        return (Message("user", QUESTION),)

    async def step(self, response: str) -> StepResult:
        right = self._uniform or sum(map(int, response)) % 2 == 0
        return StepResult(messages=(), reward=float(right), done=True, metrics={"waited_s": 0.0})

    async def close(self) -> None:
        """Nothing to release."""


def queue(report: Report) -> Figure:
    """Generation time of a step over the number of redundant prompts, with prompts that are filtered out."""
    batch_s = fmean(_filtered_batch_steps(random.Random(0)))
    report(f"batches of {GROUPS} prompts until {GROUPS} have passed the filter: {batch_s:.0f} s per step")
    times = {redundant: _queue_s(redundant, report) for redundant in REDUNDANT}
    rows = [[str(redundant), f"{step_s:.0f}", f"{batch_s / step_s:.2f}"] for redundant, step_s in times.items()]
    values = list(times.values())
    return Figure(
        title=f"Queue scheduling: {GROUPS} prompts of {SIBLINGS} responses, half of the prompts filtered",
        x_label="redundant prompts",
        y_label="seconds of generation per step",
        series=[
            curve("queue scheduling", list(times.items())),
            curve("batch rollout", [(redundant, batch_s) for redundant in REDUNDANT]),
        ],
        columns=["redundant prompts", "generation per step (s)", "gain over batch rollout"],
        rows=[["batch rollout", f"{batch_s:.0f}", "1.00"], *rows],
        claims=[
            Claim(text="a queue is faster than batches, also without redundant prompts", shown=values[0] < batch_s),
            Claim(text="redundant prompts shorten the step further", shown=values[-1] < values[0]),
            Claim(
                text=f"with {REDUNDANT[-1]} redundant prompts the gain is at least 3", shown=batch_s > 3 * values[-1]
            ),
        ],
    )


def replication(report: Report) -> Figure:
    """Generation time with one request per response, against one request per prompt."""
    rows: list[list[str]] = []
    gains: list[tuple[float, float]] = []
    for prompts, responses in REPLICATED:
        result = simulate(simulation(_REPLICATED_SLOTS, prompts, responses, steps=_STEPS // 3))
        ours_s = result.mean("time/wait")
        prompt_s = fmean(
            prompt_requests_s(groups, devices=DEVICES, slots=_REPLICATED_SLOTS) for groups in result.alone_s
        )
        report(f"{prompts} x {responses}: {prompt_s:.0f} s per step by prompt, {ours_s:.0f} s by response")
        rows.append([f"{prompts} x {responses}", f"{prompt_s:.0f}", f"{ours_s:.0f}", f"{prompt_s / ours_s:.2f}"])
        gains.append((prompts * responses, prompt_s / ours_s))
    by_prompts, by_responses = gains[:3], [gains[0], *gains[3:]]
    return Figure(
        title="Prompt replication: one request per response, against one per prompt",
        x_label="responses per step",
        y_label="gain in generation time",
        series=[
            curve("more prompts, 16 responses each", by_prompts),
            curve("16 prompts, more responses", by_responses),
        ],
        columns=["prompts x responses", "request per prompt (s)", "request per response (s)", "gain"],
        rows=rows,
        claims=[
            Claim(text="replication is never slower", shown=min(gain for _, gain in gains) >= 1),
            Claim(text="the gain grows with the number of prompts", shown=_grows(by_prompts)),
            Claim(text="the gain grows with the number of responses per prompt", shown=_grows(by_responses)),
        ],
    )


def prompt_requests_s(groups: Sequence[Sequence[float]], *, devices: int, slots: int) -> float:
    """Seconds until all groups are done if each is one request, which a queue gives to the first free device.

    A device decodes as many groups at a time as fit in its slots, at least one. Of a larger group it decodes `slots`
    responses at a time.
    """
    lanes = devices * max(1, slots // max(map(len, groups)))
    return makespan_s([makespan_s(group, slots) for group in groups], lanes)


def makespan_s(durations_s: Sequence[float], slots: int) -> float:
    """Seconds until all are done, if each starts in the first free slot."""
    free = [0.0] * slots
    for duration_s in durations_s:
        heapq.heapreplace(free, free[0] + duration_s)
    return max(free)


def _grows(points: Sequence[tuple[float, float]]) -> bool:
    return points[-1][1] > points[0][1]


def _filtered_batch_steps(draws: random.Random) -> Iterator[float]:
    """Generation times of steps without a queue: whole batches, until enough prompts have passed the filter."""
    for _ in range(100 * _STEPS):
        passed, step_s = 0, 0.0
        while passed < GROUPS:
            longest = max(_LENGTHS.draw(draws.getrandbits(48)) for _ in range(GROUPS * SIBLINGS))
            step_s += min(longest, _LONGEST) / _TOKENS_PER_S
            passed += sum(draws.random() >= UNIFORM for _ in range(GROUPS))
        yield step_s


def _queue_s(redundant: int, report: Report) -> float:
    setting = simulation(SLOTS, GROUPS, SIBLINGS, steps=2 * _STEPS)
    setting = replace(
        setting,
        env={"kind": "benchmarks.papers.queueing:GradedEnv"},
        source={"filters": ["mixed"]},
        rollout={"max_new_tokens": _LONGEST, "redundant_groups": redundant},
    )
    result = simulate(setting)
    step_s = result.mean("time/wait")
    report(f"queue, {redundant} redundant prompts: {step_s:.0f} s per step ({result.real_s:.0f} s)")
    return step_s


def simulation(slots: int, groups: int, siblings: int, *, steps: int) -> SimulationConfig:
    """A synchronous run on all devices; only generation takes time."""
    return SimulationConfig(
        steps=steps,
        lengths=_LENGTHS,
        speed=GeneratorSpeed(slots=slots, tokens_per_s=_TOKENS_PER_S),
        num_generators=DEVICES,
        update_s=0.0,
        groups_per_step=groups,
        group_size=siblings,
        rollout={"max_new_tokens": _LONGEST},
    )
