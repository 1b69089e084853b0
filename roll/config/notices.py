"""The kinds of notices about a run that goes wrong, which a file can turn off."""

from __future__ import annotations

from typing import Literal

NoticeKind = Literal[
    "reward_collapse",
    "domain_break",
    "constant_reward",
    "no_signal",
    "validation_fall",
    "entropy_collapse",
    "kl_growth",
    "length_growth",
    "length_collapse",
    "truncation",
    "sampler_mismatch",
    "stale_tokens",
    "gradient_growth",
    "refused_updates",
]
