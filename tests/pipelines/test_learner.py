"""Optimizer steps per batch, and the models that score it before."""

import asyncio
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from roll.algorithms.credit import AlgorithmState
from roll.algorithms.recipe import Objective, Recipe
from roll.checkpoint import Checkpoints
from roll.cluster.inline import InlineCluster
from roll.config.algorithm import Kl
from roll.config.section import SpecConfig
from roll.engines.base import LogprobModel, Trainer
from roll.engines.fake import FakeTrainer
from roll.journal.store import Journal
from roll.pipelines.checkpointer import Checkpointer
from roll.pipelines.learner import Learner
from roll.pipelines.reference_models import AuxiliaryModels
from roll.tracking.meter import Meter
from roll.types import Batch, Spec
from tests.engines.models import batch_of

PLAIN = Recipe(advantage=Spec("group_normalised"), loss=Spec("clipped"), aggregation=Spec("token_mean"))
ROWS = [[1, 2, 3], [4, 5], [6, 7, 8, 9], [1, 3], [2, 4, 6], [3, 5]]


class Witness(FakeTrainer):
    """Records calls and objectives, and scores every token with one value."""

    def __init__(self, answer: float = -1.0) -> None:
        super().__init__()
        self.answer, self.calls = answer, list[str]()
        self.objectives: list[Objective] = []

    async def update(self, batch: Batch, objective: Objective) -> dict[str, float]:
        self.objectives.append(objective)
        return await super().update(batch, objective)

    async def logprobs(self, batch: Batch) -> torch.Tensor:
        self.calls.append("logprobs")
        return torch.full((batch.num_tokens,), self.answer)

    async def values(self, batch: Batch) -> torch.Tensor:
        self.calls.append("values")
        return torch.full((batch.num_tokens,), self.answer)


def batch() -> Batch:
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 0.0])
    domains = ("light", "light", "light", "heavy", "heavy", "heavy")
    return batch_of(ROWS, rewards=rewards, domains=domains, advantages=None, weights=None)


def learn(
    path: Path, recipe: Recipe, actor: Witness, *, step: int = 1, state: AlgorithmState | None = None, **models: Any
) -> tuple[Batch, dict[str, float]]:
    """One step on one batch."""
    actors = InlineCluster[Trainer]([actor])
    clusters = {name: InlineCluster[Any]([model]) for name, model in models.items()}

    async def go(journal: Journal) -> tuple[Batch, dict[str, float]]:
        checkpointer = Checkpointer(
            directory=path,
            checkpoints=Checkpoints(path / "checkpoints", keep=1),
            trainers={"": actors},
            critic=None,
            journal=journal,
            tokenizer=None,
            best="",
        )
        learner = Learner(
            recipe=recipe,
            actor=actors,
            models=AuxiliaryModels(**clusters),
            journal=journal,
            checkpointer=checkpointer,
            max_nonfinite_updates=1,
            seed=0,
            state=state or AlgorithmState(),
        )
        meter = Meter()
        credited = learner.credit(await learner.score(batch(), meter), meter)
        await learner.update(step, credited, meter)
        return credited, meter.flush()

    with closing(Journal(path / "journal.db")) as journal:
        return asyncio.run(go(journal))


def test_one_update_needs_no_scores(tmp_path: Path) -> None:
    actor = Witness()
    credited, _ = learn(tmp_path, PLAIN, actor)
    assert (actor.calls, actor.num_updates, credited.old_logprobs) == ([], 1, None)


def test_several_updates_recompute_logprobs_once_and_go_through_every_trajectory(tmp_path: Path) -> None:
    actor = Witness(answer=-2.5)
    recipe = replace(PLAIN, epochs=2, minibatches=3, needs=frozenset({"old_logprobs"}))
    credited, _ = learn(tmp_path, recipe, actor)
    assert actor.calls == ["logprobs"] and actor.num_updates == 6
    assert credited.old_logprobs is not None and set(credited.old_logprobs.tolist()) == {-2.5}
    for epoch in (actor.batches[:3], actor.batches[3:]):
        seen = [trajectory for part in epoch for trajectory in part.trajectory.tolist()]
        assert sorted(seen) == list(range(6)) and all(len(part.lengths) == 2 for part in epoch)
    dealt = [[part.trajectory.tolist() for part in actor.batches[at : at + 3]] for at in (0, 3)]
    assert dealt[0] != dealt[1], "each epoch shuffles again"


