"""Builds preference optimisation from the configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from roll.config.preferences import Dpo
from roll.config.schema import Run
from roll.data.preference_rows import PreferenceExample, encode_preferences
from roll.data.preferences import Reading
from roll.data.templates import Template
from roll.errors import ConfigError
from roll.pipelines.dpo import DpoLoop
from roll.pipelines.preference_scores import (
    REFERENCE_LOGPROBS,
    PreferenceScorer,
    load_reference,
    reference_sums,
    save_reference,
)
from roll.rollout.resume import ResumeState
from roll.tracking.progress import bar
from roll.wiring.data import Data
from roll.wiring.examples import ExampleSets, build_examples
from roll.wiring.models import Roles
from roll.wiring.offline import build_parts, build_schedule, offline_run
from roll.wiring.run import RunServices


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceScorers:
    """Scorers of the examples, and of the held-out ones."""

    training: PreferenceScorer
    held_out: PreferenceScorer


def section_of(run: Run) -> Dpo:
    """The section `dpo`; raises `ConfigError` without one."""
    if run.dpo is None:
        raise ConfigError("dpo: no such section; add one, such as `dpo: {data: pairs.jsonl}`")
    return run.dpo


def preference_run(run: Run) -> Run:
    """The run whose engines preference optimisation needs, with at most a reference."""
    dpo = section_of(run)
    needs = ("reference",) if dpo.reads_reference and dpo.reference != "precomputed" else ()
    return offline_run(run, "dpo", {"teacher": None}, needs=needs)


def build_preferences(run: Run, template: Template) -> ExampleSets[PreferenceExample]:
    """The examples of the section `dpo`; raises `ConfigError` for faulty rows unless it drops them."""
    dpo = section_of(run)
    encode = partial(encode_preferences, dpo, template=template, max_seq_len=run.rollout.max_seq_len)
    return build_examples(dpo, Reading(ratings=dpo.ratings), encode)


async def build_scorers(
    run: Run, roles: Roles, data: ExampleSets[PreferenceExample], directory: Path, *, resumed: bool
) -> PreferenceScorers:
    """The scorers; a precomputed reference is computed now, or read from the directory of a resumed run."""
    dpo, engines = section_of(run), roles.first
    data.check_sizes(dpo, engines.trainers.size)
    scorer = PreferenceScorer(trainers=engines.trainers, models=engines.models)
    if not dpo.reads_reference or dpo.reference != "precomputed":
        return PreferenceScorers(training=scorer, held_out=scorer)
    path, sets = directory / REFERENCE_LOGPROBS, [data.examples, data.held_out]
    if resumed:
        sums = load_reference(path, sets)
    else:
        with bar(sum(map(len, sets)), "reference logprobs") as advance:
            sums = [await reference_sums(scorer, each, dpo.batch_size, advance) for each in sets]
        save_reference(path, sums, sets)
    return PreferenceScorers(training=replace(scorer, saved=sums[0]), held_out=replace(scorer, saved=sums[1]))


def build_dpo_loop(
    run: Run,
    roles: Roles,
    data: tuple[Data, ExampleSets[PreferenceExample]],
    scorers: PreferenceScorers,
    services: RunServices,
    resume: ResumeState | None,
) -> DpoLoop:
    """The loop with all its parts, fresh or continued from `resume`."""
    (tasks, preferences), dpo = data, section_of(run)
    return DpoLoop(
        schedule=build_schedule(run, "dpo"),
        loss=dpo.loss.spec,
        examples=preferences.examples,
        held_out=preferences.held_out,
        scorer=scorers.training,
        held_out_scorer=scorers.held_out,
        **build_parts(run, roles, tasks, services, resume),
    )
