"""Four workloads on which the search of `roll plan` is compared with an exhaustive one."""

from __future__ import annotations

import math
import random
import statistics
import time
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from roll.config.load import load
from roll.placement.facts import facts_of
from roll.placement.machine import parse_cluster
from roll.plan.calibration import RunCalibration
from roll.plan.candidates import PlanBounds, placed_runs, redundancy_choices, staleness_choices
from roll.plan.predict import StepSchedule
from roll.plan.search import PlanSearch, RatedCandidate, rate, simulate_schedule
from roll.plan.speeds import modelled_times
from roll.plan.workload import stated_workload

MAX_STALENESS = 2.0
_FILE = """
executor: ray
steps: 100
model: {{path: {model}}}
algorithm: {{recipe: grpo}}
tasks:
  - {{name: sums, data: {{kind: arithmetic}}, reward: exact}}
rollout: {{groups_per_step: {groups}, group_size: {siblings}, max_seq_len: {max_seq_len}, max_new_tokens: {limit}}}
actor_train: {{backend: fsdp2, dtype: bfloat16, activation_checkpointing: true, tokens_per_microbatch: {tokens}}}
actor_infer: {{backend: vllm, dtype: bfloat16}}
weight_sync: {{transport: gloo}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanWorkload:
    """A run file, a cluster, and the lengths and latencies of its attempts."""

    cluster: str
    model: str
    groups: int
    siblings: int
    limit: int
    lengths: str
    turns: int = 1
    wait_median_s: float = 0.0
    wait_sigma: float = 1.2

    @property
    def text(self) -> str:
        """The run file."""
        return _FILE.format(
            model=f"models/{self.model}",
            groups=self.groups,
            siblings=self.siblings,
            max_seq_len=self.limit * self.turns + 1024,
            limit=self.limit,
            tokens=max(16384, self.limit * self.turns + 1024),
        )


WORKLOADS = {
    "short RLVR": PlanWorkload(
        cluster="1x4xH200", model="Qwen2.5-1.5B-Instruct", groups=16, siblings=8, limit=1024, lengths="300:0.5"
    ),
    "long-tail reasoning": PlanWorkload(
        cluster="1x4xH200", model="Qwen2.5-7B-Instruct", groups=16, siblings=8, limit=16384, lengths="3000:1.0"
    ),
    "agentic with slow environments": PlanWorkload(
        cluster="1x4xH200",
        model="Qwen2.5-7B-Instruct",
        groups=16,
        siblings=8,
        limit=512,
        lengths="150:0.6",
        turns=6,
        wait_median_s=4.0,
    ),
    "colocated small cluster": PlanWorkload(
        cluster="1x4xH200", model="Qwen2.5-1.5B-Instruct", groups=24, siblings=8, limit=2048, lengths="600:0.7"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOutcome:
    """The search against all candidates."""

    num_candidates: int
    num_simulated: int
    """By the search."""
    num_compared: int
    """All that were simulated, until the lower bound of the next one was above the best."""
    regret: float
    """Step time of the chosen candidate relative to the best, minus 1."""
    seconds: float
    """Of the search, with the placements."""


def compare_search(workload: PlanWorkload, folder: Path) -> SearchOutcome:
    """Search, then find the best of all candidates; only those that cannot be the best are not simulated."""
    began = time.perf_counter()
    attempts, rated = candidates_of(workload, folder)
    simulation = cache(simulate_schedule)  # the exhaustive search does not repeat the simulations of the search
    search = PlanSearch(attempts, rated, "fastest", simulation=simulation)
    best = search.run(lambda num: None)[0]
    seconds = time.perf_counter() - began
    assert best.prediction is not None
    least = best.prediction.step_s
    for schedule in sorted({each.schedule for each in rated}, key=lambda each: least_step_s(each, attempts)):
        if least_step_s(schedule, attempts) > least:
            break
        least = min(least, simulation(schedule, attempts).step_s)
    return SearchOutcome(
        num_candidates=len(rated),
        num_simulated=search.num_simulated,
        num_compared=simulation.cache_info().currsize,
        regret=best.prediction.step_s / least - 1.0,
        seconds=seconds,
    )


def least_step_s(schedule: StepSchedule, attempts: RunCalibration) -> float:
    """A lower bound: all generators decode with all slots, and nobody waits for a slow attempt.

    Sampled tokens vary between simulations, so a simulated step may be a per cent shorter.
    """
    tokens = schedule.groups_per_step * schedule.group_size * attempts.tokens_per_attempt
    decode_s = tokens * (schedule.step_s / schedule.slots + schedule.sequence_s) / schedule.num_generators
    rest_s = schedule.update_s + schedule.update_token_s * tokens + schedule.publish_s + schedule.other_s
    if schedule.shared or not schedule.max_staleness:
        return decode_s + rest_s
    return max(decode_s + schedule.publish_s, rest_s)


def candidates_of(workload: PlanWorkload, folder: Path) -> tuple[RunCalibration, list[RatedCandidate]]:
    """The attempts of a workload and all candidates with their estimates."""
    path = folder / "run.yaml"
    path.write_text(workload.text, encoding="utf-8")
    run, inventory = load(path).run, parse_cluster(workload.cluster)
    attempts = _attempts(workload, stated_workload(run, workload.lengths)[0])
    bounds = PlanBounds(num_devices=inventory.num_devices, max_staleness=MAX_STALENESS)
    placed, _ = placed_runs(facts_of(run), inventory, bounds)
    timed = [(each, modelled_times(each.facts, each.placement, attempts)) for each in placed]
    return attempts, rate(run, attempts, timed, staleness_choices(run, bounds), redundancy_choices(run))


def _attempts(workload: PlanWorkload, stated: RunCalibration) -> RunCalibration:
    """The stated lengths with the turns and waits of the workload."""
    contexts = [stated.contexts[0] + turn * statistics.fmean(stated.lengths[0]) for turn in range(workload.turns)]
    if not workload.wait_median_s:
        return replace(stated, turns=(workload.turns,), contexts=tuple(contexts))
    draws = random.Random(0)
    waits = sorted(draws.lognormvariate(math.log(workload.wait_median_s), workload.wait_sigma) for _ in range(256))
    return replace(stated, turns=(workload.turns,), contexts=tuple(contexts), waits_s=tuple(waits))
