"""Builds distillation from the configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from roll.algorithms.distillation import Distillation
from roll.cluster.handle import Cluster
from roll.config.distillation import Distill
from roll.config.schema import Model, Run
from roll.data.answer_rows import AnswerEncoder, IdRow, answer_fault, seeds_fault
from roll.data.collate import supervised
from roll.data.dataset import read_tasks
from roll.data.tasks import Seeds
from roll.data.teacher_store import (
    StoreHeader,
    StoreWriter,
    TeacherStore,
    check_header,
    describe_rows,
    digest_model,
    digest_vocabulary,
    read_header,
    top_k_fault,
)
from roll.data.templates import Template
from roll.engines.base import Distiller, TeacherModel
from roll.engines.native.model_spec import architecture
from roll.errors import ConfigError
from roll.pipelines.distill import DistillLoop, LiveTeacher, StoredTeacher, TaughtRows
from roll.pipelines.offline import chunks
from roll.rollout.resume import ResumeState
from roll.tracking.progress import bar
from roll.wiring.data import Data
from roll.wiring.models import Roles
from roll.wiring.offline import build_parts, build_schedule, offline_run
from roll.wiring.run import RunServices

SETS: tuple[str, ...] = ("training", "held_out")


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillRows:
    """The rows of a run, and what its loss compares on them."""

    sets: dict[str, list[IdRow]]
    """Training and held-out rows, by these names."""
    objective: Distillation
    header: StoreHeader
    """What a store for these rows has; without a teacher it lacks that."""


def section_of(run: Run) -> Distill:
    """The section `distill`; raises `ConfigError` without one."""
    if run.distill is None:
        raise ConfigError("distill: no such section; add one, such as `distill: {steps: 200}`")
    return run.distill


def distill_run(run: Run, *, storing: bool = False) -> Run:
    """The run whose engines distillation needs: with the teacher, unless a store has its logprobs, or for `storing`."""
    path = store_path(run)
    if path is not None and path.exists() and not storing:
        return offline_run(run, "distill", {}, needs=())
    if run.teacher is None:
        missing = "" if path is None else f", and distill.store {path} does not exist"
        raise ConfigError(f"teacher: there is none{missing}; add `teacher: {{path: ...}}`, or give an existing store")
    return offline_run(run, "distill", {}, needs=("teacher",))


def store_path(run: Run) -> Path | None:
    """The directory of stored logprobs."""
    store = section_of(run).store
    return None if store is None else Path(store)


def build_rows(run: Run, template: Template, tasks: Data) -> DistillRows:
    """The rows of a run; raises `ConfigError` for tasks without answers, and for a store that is not of this run.

    Held-out rows are the tasks of validation that have answers.
    """
    rows, path = encode_rows(run, template, tasks), store_path(run)
    if path is None or not path.exists():
        return rows
    return replace(rows, objective=replace(rows.objective, vocab=open_store(run, path, rows).vocab))


def encode_rows(run: Run, template: Template, tasks: Data) -> DistillRows:
    """The rows of a run, whether or not there is a store."""
    distill, vocab = section_of(run), architecture(run.model).vocab_size
    encoder = AnswerEncoder(
        template=template,
        max_seq_len=run.rollout.max_seq_len,
        every_turn=distill.target == "all",
        purpose="distillation",
    )
    of_run = ((source.name, source.tasks) for source in tasks.sources)
    sources = [(source.name, read_tasks(source)) for source in distill.tasks] or list(of_run)
    if fault := next(filter(None, (seeds_fault(*each) for each in sources)), None):
        raise ConfigError(fault)
    training = [task for _, each in sources for task in each]
    held_out = [
        task
        for source in tasks.held_out
        if not isinstance(source.tasks, Seeds)
        for task in source.tasks
        if not answer_fault(task, encoder.purpose)
    ]
    sets = dict(zip(SETS, ([encoder.row(task) for task in each] for each in (training, held_out)), strict=True))
    if run.teacher is not None:
        vocab = min(vocab, architecture(Model(path=run.teacher.path)).vocab_size)
    if fault := top_k_fault(distill.top_k, vocab):
        raise ConfigError(fault)
    objective = Distillation(
        divergence=distill.divergence.spec,
        temperature=distill.temperature,
        sft_weight=distill.sft_weight,
        vocab=vocab,
    )
    header = StoreHeader(
        teacher="" if run.teacher is None else run.teacher.path,
        teacher_digest="",
        tokenizer=digest_vocabulary(template.tokenizer.get_vocab()),
        vocab=vocab,
        top_k=distill.top_k or vocab,
        temperature=distill.temperature,
        **describe_rows(sets),
    )
    return DistillRows(sets=sets, objective=objective, header=header)


async def write_store(run: Run, roles: Roles, rows: DistillRows, path: Path) -> None:
    """Write the teacher's logprobs for all rows."""
    live, header = build_live_teacher(run, roles, rows.objective), rows.header
    writer = StoreWriter(path, replace(header, teacher_digest=digest_model(Path(header.teacher))))
    with bar(sum(map(len, rows.sets.values())), "teacher logprobs") as advance:
        for name, each in rows.sets.items():
            for indices in chunks(len(each), section_of(run).batch_size):
                tokens = await live.tokens(supervised([each[index] for index in indices]), indices)
                assert tokens.ids is not None and tokens.logprobs is not None, "a store has top_k"
                writer.add(name, tokens.ids.numpy(), tokens.logprobs.numpy())
                advance(len(indices))
    writer.finish()


