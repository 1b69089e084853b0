"""Asynchronous against synchronous training over GPUs, batch sizes and splits, with engines of an 8B model in time.

A quarter of the GPUs with a quarter of the groups is simulated: the load per GPU is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from benchmarks.papers.bounds import best_training_share, step_bound_s
from benchmarks.papers.figure import Claim, Figure, Report, curve
from roll.sim.batched import DecodeSpeed
from roll.sim.run import SimulationConfig, simulate
from roll.sim.workload import LogNormal

ALPHA = 2
"""Asynchronous ratio of the paper."""
ALPHAS = (ALPHA, 4)
SIBLINGS, GROUPS = 8, 256
GPUS = (16, 32, 64, 128)
BATCHES = (32, 64, 128, 256, 512)
BATCH_GPUS, RATIO_GPUS = 64, 40
PART = 4
"""One of so many GPUs, and one of so many groups, is simulated."""
_GRAIN = 64.0
"""Tokens that one simulated token represents."""
_SLOTS, _DECODE_S, _SEQUENCE_S = 64, 0.007, 0.0002
"""Sequences per GPU, and a decode step: reading the weights, and the cache of each sequence."""
_UPDATE_S = 1.6e-4
"""GPU seconds per trained token, with the pass for old logprobs."""
_SYNC_S = 1.0
"""Seconds of a change of version."""
_ALONE, _OVERLAPPED, _WARM = 6, 9, 3
"""Steps of a synchronous and of an asynchronous run, and those at its start that are not measured."""


@dataclass(frozen=True)
class ResponseLengths:
    """Log-normal lengths, cut at a limit."""

    name: str
    median: float
    limit: int
    sigma: float = 0.8

    @cached_property
    def mean(self) -> float:
        """Mean tokens of a response."""
        lengths = LogNormal(median=self.median, sigma=self.sigma)
        return sum(min(lengths.draw(key), self.limit) for key in range(20_000)) / 20_000


LONG = ResponseLengths("long", 8000.0, 32_768)
SHORT = ResponseLengths("short", 1000.0, 4096)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One run to compare: a number of GPUs and a batch."""

    lengths: ResponseLengths
    gpus: int
    groups: int

    @property
    def tokens(self) -> float:
        """Mean tokens per step."""
        return self.lengths.mean * self.groups * SIBLINGS

    @property
    def generation_s(self) -> float:
        """Decoding time of a step on all GPUs, if all their slots were always busy."""
        return self.tokens * (_DECODE_S / _SLOTS + _SEQUENCE_S) / self.gpus

    @property
    def training_s(self) -> float:
        """Time of an update on all GPUs."""
        return self.tokens * _UPDATE_S / self.gpus

    @property
    def longest_s(self) -> float:
        """Time of a response of the greatest length in a GPU that is half full."""
        return self.lengths.limit * (_DECODE_S + _SEQUENCE_S * _SLOTS / 2)

    @property
    def balanced(self) -> int:
        """GPUs that generate if both sides are to work equally long."""
        return self._generating(self.training_s / (self.generation_s + self.training_s))

    def least_bound(self, alpha: float) -> int:
        """GPUs that generate in the split of the proposition, which minimises its bound."""
        return self._generating(best_training_share(self.generation_s, self.training_s, self.longest_s, alpha=alpha))

    def _generating(self, training_share: float) -> int:
        """The other GPUs, in units that can be simulated."""
        units = self.gpus // PART
        return PART * min(units - 1, max(1, round((1 - training_share) * units)))


def over_gpus(report: Report) -> Figure:
    """Throughput over the number of GPUs, relative to synchronous training on the fewest."""
    runs = [Training(lengths=LONG, gpus=gpus, groups=GROUPS) for gpus in GPUS]
    together = [synchronous_step_s(each, report) for each in runs]
    apart = {alpha: [asynchronous_step_s(each, alpha, each.balanced, report) for each in runs] for alpha in ALPHAS}
    gains = {
        alpha: [sync / ahead for sync, ahead in zip(together, values, strict=True)] for alpha, values in apart.items()
    }
    rows = [
        [
            str(each.gpus),
            f"{together[index]:.0f}",
            *(f"{values[index]:.0f}" for values in apart.values()),
            f"{each.balanced} + {each.gpus - each.balanced}",
            *(f"{values[index]:.2f}" for values in gains.values()),
        ]
        for index, each in enumerate(runs)
    ]
    named = {"synchronous": together, **{f"asynchronous, ratio {alpha}": values for alpha, values in apart.items()}}
    curves = {name: [together[0] / step_s for step_s in values] for name, values in named.items()}
    curves["linear"] = [gpus / GPUS[0] for gpus in GPUS]
    low, high = gains.values()
    return Figure(
        title="Throughput over the number of GPUs",
        x_label="GPUs",
        y_label=f"steps per hour, synchronous on {GPUS[0]} GPUs = 1",
        series=[curve(name, list(zip(GPUS, values, strict=True))) for name, values in curves.items()],
        columns=[
            *("GPUs", *(f"{name} (s)" for name in named), "generate + train"),
            *(f"gain at ratio {alpha}" for alpha in ALPHAS),
        ],
        rows=rows,
        claims=[
            Claim(text="the gain of asynchrony grows with the number of GPUs", shown=low == sorted(low)),
            Claim(text=f"at {GPUS[-1]} GPUs it exceeds 2 at ratio {ALPHA}", shown=low[-1] > 2),
            Claim(
                text=f"ratio {ALPHA} has at least 90 % of the throughput of ratio {ALPHAS[1]} at every size",
                shown=all(small >= 0.9 * large for small, large in zip(low, high, strict=True)),
            ),
        ],
    )


