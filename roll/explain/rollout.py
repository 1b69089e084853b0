"""Rows of `roll explain` about generation: sequences, redundancy, priority and staleness."""

from __future__ import annotations

import math
from collections.abc import Iterator

from roll.config.schema import Rollout, Run
from roll.explain.calls import count


def sequence_rows(rollout: Rollout) -> Iterator[tuple[str, str]]:
    """How an attempt is split into trained sequences; no row for the defaults."""
    if rollout.context_policy == "drop_oldest":
        room = f"if fewer than {rollout.max_new_tokens} of {rollout.max_seq_len} tokens are left for a response"
        yield "full context", f"{room}, the oldest turns are dropped, and the rest begins a new sequence"
    if rollout.segment_per == "turn":
        yield "sequences", "one per turn, with all of its context; baselines still count attempts"


def redundancy_rows(rollout: Rollout) -> Iterator[tuple[str, str]]:
    """Extra generation and its concurrency; no row for the defaults."""
    if rollout.redundant_groups:
        more = f"{count(rollout.redundant_groups, 'extra group')} in flight"
        yield "redundancy", f"{more}; the first to complete are trained on, which favours short responses"
    if rollout.adapt is not None:
        (low, high), (fewest, most) = rollout.staleness_bounds, rollout.redundancy_bounds
        yield (
            "adapted",
            f"max_staleness from {low:g} to {high:g}, redundant_groups from {fewest} to {most}, as waits ask",
        )
    if rollout.priority != "age":
        first = {"difficulty": "a mean reward nearest 0.5", "value": "the widest spread of rewards"}[rollout.priority]
        yield "priority", f"of the complete groups, those with {first} are trained on first; none waits past its bound"
    if rollout.redundant_siblings:
        started = f"{rollout.group_size + rollout.redundant_siblings} attempts per task are started"
        first = f"the first {rollout.group_size} valid ones are trained on, which favours short responses"
        yield "redundancy", f"{started}; {first}"
    if rollout.stop_quantile is not None:
        share = f"once {rollout.stop_quantile:.0%} of the attempts that a step waits for have ended"
        yield "early stop", f"{share}, longer ones are stopped and sampled again, which favours short responses"
    if rollout.concurrency == "adaptive":
        yield "concurrency", "as many requests per generator as fit its memory"
    elif rollout.concurrency is not None:
        yield "concurrency", f"at most {count(rollout.concurrency, 'request')} per generator at once"


def staleness_rows(rollout: Rollout) -> list[tuple[str, str]]:
    """The staleness bound, the groups in flight, and what both mean for a batch."""
    bound, num_groups, num_new = rollout.max_staleness, rollout.groups_per_step, rollout.new_groups_per_step
    if rollout.reuse > 1:
        spare = bound - rollout.replay_steps
        slots = f"floor({num_groups} + {spare:g} x {num_new})"
        uses = f"a group is trained on in up to {rollout.reuse} steps, and {num_new} of {num_groups} in a step are new"
        if rollout.replay is not None:
            first = {"age": "trained on last", "difficulty": "nearest 0.5", "value": "of the widest spread"}
            uses += f", the others are replayed, first those {first[rollout.priority]}"
        meaning = f"{uses}; at its last use it is at most {count(math.ceil(bound), 'update')} old"
    else:
        slots = f"floor(({bound:g} + 1) x {num_groups})"
        meaning = _staleness_text(rollout.num_slots, num_groups)
    return [
        ("bound", f"max_staleness {bound:g}"),
        ("in flight", f"{slots} = {rollout.num_slots} groups at once"),
        ("meaning", meaning),
    ]


def _staleness_text(num_slots: int, num_groups: int) -> str:
    """Staleness of a batch of `num_groups` groups, with `num_slots` in flight."""
    oldest = _max_age(num_slots, num_groups)
    if oldest == 0:
        return "synchronous: every token is sampled by the weights that are then trained"
    updates = count(oldest, "update")
    num_oldest = num_slots - oldest * num_groups
    if num_oldest == num_groups:
        return f"any group may be up to {updates} old when it is trained on"
    some = "half" if 2 * num_oldest == num_groups else f"{num_oldest} of {num_groups}"
    rest = "current" if oldest == 1 else "newer"
    return f"at most {some} of the groups are {updates} old, the others are {rest}"


def _max_age(num_slots: int, num_groups: int) -> int:
    """Age of the oldest groups of a batch, in updates."""
    return math.ceil(num_slots / num_groups) - 1


def oldest_age(run: Run) -> int:
    """Age of the oldest groups of a batch at the highest staleness of the run."""
    return _max_age(run.rollout.slots_at(run.rollout.staleness_bounds[1]), run.rollout.groups_per_step)
