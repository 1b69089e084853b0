"""Training as one plain loop: no scheduler, buffer, router or journal, all prompts at once.

A run in deterministic mode must equal this, bit for bit.
"""

import numpy as np

from roll.algorithms.credit import Memory, assign_credit, weigh
from roll.algorithms.recipe import Objective, Recipe
from roll.config.schema import Run
from roll.data.collate import collate
from roll.data.mixture import Draw, Mixture
from roll.data.templates import Template
from roll.engines.base import Generator, Output, Request, Trainer
from roll.engines.native.sampling import noise_key
from roll.rewards.base import call
from roll.types import Call, Finish, Group, Sampling, Segment, Status, Trajectory, Turn


async def train_plainly(
    run: Run, recipe: Recipe, mixture: Mixture, template: Template, trainer: Trainer, generator: Generator
) -> None:
    """Every step of `run`, whose tasks have one turn and one source; both engines share their weights."""
    reward = Call(run.tasks[0].reward.kind)
    for _ in range(run.steps):
        draws = [mixture.draw() for _ in range(run.rollout.groups_per_step)]
        asked = [[request(run, template, draw, sibling) for sibling in range(run.rollout.group_size)] for draw in draws]
        await generator.submit([one for siblings in asked for one in siblings])
        found: dict[str, Output] = {}
        while len(found) < run.rollout.groups_per_step * run.rollout.group_size:
            found |= {output.id: output for output in await generator.events(60.0)}
        groups: list[Group] = []
        for number, (draw, siblings) in enumerate(zip(draws, asked, strict=True)):
            attempts: list[Trajectory] = []
            for sibling, one in enumerate(siblings):
                score = (await call(reward, draw.task, template.decode(found[one.id].ids))).score
                row = (Segment(turns=(turn(one, found[one.id]),)),)
                attempts.append(
                    Trajectory(task=draw.task, sibling=sibling, segments=row, status=Status.FINISHED, score=score)
                )
            groups.append(Group(id=number, birth=0, trajectories=tuple(attempts)))
        batch, _, _ = assign_credit(collate(groups), recipe, Memory())
        await trainer.update(weigh(batch, recipe.aggregation), Objective(loss=recipe.loss))


def request(run: Run, template: Template, draw: Draw, sibling: int) -> Request:
    task, limits, number = draw.task, run.rollout, draw.attempt * (run.rollout.max_retries + 1)
    ids, kind = template.open(task.messages, place=""), Sampling(limits.temperature, limits.top_k, limits.top_p)
    key = noise_key(run.seed, "train", task.domain, task.id, number, sibling, 0)
    names = {"id": f"{task.id}/{sibling}", "ids": tuple(ids.tolist()), "key": key}
    return Request(**names, max_new_tokens=limits.max_new_tokens, sampling=kind, stop=template.eos_ids)


def turn(asked: Request, output: Output) -> Turn:
    ids, logprobs, versions = np.array(output.ids), np.array(output.logprobs), np.zeros(len(output.ids))
    row = {"observation": np.array(asked.ids), "sampled": ids, "sampler_logprobs": logprobs, "versions": versions}
    return Turn(**row, finish=output.finish or Finish.ABORT)
