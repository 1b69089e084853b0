"""What overlapping generation and training gains on a number of devices, and what it can gain at most.

The synchronous side has all devices in both phases. The asynchronous side gives some of them to generation and the
others to training, and the best split counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from roll.sim.run import Outcome, Setting, simulate

TRAINING = 0.25
"""Of the time that generation takes on all devices is what an update takes on all of them."""
_EDGE = 5
"""Steps at both ends that are not measured: the first find empty queues, behind the last nothing is admitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The synchronous run on all devices."""

    setting: Setting
    step_s: float
    generation_s: float
    slowest_s: tuple[float, ...]
    """By step, what its slowest trajectory takes if it never waits for a slot."""
    decoding_s: float
    """Of one step, if every slot of all devices decoded all the time."""

    @property
    def devices(self) -> int:
        return self.setting.num_generators

    def update_s(self, devices: int) -> float:
        """Of one step, on so many devices."""
        return self.setting.update_s * self.devices / devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What one bound on staleness gains with its best split."""

    max_staleness: float
    ratio: float
    num_generating: int
    """Devices that generate; the others train."""
    age_bound: float
    """Most that the age rule allows with this split and these trajectories, however many generators there are."""
    work_bound: float
    """Most that this split allows if nobody ever waits for anybody."""
    greatest_age: float
    tried: dict[int, float]
    """Ratios by the number of devices that generate; splits that could not have been better were not tried."""


def baseline(setting: Setting) -> Baseline:
    """Measure generation alone; training takes a part of that and follows it, since nothing overlaps at staleness 0."""
    alone = replace(setting, max_staleness=0.0, update_s=0.0)
    found, last = simulate(alone), setting.steps - _EDGE
    generation_s = found.mean("time/wait", _EDGE, last)
    update_s = TRAINING * generation_s
    return Baseline(
        setting=replace(alone, update_s=update_s),
        step_s=found.step_s(_EDGE, last) + update_s,
        generation_s=generation_s,
        slowest_s=tuple(max(map(max, groups)) for groups in found.alone_s),
        decoding_s=_decoding_s(found, setting),
    )


def gains(base: Baseline, stalenesses: Sequence[float], say: Callable[[str], None]) -> list[Gain]:
    """The best split for each bound on staleness; `say` hears of every run."""
    return [_best(base, staleness, say) for staleness in stalenesses]


def age_bound(base: Baseline, max_staleness: float, num_generating: int) -> float:
    """Most that the age rule allows.

    A group takes its slot when the step s + 1 before its own is published, and its own step cannot be published before
    its slowest trajectory has ended, nor before the step ahead of it, and then the update is still to come. This goes
    through all steps with the trajectories that they had, as if a slot were always free.
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
    """Most that this split allows: each side works on one step after the other and never waits."""
    decoding_s = base.decoding_s * base.devices / num_generating
    update_s = base.update_s(base.devices - num_generating)
    return base.step_s / (max(decoding_s, update_s) + _publication_s(base))


def _best(base: Baseline, staleness: float, say: Callable[[str], None]) -> Gain:
    splits = range(1, base.devices)
    bounds = {split: min(age_bound(base, staleness, split), work_bound(base, split)) for split in splits}
    tried: dict[int, float] = {}
    ages: dict[int, float] = {}
    for split in sorted(splits, key=lambda split: -bounds[split]):
        if tried and bounds[split] <= max(tried.values()):
            break
        found = simulate(
            replace(
                base.setting,
                max_staleness=staleness,
                num_generators=split,
                update_s=base.update_s(base.devices - split),
            )
        )
        tried[split] = base.step_s / found.step_s(_EDGE, base.setting.steps - _EDGE)
        ages[split] = found.greatest_age
        say(
            f"staleness {staleness:g}: {split} devices generate, {base.devices - split} train: "
            f"{tried[split]:.2f} times, at most {bounds[split]:.2f} possible ({found.real_s:.0f} s)"
        )
    best = max(tried, key=lambda split: tried[split])
    return Gain(
        max_staleness=staleness,
        ratio=tried[best],
        num_generating=best,
        age_bound=age_bound(base, staleness, best),
        work_bound=work_bound(base, best),
        greatest_age=ages[best],
        tried=tried,
    )


def _decoding_s(found: Outcome, setting: Setting) -> float:
    return (
        found.num_tokens / setting.speed.tokens_per_s / (setting.num_generators * setting.speed.slots) / setting.steps
    )


def _publication_s(base: Baseline) -> float:
    return base.setting.speed.receive_s + base.setting.speed.resume_s