def open_store(run: Run, path: Path, rows: DistillRows) -> StoreHeader:
    """The header of the store; raises `ConfigError` unless it is intact and of this run."""
    header = read_header(path)
    digest = "" if run.teacher is None else digest_model(Path(run.teacher.path))
    check_header(path, header, replace(rows.header, teacher_digest=digest))
    return header


def build_live_teacher(run: Run, roles: Roles, objective: Distillation) -> LiveTeacher:
    """The teacher whose model is loaded."""
    cluster = roles.first.models.teacher
    assert cluster is not None, "`distill_run` needs a teacher"
    return LiveTeacher(cluster=cluster, objective=objective, top_k=section_of(run).top_k)


async def build_taught_rows(run: Run, roles: Roles, rows: DistillRows) -> dict[str, TaughtRows]:
    """The rows of both sets with their teacher; writes the store first if there is none yet."""
    path = store_path(run)
    if path is None:
        live = build_live_teacher(run, roles, rows.objective)
        if live.top_k is None:
            layer = await live.cluster.at(0, TeacherModel.output_layer)
            await student_of(roles).at(0, Distiller.receive_teacher, layer)
        return {name: TaughtRows(rows=each, teacher=live) for name, each in rows.sets.items()}
    if not path.exists():
        await write_store(run, roles, rows, path)
    header = read_header(path)
    return {
        name: TaughtRows(rows=each, teacher=StoredTeacher(store=TeacherStore(path, header, name, each)))
        for name, each in rows.sets.items()
    }


def student_of(roles: Roles) -> Cluster[Distiller]:
    """The trainer of the run: the native one, as `check_distill` makes sure."""
    return cast("Cluster[Distiller]", roles.first.trainers)


def build_distill_loop(
    run: Run,
    roles: Roles,
    data: tuple[Data, DistillRows],
    taught: dict[str, TaughtRows],
    services: RunServices,
    resume: ResumeState | None,
) -> DistillLoop:
    """The loop with all its parts, fresh or continued from `resume`."""
    tasks, rows = data
    return DistillLoop(
        schedule=build_schedule(run, "distill"),
        objective=rows.objective,
        training=taught["training"],
        held_out=taught["held_out"],
        student=student_of(roles),
        **build_parts(run, roles, tasks, services, resume),
    )
