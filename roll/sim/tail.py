"""The workload *tail*: 64 groups of 8 on 8 devices with 16 sequences each; lengths are log-normal and nothing is cut.

A token here stands for about 25 real ones: what is simulated are durations, and fewer tokens make it faster.
"""

from __future__ import annotations

from roll.sim.generator import Speed
from roll.sim.lengths import LogNormal
from roll.sim.run import Setting

DEVICES, SLOTS, GROUPS, GROUP_SIZE = 8, 16, 64, 8
MEDIAN_S, SIGMA = 20.0, 1.1
_TOKENS_PER_S = 2.0
_VERSION_CHANGE_S = 1.0


def tail(*, steps: int, turns: int = 1, seed: int = 0) -> Setting:
    """All devices generate, at staleness 0. With several turns the environment's median is that of one reply."""
    median_s = MEDIAN_S / turns
    return Setting(
        steps=steps,
        lengths=LogNormal(median=median_s * _TOKENS_PER_S, sigma=SIGMA),
        speed=Speed(
            slots=SLOTS,
            tokens_per_s=_TOKENS_PER_S,
            receive_s=_VERSION_CHANGE_S / 2,
            resume_s=_VERSION_CHANGE_S / 2,
        ),
        num_generators=DEVICES,
        update_s=0.0,
        groups_per_step=GROUPS,
        group_size=GROUP_SIZE,
        turns=turns,
        env={"median_s": median_s, "sigma": 1.5} if turns > 1 else {},
        seed=seed,
    )
