"""A workload that is stated, not recorded: lengths from a log-normal distribution."""

from __future__ import annotations

import math
from statistics import NormalDist

from roll.config.schema import Run
from roll.errors import ConfigError
from roll.plan.calibration import Estimate, RunCalibration

_SIGMA = 0.6
_NUM = 512


def parse_lengths(text: str) -> tuple[float, float]:
    """Median and sigma of `--lengths median:sigma`."""
    median, colon, sigma = text.partition(":")
    try:
        values = float(median), float(sigma) if colon else _SIGMA
    except ValueError:
        values = (0.0, 0.0)
    if values[0] <= 0 or values[1] < 0 or not all(map(math.isfinite, values)):
        raise ConfigError(f"--lengths: expected median and sigma of tokens, such as 2000:0.8 (got {text!r}); change it")
    return values


def stated_workload(run: Run, lengths: str | None = None) -> tuple[RunCalibration, str]:
    """The workload with these lengths, or with a median of half the maximum; and a sentence that states it."""
    limit = run.rollout.max_new_tokens
    median, sigma = parse_lengths(lengths) if lengths is not None else (limit / 2, _SIGMA)
    natural = [median * math.exp(sigma * NormalDist().inv_cdf((index + 0.5) / _NUM)) for index in range(_NUM)]
    source = "--lengths" if lengths is not None else "assumed, as there is no --from and no --lengths"
    statement = (
        f"lengths: log-normal with median {median:.0f} and sigma {sigma:g}, cut at {limit} ({source}); "
        "one turn, no latency of environments or rewards; device times from the cost model"
    )
    unknown = Estimate(value=0.0, unit="s", count=0, spread=0.0)
    return (
        RunCalibration(
            lengths=(tuple(min(float(limit), length) for length in natural),),
            sibling_correlation=0.0,
            contexts=((run.rollout.max_seq_len - limit) / 2,),
            turns=(1,),
            waits_s=(0.0,),
            ends_s=(0.0,),
            censored=sum(length >= limit for length in natural) / _NUM,
            slots=1,
            step_s=unknown,
            sequence_s=unknown,
            prefill_s=unknown,
            request_s=unknown,
            update_s=unknown,
            update_token_s=unknown,
            publish_s=unknown,
            other_s=unknown,
        ),
        statement,
    )
