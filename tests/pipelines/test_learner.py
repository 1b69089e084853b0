"""How many optimizer steps a batch is good for, and who is asked about it before."""

import asyncio
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from roll.algorithms.credit import Memory
from roll.algorithms.recipe import Kl, Objective, Recipe
from roll.checkpoint import Checkpoints
from roll.cluster.inline import InlineCluster
from roll.engines.base import Scorer, Trainer
from roll.engines.fake import FakeTrainer
from roll.journal.store import Journal
from roll.pipelines.checkpointer import Keeper
from roll.pipelines.learner import Learner
from roll.pipelines.reference_models import Models
from roll.tracking.meter import Meter
from roll.types import Batch, Call
from tests.engines.models import batch_of

PLAIN = Recipe(advantage=Call("group_normalised"), loss=Call("clipped"), aggregation=Call("token_mean"))
ROWS = [[1, 2, 3], [4, 5], [6, 7, 8, 9], [1, 3], [2, 4, 6], [3, 5]]


class Witness(FakeTrainer):
    """Counts what it is asked, keeps what it is to minimise, and answers every question with one number."""

    def __init__(self, answer: float = -1.0) -> None:
        super().__init__()
        self.answer, self.asked = answer, list[str]()
        self.objectives: list[Objective] = []

    async def update(self, batch: Batch, objective: Objective) -> dict[str, float]:
        self.objectives.append(objective)
        return await super().update(batch, objective)

    async def logprobs(self, batch: Batch) -> torch.Tensor:
        self.asked.append("logprobs")
        return torch.full((batch.num_tokens,), self.answer)

    async def values(self, batch: Batch) -> torch.Tensor:
        self.asked.append("values")
        return torch.full((batch.num_tokens,), self.answer)


def batch() -> Batch:
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 0.0])
    domains = ("light", "light", "light", "heavy", "heavy", "heavy")
    return batch_of(ROWS, rewards=rewards, domains=domains, advantages=None, weights=None)


def learn(
    path: Path, recipe: Recipe, actor: Witness, *, step: int = 1, memory: Memory | None = None, **models: Any
) -> tuple[Batch, dict[str, float]]:
    """One step on one batch."""
    actors = InlineCluster[Trainer]([actor])
    clusters = {name: InlineCluster[Any]([model]) for name, model in models.items()}

    async def go(journal: Journal) -> tuple[Batch, dict[str, float]]:
        keeper = Keeper(
            directory=path,
            checkpoints=Checkpoints(path / "checkpoints", keep=1),
            trainers=actors,
            critic=None,
            journal=journal,
            tokenizer=None,
            best="",
        )
        learner = Learner(
            recipe=recipe,
            actor=actors,
            models=Models(**clusters),
            journal=journal,
            keeper=keeper,
            max_refused=1,
            seed=0,
            memory=memory or Memory(),
        )
        meter = Meter()
        credited = learner.credit(await learner.score(batch(), meter), meter)
        await learner.update(step, credited, meter)
        return credited, meter.flush()

    with closing(Journal(path / "journal.db")) as journal:
        return asyncio.run(go(journal))


def test_one_update_asks_nobody_anything(tmp_path: Path) -> None:
    actor = Witness()
    credited, _ = learn(tmp_path, PLAIN, actor)
    assert (actor.asked, actor.num_updates, credited.old_logprobs) == ([], 1, None)


def test_several_updates_recompute_logprobs_once_and_go_through_every_trajectory(tmp_path: Path) -> None:
    actor = Witness(answer=-2.5)
    recipe = replace(PLAIN, epochs=2, minibatches=3, needs=frozenset({"old_logprobs"}))
    credited, _ = learn(tmp_path, recipe, actor)
    assert actor.asked == ["logprobs"] and actor.num_updates == 6
    assert credited.old_logprobs is not None and set(credited.old_logprobs.tolist()) == {-2.5}
    for epoch in (actor.batches[:3], actor.batches[3:]):
        seen = [trajectory for part in epoch for trajectory in part.trajectory.tolist()]
        assert sorted(seen) == list(range(6)) and all(len(part.lengths) == 2 for part in epoch)
    dealt = [[part.trajectory.tolist() for part in actor.batches[at : at + 3]] for at in (0, 3)]
    assert dealt[0] != dealt[1], "each epoch deals anew"


