"""The workload *tail*: 64 groups of 8 on 8 devices with 16 sequences each; lengths are log-normal, not truncated.

One simulated token represents about 25 real ones: only durations matter, and fewer tokens simulate faster.
"""

from __future__ import annotations

from roll.sim.engines import GeneratorSpeed
from roll.sim.run import SimulationConfig
from roll.sim.workload import LogNormal

DEVICES, SLOTS, GROUPS, GROUP_SIZE = 8, 16, 64, 8
MEDIAN_S, SIGMA = 20.0, 1.1
TOKENS_PER_S = 2.0
_VERSION_CHANGE_S = 1.0


def tail(*, steps: int, turns: int = 1, seed: int = 0) -> SimulationConfig:
    """All devices generate, at staleness 0. With several turns the environment's median equals that of a response."""
    median_s = MEDIAN_S / turns
    return SimulationConfig(
        steps=steps,
        lengths=LogNormal(median=median_s * TOKENS_PER_S, sigma=SIGMA),
        speed=GeneratorSpeed(
            slots=SLOTS,
            tokens_per_s=TOKENS_PER_S,
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
