"""Builds the scheduler of a run, with its buffer, and the limits of its episodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from roll.config.rollout import Rollout
from roll.config.schema import Run
from roll.config.turns import turn_limit
from roll.data.templates import Template
from roll.errors import ConfigError
from roll.journal.store import Journal
from roll.rollout.buffer import Buffer
from roll.rollout.early_stop import EarlyStop
from roll.rollout.episode.conversation import SegmentBreaks
from roll.rollout.episode.runner import EpisodeLimits, EpisodeRunner
from roll.rollout.scheduler import Scheduler, SchedulerConfig
from roll.rollout.selection import ReplayLimits
from roll.serving.policies import ServedVersion
from roll.wiring.actor import sampling_of
from roll.wiring.data import Data
from roll.wiring.models import Roles


def build_scheduler(
    run: Run,
    roles: Roles,
    data: Data,
    journal: Journal,
    notice: Callable[[str], None],
    serving: Callable[[], ServedVersion],
) -> Scheduler:
    """The scheduler, with the buffer that bounds staleness. `serving` returns the version that is served."""
    buffer = Buffer(
        num_slots=run.rollout.num_slots,
        first_ticket=journal.last_group() + 1,
        redundant=run.rollout.redundancy_bounds[1],
        max_age=run.rollout.max_age,
        replay=ReplayLimits(max_uses=run.rollout.reuse, num_groups=run.rollout.num_replayed),
        priority=run.rollout.priority,
    )
    return Scheduler(
        mixture=data.mixture,
        sources={source.name: source for source in data.sources},
        runner=_build_runner(run, roles, data, notice),
        buffer=buffer,
        journal=journal,
        config=SchedulerConfig(
            group_size=run.rollout.group_size,
            max_retries=run.rollout.max_retries,
            max_failed_groups=run.rollout.max_failed_groups,
            max_filtered_groups=run.rollout.max_filtered_groups,
            filters=tuple(each.spec for each in run.algorithm.filters),
            filters_by_domain={name: each.filters for name, each in data.settings.items()},
            redundant_groups=run.rollout.redundancy_bounds[1],
            redundant_siblings=run.rollout.redundant_siblings,
            in_order=run.deterministic,
            seed=run.seed,
        ),
        serving=serving,
        notice=notice,
        early_stop=build_early_stop(run.rollout, buffer),
    )


def _build_runner(run: Run, roles: Roles, data: Data, notice: Callable[[str], None]) -> EpisodeRunner:
    limits = episode_limits(run, roles.template)
    return EpisodeRunner(
        router=roles.first.router,
        template=roles.template,
        limits=limits,
        router_by_agent=roles.router_by_agent,
        segment_breaks=SegmentBreaks(notice=notice),
        limits_by_domain={
            name: replace(limits, sampling=each.sampling, max_new_tokens=each.max_new_tokens)
            for name, each in data.settings.items()
        },
    )


def build_early_stop(rollout: Rollout, buffer: Buffer) -> EarlyStop | None:
    """What stops the longest attempts of a step that waits; None if nothing does."""
    if rollout.stop_quantile is None:
        return None
    return EarlyStop(quantile=rollout.stop_quantile, group_size=rollout.group_size, due=lambda: buffer.due)


def episode_limits(run: Run, template: Template) -> EpisodeLimits:
    """Limits of an episode, and how its tokens are sampled."""
    known = template.tokenizer.get_vocab()
    if unknown := [token for token in run.rollout.stop if token not in known]:
        raise ConfigError(f"rollout.stop: the tokenizer has no token {unknown[0]!r}; name tokens, not text")
    return EpisodeLimits(
        sampling=sampling_of(run),
        max_seq_len=run.rollout.max_seq_len,
        max_new_tokens=run.rollout.max_new_tokens,
        max_turns=turn_limit(run),
        env_timeout_s=run.rollout.env_timeout_s,
        drop_oldest=run.rollout.context_policy == "drop_oldest",
        per_turn=run.rollout.segment_per == "turn",
        stop=template.eos_ids | {known[token] for token in run.rollout.stop},
    )