def test_every_optimizer_step_has_its_own_denominator(tmp_path: Path) -> None:
    actor = Witness()
    learn(tmp_path, replace(PLAIN, minibatches=3, needs=frozenset({"old_logprobs"})), actor)
    for part in actor.batches:
        assert part.weights is not None and float(part.weights.sum()) == pytest.approx(1.0)


def test_a_domain_with_its_own_recipe_is_credited_apart_and_weighted(tmp_path: Path) -> None:
    actor = Witness()
    recipe = replace(PLAIN, advantage=Spec("batch_centred"), weight=3.0)
    credited, _ = learn(tmp_path, replace(PLAIN, domains={"heavy": recipe}), actor)
    (seen,) = actor.batches
    assert seen.weights is not None and credited.advantages is not None
    here = credited.trajectory[torch.repeat_interleave(torch.tensor(credited.lengths))] >= 3
    share = 1.0 / int(credited.trained.sum())
    assert seen.weights[here & credited.trained].unique().tolist() == pytest.approx([3 * share])
    assert seen.weights[~here & credited.trained].unique().tolist() == pytest.approx([share])
    earned = credited.advantages[here & credited.trained].unique().tolist()
    assert earned == pytest.approx([-1 / 3, 2 / 3])  # rewards 1, 0, 0 less their mean, whatever the others got


def test_a_critic_scores_and_is_trained_and_first_alone(tmp_path: Path) -> None:
    recipe = replace(PLAIN, advantage=Spec("gae"), critic_warmup=1, needs=frozenset({"critic"}))
    actor, critic = Witness(), Witness(answer=0.5)
    credited, found = learn(tmp_path, recipe, actor, critic=critic)
    assert (critic.calls, critic.num_updates, actor.num_updates) == (["values"], 1, 0)
    assert credited.returns is not None and "critic/policy" in found
    learn(tmp_path / "later", recipe, actor, step=2, critic=critic)
    assert (critic.num_updates, actor.num_updates) == (2, 1)


def test_reference_and_teacher_score_the_batch_where_they_are(tmp_path: Path) -> None:
    kl = Kl(estimator=SpecConfig(kind="k1"), coefficient=0.1, apply_to="loss")
    reference, teacher = Witness(answer=-3.0), Witness(answer=-4.0)
    credited, found = learn(tmp_path, replace(PLAIN, kl=kl), Witness(), reference=reference, teacher=teacher)
    assert (reference.calls, teacher.calls) == (["logprobs"], ["logprobs"])
    assert credited.ref_logprobs is not None and set(credited.ref_logprobs.tolist()) == {-3.0}
    assert credited.teacher_logprobs is not None and set(credited.teacher_logprobs.tolist()) == {-4.0}
    assert found["kl/reference"] == pytest.approx(3.0)


def test_a_coefficient_that_adapts_is_the_reported_one_in_this_step_and_another_in_the_next(tmp_path: Path) -> None:
    kl = Kl(estimator=SpecConfig(kind="k1"), coefficient=0.1, apply_to="loss", target=0.5, horizon=6)
    actor = Witness()
    _, found = learn(
        tmp_path, replace(PLAIN, kl=kl), actor, state=AlgorithmState(kl_coefficient=0.1), reference=Witness(-3.0)
    )
    assert found["kl/coefficient"] == 0.1
    assert [objective.kl_coefficient for objective in actor.objectives] == [0.1]


def test_a_reward_model_adds_its_score_of_the_trajectory(tmp_path: Path) -> None:
    class Counting(Witness):
        """Says how many tokens came before each."""

        async def values(self, batch: Batch) -> torch.Tensor:
            return torch.cat([torch.arange(length) for length in batch.lengths]).float()

    judge: LogprobModel = Counting()
    credited, found = learn(tmp_path, PLAIN, Witness(), reward_model=judge)
    assert found["reward/model"] == pytest.approx(sum(len(row) for row in ROWS) / len(ROWS))
    expected = [reward + len(row) for reward, row in zip([1, 0, 0, 1, 0, 0], ROWS, strict=True)]
    assert credited.rewards.tolist() == expected