def test_every_optimizer_step_has_a_denominator_of_its_own(tmp_path: Path) -> None:
    actor = Witness()
    learn(tmp_path, replace(PLAIN, minibatches=3, needs=frozenset({"old_logprobs"})), actor)
    for part in actor.batches:
        assert part.weights is not None and float(part.weights.sum()) == pytest.approx(1.0)


def test_a_domain_has_credit_of_its_own_and_counts_by_its_weight(tmp_path: Path) -> None:
    actor = Witness()
    own = replace(PLAIN, advantage=Call("batch_centred"), weight=3.0)
    credited, _ = learn(tmp_path, replace(PLAIN, domains={"heavy": own}), actor)
    (seen,) = actor.batches
    assert seen.weights is not None and credited.advantages is not None
    here = credited.trajectory[torch.repeat_interleave(torch.tensor(credited.lengths))] >= 3
    share = 1.0 / int(credited.trained.sum())
    assert seen.weights[here & credited.trained].unique().tolist() == pytest.approx([3 * share])
    assert seen.weights[~here & credited.trained].unique().tolist() == pytest.approx([share])
    earned = credited.advantages[here & credited.trained].unique().tolist()
    assert earned == pytest.approx([-1 / 3, 2 / 3])  # rewards 1, 0, 0 less their mean, whatever the others got


def test_a_critic_is_asked_and_taught_and_learns_alone_at_first(tmp_path: Path) -> None:
    recipe = replace(PLAIN, advantage=Call("gae"), critic_warmup=1, needs=frozenset({"critic"}))
    actor, critic = Witness(), Witness(answer=0.5)
    credited, found = learn(tmp_path, recipe, actor, critic=critic)
    assert (critic.asked, critic.num_updates, actor.num_updates) == (["values"], 1, 0)
    assert credited.returns is not None and "critic/policy" in found
    learn(tmp_path / "later", recipe, actor, step=2, critic=critic)
    assert (critic.num_updates, actor.num_updates) == (2, 1)


def test_reference_and_teacher_score_the_batch_where_they_are(tmp_path: Path) -> None:
    kl = Kl(estimator=Call("k1"), coefficient=0.1, place="loss")
    reference, teacher = Witness(answer=-3.0), Witness(answer=-4.0)
    credited, found = learn(tmp_path, replace(PLAIN, kl=kl), Witness(), reference=reference, teacher=teacher)
    assert (reference.asked, teacher.asked) == (["logprobs"], ["logprobs"])
    assert credited.ref_logprobs is not None and set(credited.ref_logprobs.tolist()) == {-3.0}
    assert credited.teacher_logprobs is not None and set(credited.teacher_logprobs.tolist()) == {-4.0}
    assert found["kl/reference"] == pytest.approx(3.0)


def test_a_coefficient_that_adapts_is_the_reported_one_in_this_step_and_another_in_the_next(tmp_path: Path) -> None:
    kl = Kl(estimator=Call("k1"), coefficient=0.1, place="loss", target=0.5, horizon=6)
    actor = Witness()
    _, found = learn(tmp_path, replace(PLAIN, kl=kl), actor, memory=Memory(kl_coefficient=0.1), reference=Witness(-3.0))
    assert found["kl/coefficient"] == 0.1
    assert [objective.kl_coefficient for objective in actor.objectives] == [0.1]


def test_a_reward_model_adds_its_score_of_the_whole(tmp_path: Path) -> None:
    class Counting(Witness):
        """Says how many tokens came before each."""

        async def values(self, batch: Batch) -> torch.Tensor:
            return torch.cat([torch.arange(length) for length in batch.lengths]).float()

    judge: Scorer = Counting()
    credited, found = learn(tmp_path, PLAIN, Witness(), reward_model=judge)
    assert found["reward/model"] == pytest.approx(sum(len(row) for row in ROWS) / len(ROWS))
    expected = [reward + len(row) for reward, row in zip([1, 0, 0, 1, 0, 0], ROWS, strict=True)]
    assert credited.rewards.tolist() == expected
