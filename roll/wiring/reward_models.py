"""Builds the training of a reward model from the configuration."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import re
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from roll.cluster.handle import Cluster, Executor
from roll.cluster.inline import InlineExecutor
from roll.cluster.pending import HasPendingCalls, describe_pending, stopped_workers
from roll.config.preferences import RewardTraining
from roll.config.schema import Model, Run
from roll.data.reward_rows import RewardExample, encode_rewards, reading_of
from roll.data.templates import Template
from roll.engines.base import Trainer
from roll.engines.native.model_spec import engine_for
from roll.errors import ConfigError, RunStopped, WorkerDied
from roll.journal.store import Journal
from roll.pipelines.checkpointer import Checkpointer
from roll.pipelines.reward_training import RewardLoop
from roll.tracking.directory import RunDirectory
from roll.tracking.phases import PhaseWatch
from roll.wiring.actor import build_engine_specs, build_workers, without_quantization
from roll.wiring.examples import ExampleSets, build_examples
from roll.wiring.models import (
    STOP_S,
    RunPaths,
    load_checked_tokenizer,
    model_ends,
    ray_executor,
    start_engines,
    supported_length,
)
from roll.wiring.offline import build_schedule
from roll.wiring.placing import apply_placement, plan_placement
from roll.wiring.run import RunServices, checkpointer_of, save_tokenizer

_GENERATION = re.compile(r"\{%(-?)\s*(end)?generation\s*(-?)%\}")
_WITHOUT_SPACES = "{{ rendered if add_generation_prompt else rendered.rstrip() }}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardEngines:
    """The trainer of a reward model; there is no generator."""

    trainers: Cluster[Trainer]
    template: Template
    executor: Executor

    async def start(self) -> None:
        """Start all workers, or none."""
        await self.executor.start()
        try:
            await start_engines(self.trainers, Trainer.start, "actor_train")
        except BaseException:
            await self.executor.stop()
            raise

    async def leave(self) -> None:
        """After an unexpected exception: stop the workers, which are not kept."""
        await self.stop()

    async def stop(self) -> None:
        """Stop all workers; ones that are dead or too slow do not delay the others."""
        try:
            with contextlib.suppress(WorkerDied, RunStopped, TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await self.trainers.each(Trainer.stop)
        finally:
            await self.executor.stop()


def section_of(run: Run) -> RewardTraining:
    """The section `reward_training`; raises `ConfigError` without one."""
    if run.reward_training is None:
        raise ConfigError("reward_training: no such section; add one, such as `reward_training: {data: pairs.jsonl}`")
    return run.reward_training


def reward_run(run: Run) -> Run:
    """The run that trains the reward model: its name, model, optimizer and steps, without other models."""
    section = section_of(run)
    if run.policies:
        raise ConfigError("policies: the training of a reward model trains one model; remove them")
    if run.model.template == "last":
        raise ConfigError("model.template: a reward model reads whole conversations (got 'last'); set plain or chat")
    longest = run.rollout.max_seq_len + 1  # a score is read after the last token
    if run.actor_train.tokens_per_microbatch < longest:
        raise ConfigError(
            f"actor_train.tokens_per_microbatch: a row of a reward model may have {longest} tokens "
            f"(got {run.actor_train.tokens_per_microbatch}); raise it to at least rollout.max_seq_len + 1"
        )
    changed: dict[str, Any] = {
        "name": f"{run.name}-reward",
        "steps": section.steps,
        "actor_train": run.actor_train.model_copy(update={"optimizer": section.optimizer}),
        "teacher": None,
        "reward_model": None,
    }
    if section.path is not None:
        changed["model"] = Model(path=section.path, template=run.model.template)
    return without_quantization(run.model_copy(update=changed))


def build_reward_engines(run: Run, paths: RunPaths) -> RewardEngines:
    """The trainer of the run that `reward_run` returns, not yet started."""
    tokenizer, longest = load_checked_tokenizer(run), run.rollout.max_seq_len + 1
    if not tokenizer.is_fast:
        raise ConfigError(f"{run.model.path}: has no tokenizer.json; save the tokenizer as a fast one of transformers")
    if longest > (supported := supported_length(run.model)):
        raise ConfigError(
            f"rollout.max_seq_len: the model supports {supported:g} tokens, and a row has one more than this (got "
            f"{run.rollout.max_seq_len}); lower it"
        )
    placement = plan_placement(run, supervised=True)
    run = apply_placement(run, placement)
    executor, scratch = (InlineExecutor(), None) if run.executor == "inline" else ray_executor(run, paths, placement)
    specs = build_engine_specs(run, run.actor_train.optimizer, run.steps, supervised=True)
    model_spec = replace(
        specs.model_spec, head="new score", engine=engine_for(run.model, longest), replays_experts=False
    )
    kwargs = {"model_spec": model_spec, "settings": specs.other_models, "context": specs.context}
    trainers = build_workers("trainer", kwargs, run.actor_train, role="actor_train", executor=executor, scratch=scratch)
    template = Template(tokenizer, run.model.template, model_ends(run, len(tokenizer)))
    return RewardEngines(trainers=trainers, template=template, executor=executor)


def build_reward_data(run: Run, template: Template) -> ExampleSets[RewardExample]:
    """The examples of the section; raises `ConfigError` for faulty rows unless it drops them."""
    section = section_of(run)
    encode = partial(encode_rewards, section, template=template, max_seq_len=run.rollout.max_seq_len)
    return build_examples(section, reading_of(section), encode)


def build_trainer_watch(run: Run, engines: RewardEngines) -> PhaseWatch:
    """Warnings about slow phases, with the workers that they wait for."""
    services: list[HasPendingCalls] = [engines.executor]
    describe, stopped = partial(describe_pending, services), partial(stopped_workers, services)
    return PhaseWatch(run.tracking.slow_phase_s, describe, stopped=stopped)


def build_reward_checkpointer(
    run: Run, directory: RunDirectory, engines: RewardEngines, journal: Journal
) -> Checkpointer:
    """The checkpointer, which writes models that both kinds of reward model read."""
    save_tokenizer(directory, engines.template)
    tokenizer = scoring_tokenizer(engines.template)
    return checkpointer_of(run, directory, {"": engines.trainers}, journal, tokenizer)


def scoring_tokenizer(template: Template) -> Any:
    """The tokenizer with which a conversation ends with the response's end token, where scores are read in training.

    With a chat template, that leaves out the text after it; else, a pair of prompt and response gets one.
    """
    tokenizer = copy.deepcopy(template.tokenizer)
    if template.chat:
        plain = _GENERATION.sub(_unmarked, tokenizer.chat_template)
        tokenizer.chat_template = f"{{% set rendered %}}{plain}{{% endset %}}{_WITHOUT_SPACES}"
        return tokenizer
    from tokenizers.processors import TemplateProcessing

    end, begin = tokenizer.convert_ids_to_tokens(template.eos_id), tokenizer.bos_token
    before = f"{begin} " if template.begins else ""
    special = [(end, template.eos_id), *([(begin, tokenizer.bos_token_id)] if template.begins else [])]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{before}$A", pair=f"{before}$A $B {end}", special_tokens=special
    )
    return tokenizer


def _unmarked(tag: re.Match[str]) -> str:
    """A tag that renders the same text as one of `{% generation %}`, which only marks it."""
    before, end, after = tag.groups()
    return f"{{%{before} {'endif' if end else 'if true'} {after}%}}"


def build_reward_loop(
    run: Run, engines: RewardEngines, data: ExampleSets[RewardExample], services: RunServices
) -> RewardLoop:
    """The loop with all its parts."""
    section = section_of(run)
    data.check_sizes(section, engines.trainers.size)
    return RewardLoop(
        schedule=build_schedule(run, section.key),
        loss=section.loss.spec,
        rated=section.form == "ratings",
        examples=data.examples,
        held_out=data.held_out,
        trainers=engines.trainers,
        journal=services.journal,
        checkpointer=services.checkpointer,
        report=services.reporter,
        stopping=lambda: services.interrupt.requested,
    )
