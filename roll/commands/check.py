"""`roll check`: reads the data of a run, builds its environments, tries its rewards and renders its prompts.

Imports no torch, unless the run has a model directory, whose tokenizer transformers reads.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import filterfalse, islice
from pathlib import Path

from roll.config.preferences import RewardTraining
from roll.config.schema import Model, Run
from roll.config.sources import TaskSourceConfig
from roll.data.answer_rows import answer_fault, seeds_fault
from roll.data.dataset import read_tasks, rows_at_start
from roll.data.messages import message_text
from roll.data.preference_rows import read_preferences, useful
from roll.data.preferences import Reading
from roll.data.reward_rows import reading_of, useful_for_rewards
from roll.data.task_file import NUM_CHECKED
from roll.data.tasks import Seeds
from roll.data.teacher_store import digest_vocabulary, read_header, tokenizer_fault, top_k_fault
from roll.data.templates import Template, encode_prompt, load_tokenizer
from roll.envs.guarded import unusable_reason, unusable_source
from roll.errors import ConfigError
from roll.model_files import num_embeddings, vocabulary
from roll.rewards.base import RewardAdapter, task_faults
from roll.rewards.result import RewardFault
from roll.types import Spec, Task

_MAX_ROWS = 10
"""Faulty rows that are listed per source."""


def check_data(run: Run, *, all_rows: bool = False) -> None:
    """Raise the faults of all task sources together; of each file, the first rows are read, or `all_rows`.

    Calls data functions, builds environments without starting them, and downloads nothing from the hub. Built-in
    rewards that are plain functions score an empty response; other built-in ones are only constructed. A reward whose
    module has `check_task(task, **options)` checks every row that is read. The chat template of a model directory
    renders every prompt that is read.
    """
    num_rows = sys.maxsize if all_rows else NUM_CHECKED
    distilled = () if run.distill is None else run.distill.tasks
    sources = (*run.tasks, *run.validation.tasks, *run.sft.tasks, *distilled)
    alphabet, template = "" if run.model.shape is None else run.model.shape.alphabet, _template_of(run)
    local = [source for source in sources if not _on_hub(source)]
    faults = dict.fromkeys(line for source in local for line in _faults(source, num_rows, alphabet, template))
    faults |= dict.fromkeys(_preference_faults(run, num_rows))
    faults |= dict.fromkeys(_distillation_faults(run, num_rows))
    faults.pop("", None)
    if faults:
        raise ConfigError("\n".join(faults))


def _preference_faults(run: Run, num_rows: int) -> Iterator[str]:
    """Faulty rows of preferences, unless the run drops them; lengths are known only with a tokenizer."""
    for section in run.preference_sections:
        rewards = isinstance(section, RewardTraining)
        reading = reading_of(section) if rewards else Reading(ratings=section.ratings)
        for key, data in (("data", section.data), ("held_out", section.held_out)):
            if data is None:
                continue
            try:
                preferences = read_preferences(f"{section.key}.{key}", data, reading, first=num_rows)
                useful_for_rewards(section, preferences) if rewards else useful(section, preferences)
            except ConfigError as error:
                yield from str(error).splitlines()


def _distillation_faults(run: Run, num_rows: int) -> Iterator[str]:
    """Tasks without answers, a teacher with other tokens, and a damaged store or one of another model."""
    if run.distill is None:
        return
    for source in filterfalse(_on_hub, run.distill.tasks or run.tasks):
        try:
            tasks = read_tasks(source, first=num_rows)
        except ConfigError:
            continue  # reported with the other faults of its data
        yield seeds_fault(source.name, tasks) or next(
            filter(None, (answer_fault(task, "distillation") for task in islice(rows_at_start(tasks), num_rows))), ""
        )
    models = [run.model, *([] if run.teacher is None else [Model(path=run.teacher.path)])]
    tokens = [vocabulary(model) for model in models]
    if all(tokens) and any(each != tokens[0] for each in tokens):
        yield f"teacher.path: {models[-1].path}: its tokenizer differs from the model's; choose one with the same"
    yield top_k_fault(run.distill.top_k, min(filter(None, map(num_embeddings, models)), default=sys.maxsize))
    if run.distill.store is not None and Path(run.distill.store).exists():
        try:
            header = read_header(Path(run.distill.store))
        except ConfigError as error:
            yield str(error)
            return
        if tokens[0] and header.tokenizer != digest_vocabulary(tokens[0]):
            yield tokenizer_fault(Path(run.distill.store))


def _template_of(run: Run) -> Template | None:
    """The template of the first policy's model directory; None if the model is a shape, or not on this machine."""
    path = (run.policies[0].path if run.policies else None) or run.model.path
    if path is None or not Path(path).is_dir():
        return None
    return Template(load_tokenizer(path, trust_remote_code=run.model.trust_remote_code), run.model.template)


