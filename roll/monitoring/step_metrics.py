"""A sink whose newest metrics of each name are scraped."""

from __future__ import annotations

import re
from collections.abc import Mapping

from roll.monitoring.samples import Scrape

_PHASE, _STEP = "time/", "time/step"
_PLAIN = {
    _STEP: "roll_step_seconds",
    "speed/tokens_per_s": "roll_tokens_per_second",
    "reward/mean": "roll_reward_mean",
    "reward/std": "roll_reward_std",
    "validation/accuracy": "roll_held_out_accuracy_ratio",
    "validation/reward": "roll_held_out_reward_mean",
    "staleness/mean": "roll_staleness_steps_mean",
    "staleness/max": "roll_staleness_steps_max",
    "sampler_mismatch/mean": "roll_sampler_mismatch_nats",
    "length/mean": "roll_response_tokens_mean",
    "length/truncated": "roll_truncated_ratio",
    "loss/policy": "roll_loss",
    "loss/grad_norm": "roll_gradient_norm",
    "loss/entropy": "roll_entropy_nats",
    "kl/reference": "roll_reference_kl_nats",
    "sft/loss": "roll_sft_loss",
    "sft/accuracy": "roll_sft_accuracy_ratio",
}
_BY_DOMAIN = (
    (re.compile(r"domain/(.+)/reward", re.DOTALL), "roll_domain_reward_mean"),
    (re.compile(r"validation/(.+)/accuracy", re.DOTALL), "roll_domain_held_out_accuracy_ratio"),
    (re.compile(r"validation/(.+)/reward", re.DOTALL), "roll_domain_held_out_reward_mean"),
)


class StepMetrics:
    """`Sink` that keeps the newest value of each metric; another thread reads them."""

    def __init__(self, trajectories_per_step: int) -> None:
        self._trajectories_per_step = trajectories_per_step
        self.step: int | None = None
        """Newest finished step; None before one is reported."""
        self.written = 0
        """Number of reports so far."""
        self._newest: Mapping[str, float] = {}
        self._latest: Mapping[str, float] = {}
        """Also of metrics that the newest step does not have, such as those of validations."""
        self._phase_s: Mapping[str, float] = {}

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        newest = dict(metrics)
        phases = {name.removeprefix(_PHASE): value for name, value in newest.items() if name.startswith(_PHASE)}
        phases.pop(_STEP.removeprefix(_PHASE), None)
        self._phase_s = {**self._phase_s, **{name: self._phase_s.get(name, 0.0) + s for name, s in phases.items()}}
        self._latest = {**self._latest, **newest}  # replaced, not changed: a scrape may be reading the old one
        self._newest, self.step, self.written = newest, step, self.written + 1

    def close(self) -> None:
        """Nothing: the last values stay until the server ends."""

    def add_to(self, scrape: Scrape) -> None:
        """Add the metrics of steps to a scrape."""
        if self.step is None:
            return
        scrape.set("roll_step", self.step)
        for name, value in self._latest.items():
            _add_value(scrape, name, value)
        newest = self._newest
        for name, value in newest.items():
            if name.startswith(_PHASE) and name != _STEP:
                scrape.set("roll_step_phase_seconds", value, name.removeprefix(_PHASE))
        for phase, seconds in self._phase_s.items():
            scrape.set("roll_phase_seconds_total", seconds, phase)
        if newest.get(_STEP) and "reward/mean" in newest:
            scrape.set("roll_trajectories_per_second", self._trajectories_per_step / newest[_STEP])


def _add_value(scrape: Scrape, name: str, value: float) -> None:
    if name in _PLAIN:
        scrape.set(_PLAIN[name], value)
    for pattern, metric in _BY_DOMAIN:
        if match := pattern.fullmatch(name):
            scrape.set(metric, value, match[1])
