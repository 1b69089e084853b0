"""GRPO in 60 lines: sample, score, assign advantages, update; the parts are those of `roll train`. After `make demo`:
    python examples/rl_in_60_lines.py "model={path: runs/arithmetic-sft/model}" steps=20
With `deterministic: true` and one update per step, `roll train` ends with the same weights, bit for bit."""

import asyncio
import sys
from pathlib import Path

import numpy as np

from roll.algorithms.credit import AlgorithmState, assign_credit, with_loss_weights
from roll.algorithms.recipe import Objective
from roll.config.load import load
from roll.config.schema import Run
from roll.data.collate import collate
from roll.data.mixture import Draw, Mixture, MixturePart
from roll.data.templates import Template
from roll.engines.base import Generator, Output, Request, Trainer
from roll.engines.native.sampling import noise_key
from roll.rewards.base import score_once
from roll.types import Finish, Group, Segment, Spec, Status, Trajectory, Turn
from roll.wiring.actor import ActorHandles, build_actor, build_engine_specs, sampling_of
from roll.wiring.data import build_sources
from roll.wiring.models import build_tokenizer
from roll.wiring.run import build_recipe


async def train(run: Run) -> ActorHandles:
    """Train on single-turn tasks of one source; trainer and generator share one module."""
    actor = build_actor(run, build_engine_specs(run, run.actor_train.optimizer, run.steps, supervised=False))
    await asyncio.gather(actor.trainers.each(Trainer.start), actor.generators.each(Generator.start))
    (source,), template, recipe = (
        build_sources(run.tasks),
        Template(build_tokenizer(run.model)),
        build_recipe(run.algorithm),
    )
    mixture, size = Mixture([MixturePart(name=source.name, tasks=source.tasks)], seed=run.seed), run.rollout.group_size
    for step in range(1, run.steps + 1):
        draws = [mixture.draw() for _ in range(run.rollout.groups_per_step)]
        requests = [[request(run, template, draw, sibling) for sibling in range(size)] for draw in draws]
        await actor.generators.at(0, Generator.submit, [each for siblings in requests for each in siblings])
        outputs: dict[str, Output] = {}
        while len(outputs) < len(draws) * size:
            outputs |= {output.id: output for output in await actor.generators.at(0, Generator.events, 60.0)}
        groups: list[Group] = []
        for number, (draw, siblings) in enumerate(zip(draws, requests, strict=True)):
            attempts = [await score(run, template, draw, each, outputs[each.id]) for each in siblings]
            groups.append(Group(id=number, birth=0, trajectories=tuple(attempts)))
        batch, _, _ = assign_credit(collate(groups), recipe, AlgorithmState())
        batch = with_loss_weights(batch, recipe.aggregation)
        await actor.trainers.at(0, Trainer.update, batch, Objective(loss=recipe.loss))
        print(f"step {step}: reward {np.mean([each.reward for group in groups for each in group.trajectories]):.3f}")
    return actor


def request(run: Run, template: Template, draw: Draw, sibling: int) -> Request:
    """The request of one sibling, with its own sampling noise."""
    task, limits, number = draw.task, run.rollout, draw.attempt * (run.rollout.max_retries + 1)
    key = noise_key(run.seed, "train", task.domain, task.id, number, sibling, 0)
    ids = tuple(template.open(task.messages, where="").tolist())
    names = {"id": f"{task.id}/{sibling}", "ids": ids, "key": key, "stop": template.eos_ids}
    return Request(**names, max_new_tokens=limits.max_new_tokens, sampling=sampling_of(run))


async def score(run: Run, template: Template, draw: Draw, request: Request, output: Output) -> Trajectory:
    """The response with its reward."""
    result = await score_once(Spec(run.tasks[0].reward.kind), draw.task, template.decode(output.ids))
    ids, logprobs, versions = np.array(output.ids), np.array(output.logprobs), np.zeros(len(output.ids))
    row = {"observation": np.array(request.ids), "sampled": ids, "sampler_logprobs": logprobs, "versions": versions}
    segments = (Segment(turns=(Turn(**row, finish=output.finish or Finish.ABORT),)),)
    sibling = int(request.id.rpartition("/")[2])
    return Trajectory(task=draw.task, sibling=sibling, segments=segments, status=Status.FINISHED, score=result.score)


if __name__ == "__main__":
    file = Path(__file__).with_name("arithmetic.yaml")
    asyncio.run(train(load(file, ["algorithm.minibatches=1", *sys.argv[1:]]).run))