def over_batch_sizes(report: Report) -> Figure:
    """Gain of asynchrony over the rollout batch size, for long and short responses."""
    gains: dict[str, list[float]] = {}
    rows: list[list[str]] = []
    for lengths in (LONG, SHORT):
        runs = [Training(lengths=lengths, gpus=BATCH_GPUS, groups=groups) for groups in BATCHES]
        together = [synchronous_step_s(each, report) for each in runs]
        apart = [asynchronous_step_s(each, ALPHA, each.balanced, report) for each in runs]
        gains[lengths.name] = [sync / ahead for sync, ahead in zip(together, apart, strict=True)]
        rows += [
            [lengths.name, str(each.groups), f"{sync:.0f}", f"{ahead:.0f}", f"{sync / ahead:.2f}"]
            for each, sync, ahead in zip(runs, together, apart, strict=True)
        ]
    return Figure(
        title=f"Gain of asynchrony over rollout batch sizes, {BATCH_GPUS} GPUs",
        x_label=f"prompts per step, each with {SIBLINGS} responses",
        y_label="steps per hour, synchronous = 1",
        series=[curve(f"{name} responses", list(zip(BATCHES, values, strict=True))) for name, values in gains.items()],
        columns=["responses", "prompts per step", "synchronous step (s)", "asynchronous step (s)", "gain"],
        rows=rows,
        claims=[
            Claim(text="asynchrony is faster at every batch size", shown=min(min(each) for each in gains.values()) > 1),
            Claim(
                text="long responses gain at least as much as short ones at every batch size",
                shown=all(long >= short for long, short in zip(*gains.values(), strict=True)),
            ),
        ],
    )


def over_ratios(report: Report) -> Figure:
    """Step time over the split of a fixed number of GPUs, for two asynchronous ratios."""
    training = Training(lengths=LONG, gpus=RATIO_GPUS, groups=GROUPS)
    together = synchronous_step_s(training, report)
    splits = range(3 * PART, RATIO_GPUS, PART)
    times = {
        alpha: {split: asynchronous_step_s(training, alpha, split, report) for split in splits} for alpha in (1, ALPHA)
    }
    best_s = min(times[ALPHA].values())
    formulas = {"equal work": training.balanced, "least bound": training.least_bound(ALPHA)}
    rows = [
        [
            f"{split} + {RATIO_GPUS - split}",
            *(f"{each[split]:.0f}" for each in times.values()),
            f"{together / times[ALPHA][split]:.2f}",
            ", ".join(name for name, value in formulas.items() if value == split),
        ]
        for split in splits
    ]
    bound_s = step_bound_s(training.generation_s, training.training_s, training.longest_s, alpha=ALPHA)
    return Figure(
        title=f"Step time over the split of {RATIO_GPUS} GPUs",
        x_label="GPUs that generate; the others train",
        y_label="seconds per step",
        series=[
            *(curve(f"ratio {alpha}", list(each.items())) for alpha, each in times.items()),
            curve("synchronous, all GPUs in both phases", [(split, together) for split in splits]),
        ],
        columns=["generate + train", *(f"ratio {alpha} (s)" for alpha in times), f"gain at ratio {ALPHA}", "split of"],
        rows=[*rows, [f"{RATIO_GPUS}, synchronous", *[f"{together:.0f}"] * len(times), "1.00", ""]],
        claims=[
            Claim(
                text="a wrong split is slower than synchronous training", shown=max(times[ALPHA].values()) > together
            ),
            Claim(
                text="the split of equal work costs at most 10 % more than the best one",
                shown=times[ALPHA][training.balanced] <= 1.1 * best_s,
            ),
            Claim(
                text=f"at ratio {ALPHA} the best step stays below the bound of {bound_s:.0f} s", shown=best_s < bound_s
            ),
        ],
    )


def synchronous_step_s(training: Training, report: Report) -> float:
    """Seconds per step with all GPUs in both phases."""
    setting = _setting(training, training.gpus, training.gpus)
    result = simulate(setting)
    step_s = result.step_s(1)
    report(f"{_describe(training)}, synchronous: {step_s:.0f} s per step ({result.real_s:.0f} s)")
    return step_s


def asynchronous_step_s(training: Training, alpha: float, generating: int, report: Report) -> float:
    """Seconds per step with a number of GPUs that generate while the others train."""
    setting = _setting(training, generating, training.gpus - generating, alpha=alpha)
    result = simulate(setting)
    step_s = result.step_s(_WARM, _OVERLAPPED - 1)
    ahead = f"ratio {alpha:g}, {generating} generate"
    report(f"{_describe(training)}, {ahead}: {step_s:.0f} s per step ({result.real_s:.0f} s)")
    return step_s


def _describe(training: Training) -> str:
    return f"{training.gpus} GPUs, {training.groups} prompts, {training.lengths.name} responses"


def _setting(training: Training, generating: int, updating: int, alpha: float = 0.0) -> SimulationConfig:
    lengths = training.lengths
    return SimulationConfig(
        steps=_OVERLAPPED if alpha else _ALONE,
        lengths=LogNormal(median=lengths.median, sigma=lengths.sigma),
        speed=DecodeSpeed(
            slots=_SLOTS,
            step_s=_DECODE_S,
            sequence_s=_SEQUENCE_S,
            scale=_GRAIN,
            receive_s=_SYNC_S / 2,
            resume_s=_SYNC_S / 2,
        ),
        num_generators=generating // PART,
        update_s=0.0,
        update_token_s=_UPDATE_S * _GRAIN * PART / updating,
        groups_per_step=training.groups // PART,
        group_size=SIBLINGS,
        max_staleness=alpha,
        rollout={"max_new_tokens": int(lengths.limit / _GRAIN)},
    )