def _faults(source: TaskSourceConfig, num_rows: int, alphabet: str, template: Template | None) -> Iterator[str]:
    try:
        tasks = read_tasks(source, first=num_rows)
    except ConfigError as error:
        yield from str(error).splitlines()
        return
    if alphabet:
        yield from _unknown_character(source.name, rows_at_start(tasks), frozenset(alphabet))
    if template is not None:
        yield from _unrendered(rows_at_start(tasks), template)
    if source.agent is None:
        reason_for = partial(unusable_reason, tools=template is None or template.tool_form is not None)
        reason = asyncio.run(unusable_source(source.name, source.env.spec, tasks, reason_for))
        yield from [f"tasks: {reason}"] if reason else []
    for reward in source.reward.entries if source.reward is not None else ():
        if ":" not in reward.kind and (reason := asyncio.run(_unusable_reward(reward.spec, tasks))):
            yield f"tasks: source {source.name!r}: {reason}"
    if source.reward is not None and not isinstance(tasks, Seeds):
        yield from islice(_faulty_rows(source.name, source.reward.spec, tasks, num_rows), _MAX_ROWS)


def _faulty_rows(source: str, reward: Spec, tasks: Sequence[Task], num_rows: int) -> Iterator[str]:
    """Rows that no response could score on, as far as the reward can tell without a response."""
    try:
        for fault in task_faults(reward, islice(tasks, num_rows)):
            yield f"tasks: source {source!r}: {fault}"
    except ConfigError:
        return  # the reward or its options do not exist, which is reported with its key


def _unknown_character(source: str, tasks: Sequence[Task], known: frozenset[str]) -> Iterator[str]:
    """The first character of a prompt that the tokenizer of a model's shape does not have."""
    for task in tasks:
        for character in (c for message in task.messages for c in message_text(message) if c not in known):
            yield f"tasks: source {source!r}: task {task.id!r}: the alphabet has no {character!r}; add it"
            return


def _unrendered(tasks: Sequence[Task], template: Template) -> Iterator[str]:
    """The first prompt that the model's template refuses."""
    for task in tasks:
        try:
            encode_prompt(template, task)
        except ConfigError as error:
            yield str(error)
            return


async def _unusable_reward(spec: Spec, tasks: Sequence[Task]) -> str:
    """Why a built-in reward cannot be used; empty if it can be for one of three tasks, or if that is unknown."""
    try:
        adapter = RewardAdapter.load(spec)
    except ConfigError as error:
        return str(error)
    if adapter.instance is not None or inspect.iscoroutinefunction(adapter.function):
        return ""
    results = [await adapter.score(tasks[index], "") for index in sorted({0, len(tasks) // 2, len(tasks) - 1})]
    return results[0].reason if all(result.fault is RewardFault.TASK for result in results) else ""


def _on_hub(source: TaskSourceConfig) -> bool:
    data = source.data
    return data is not None and data.kind == "hf" and not Path(str(data.kwargs.get("path"))).exists()
