"""Builds preference optimisation from the configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from roll.config.preferences import Dpo
from roll.config.schema import Run
from roll.data.preference_rows import DroppedRow, PreferenceExample, encode_preferences, read_preferences
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
from roll.wiring.models import Roles
from roll.wiring.offline import build_parts, build_schedule, offline_run
from roll.wiring.run import RunServices


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceData:
    """The examples of a run."""

    examples: list[PreferenceExample]
    held_out: list[PreferenceExample]
    num_read: int
    dropped: list[DroppedRow]
    """Rows of both that are not used."""


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


def build_preferences(run: Run, template: Template) -> PreferenceData:
    """The examples of the section `dpo`; raises `ConfigError` for faulty rows unless it drops them."""
    dpo = section_of(run)
    read = {"dpo.data": read_preferences("dpo.data", dpo.data, dpo.ratings)}
    if dpo.held_out is not None:
        read["dpo.held_out"] = read_preferences("dpo.held_out", dpo.held_out, dpo.ratings)
    examples: dict[str, list[PreferenceExample]] = {}
    dropped: list[DroppedRow] = []
    for key, preferences in read.items():
        examples[key], left_out = encode_preferences(dpo, preferences, template, run.rollout.max_seq_len)
        dropped += left_out
        if not examples[key]:
            raise ConfigError(f"{key}: nothing is left of {len(preferences)} rows; correct them")
    return PreferenceData(
        examples=examples["dpo.data"],
        held_out=examples.get("dpo.held_out", []),
        num_read=sum(map(len, read.values())),
        dropped=dropped,
    )


async def build_scorers(
    run: Run, roles: Roles, data: PreferenceData, directory: Path, *, resumed: bool
) -> PreferenceScorers:
    """The scorers; a precomputed reference is computed now, or read from the directory of a resumed run."""
    dpo, engines = section_of(run), roles.first
    _check_sizes(dpo, data, engines.trainers.size)
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


def _check_sizes(dpo: Dpo, data: PreferenceData, num_ranks: int) -> None:
    """Every batch must have a sequence for each data-parallel rank."""
    sizes = {"dpo.batch_size": dpo.batch_size, "dpo.data": len(data.examples)}
    sizes |= {"dpo.held_out": len(data.held_out)} if data.held_out else {}
    for key, size in sizes.items():
        if size < num_ranks:
            raise ConfigError(f"{key}: {size} examples for {num_ranks} trainer ranks; give each rank one or more")


def build_dpo_loop(
    run: Run,
    roles: Roles,
    data: tuple[Data, PreferenceData],
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
