"""Gain from overlapping generation and training on a number of devices, with upper bounds.

The synchronous side has all devices in both phases. The asynchronous side gives some of them to generation and the
others to training, and the best split counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from roll.sim.run import SimulationConfig, SimulationResult, simulate

TRAINING = 0.25
"""Time of an update on all devices, as a fraction of the generation time on all devices."""
_EDGE = 5
"""Steps at both ends that are not measured: the first find empty queues, and after the last nothing is admitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The synchronous run on all devices."""

    setting: SimulationConfig
    step_s: float
    generation_s: float
    slowest_s: tuple[float, ...]
    """By step, the duration of its slowest trajectory without waiting for slots."""
    decoding_s: float
    """Decoding time of one step if all slots of all devices were always busy."""

    @property
    def devices(self) -> int:
        return self.setting.num_generators

    def update_s(self, devices: int) -> float:
        """Time of one update on a number of devices."""
        return self.setting.update_s * self.devices / devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Gain of one staleness bound with its best split."""

    max_staleness: float
    ratio: float
    num_generating: int
    """Devices that generate; the others train."""
    staleness_bound: float
    """Upper bound from the staleness rule for this split and these trajectories, with unlimited slots."""
    work_bound: float
    """Upper bound for this split if neither side ever waits."""
    max_token_staleness: float
    tried: dict[int, float]
    """Ratio by number of generating devices; splits whose bounds rule them out are not tried."""


def baseline(setting: SimulationConfig) -> Baseline:
    """Measure generation alone, and add the update time: nothing overlaps at staleness 0."""
    alone = replace(setting, max_staleness=0.0, update_s=0.0)
    result, last = simulate(alone), setting.steps - _EDGE
    generation_s = result.mean("time/wait", _EDGE, last)
    update_s = TRAINING * generation_s
    return Baseline(
        setting=replace(alone, update_s=update_s),
        step_s=result.step_s(_EDGE, last) + update_s,
        generation_s=generation_s,
        slowest_s=tuple(max(map(max, groups)) for groups in result.alone_s),
        decoding_s=_decoding_s(result, setting),
    )


def gains(base: Baseline, stalenesses: Sequence[float], say: Callable[[str], None]) -> list[Gain]:
    """The best split for each staleness bound; calls `say` with a line per simulated run."""
    return [_best(base, staleness, say) for staleness in stalenesses]


def staleness_bound(base: Baseline, max_staleness: float, num_generating: int) -> float:
    """Upper bound on the gain from the staleness rule.

    A group takes its slot when the step s + 1 before its own is published. Its own step is published after its slowest
    trajectory has ended, after the previous step, and after the update. This bound replays all steps with their
    trajectories, as if a slot were always free.
    """
    assert max_staleness == int(max_staleness), "whole steps"
    busy_s = base.update_s(base.devices - num_generating) + _publication_s(base)
    published = [0.0] * (int(max_staleness) + 1)
    for slowest_s in base.slowest_s:
        published.append(max(published[-1], published[-1 - int(max_staleness)] + slowest_s) + busy_s)
    ends = published[int(max_staleness) :]
    first, last = _EDGE, len(base.slowest_s) - _EDGE
    return base.step_s / ((ends[last] - ends[first]) / (last - first))


def work_bound(base: Baseline, num_generating: int) -> float:
    """Upper bound on the gain of this split: each side works on step after step and never waits."""
    decoding_s = base.decoding_s * base.devices / num_generating
    update_s = base.update_s(base.devices - num_generating)
    return base.step_s / (max(decoding_s, update_s) + _publication_s(base))


def _best(base: Baseline, staleness: float, say: Callable[[str], None]) -> Gain:
    splits = range(1, base.devices)
    bounds = {split: min(staleness_bound(base, staleness, split), work_bound(base, split)) for split in splits}
    tried: dict[int, float] = {}
    ages: dict[int, float] = {}
    for split in sorted(splits, key=lambda split: -bounds[split]):
        if tried and bounds[split] <= max(tried.values()):
            break
        result = simulate(
            replace(
                base.setting,
                max_staleness=staleness,
                num_generators=split,
                update_s=base.update_s(base.devices - split),
            )
        )
        tried[split] = base.step_s / result.step_s(_EDGE, base.setting.steps - _EDGE)
        ages[split] = result.max_token_staleness
        say(
            f"staleness {staleness:g}: {split} devices generate, {base.devices - split} train: "
            f"{tried[split]:.2f} times, at most {bounds[split]:.2f} possible ({result.real_s:.0f} s)"
        )
    best = max(tried, key=lambda split: tried[split])
    return Gain(
        max_staleness=staleness,
        ratio=tried[best],
        num_generating=best,
        staleness_bound=staleness_bound(base, staleness, best),
        work_bound=work_bound(base, best),
        max_token_staleness=ages[best],
        tried=tried,
    )


def _decoding_s(result: SimulationResult, setting: SimulationConfig) -> float:
    return (
        result.num_tokens / setting.speed.tokens_per_s / (setting.num_generators * setting.speed.slots) / setting.steps
    )


def _publication_s(base: Baseline) -> float:
    return base.setting.speed.receive_s + base.setting.speed.resume_s
