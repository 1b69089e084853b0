"""Policies share a batch and nothing else: each is credited and updated with its own attempts alone."""

import asyncio
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import torch

from roll.algorithms.credit import AlgorithmState, assign_credit
from roll.algorithms.partition import take
from roll.algorithms.recipe import Recipe
from roll.checkpoint import Checkpoints
from roll.cluster.inline import InlineCluster
from roll.engines.base import Trainer
from roll.engines.fake import FakeTrainer
from roll.journal.store import Journal
from roll.pipelines.checkpointer import Checkpointer
from roll.pipelines.learner import Learner, Learners
from roll.pipelines.reference_models import AuxiliaryModels
from roll.tracking.meter import Meter
from roll.types import Batch, Sampling, Spec
from tests.engines.models import batch_of

RECIPE = Recipe(
    advantage=Spec("batch_centred"),
    loss=Spec("clipped"),
    aggregation=Spec("token_mean"),
    needs=frozenset({"old_logprobs"}),
)
AGENTS = ("ann", "bob", "ann", "bob", "eve", "bob")


class Sure(FakeTrainer):
    """Finds every token equally likely."""

    def __init__(self, logprob: float) -> None:
        super().__init__()
        self.logprob = logprob

    async def logprobs(self, batch: Batch, *, sampling: Sampling | None = None) -> torch.Tensor:
        return torch.full((batch.num_tokens,), self.logprob)


def batch() -> Batch:
    rows = [[1, 2, 3], [4, 5], [6, 7, 8, 9], [1, 3], [2, 4, 6], [3, 5]]
    rewards = torch.tensor([1.0, 0.0, 3.0, 1.0, 5.0, 2.0])
    return replace(batch_of(rows, rewards=rewards, domains=("d",) * 6, advantages=None, weights=None), agents=AGENTS)


def learners(path: Path, journal: Journal) -> tuple[Learners, dict[str, Sure]]:
    trainers = {"one": Sure(-1.0), "two": Sure(-2.0), "idle": Sure(-3.0)}
    clusters = {name: InlineCluster[Trainer]([trainer]) for name, trainer in trainers.items()}
    checkpointer = Checkpointer(
        directory=path,
        checkpoints=Checkpoints(path / "checkpoints", keep=1),
        trainers=clusters,
        critic=None,
        journal=journal,
        tokenizer=None,
        best="",
    )
    by_policy = {
        name: Learner(
            recipe=RECIPE,
            actor=cluster,
            models=AuxiliaryModels(),
            journal=journal,
            checkpointer=checkpointer,
            max_nonfinite_updates=1,
            seed=0,
            state=AlgorithmState(),
            name=name,
        )
        for name, cluster in clusters.items()
    }
    policy_of = {"ann": "one", "eve": "one", "bob": "two", "ivy": "idle"}
    return Learners(by_policy=by_policy, policy_of=policy_of), trainers


def test_each_policy_is_credited_and_updated_with_its_own_attempts_alone(tmp_path: Path) -> None:
    async def go(journal: Journal) -> None:
        policies, trainers = learners(tmp_path, journal)
        meter = Meter()
        scored = await policies.score(batch(), meter)
        assert scored.old_logprobs is not None
        assert [scored.old_logprobs[index].item() for index in scored.positions([0, 1])] == [-1.0] * 3 + [-2.0] * 2
        credited = policies.credit(scored, meter)
        assert credited.advantages is not None
        ends = torch.tensor(credited.lengths).cumsum(0) - 1  # rewards less 3 for ann and eve, less 1 for bob
        assert credited.advantages[ends].tolist() == [-2.0, -1.0, 0.0, 0.0, 2.0, 1.0]
        await policies.update(1, credited, meter)
        ours, theirs = trainers["one"].batches[0], trainers["two"].batches[0]
        assert ours.agents == ("ann", "ann", "eve") and theirs.agents == ("bob",) * 3
        assert trainers["idle"].num_updates == 0, "a policy without trajectories does not learn"
        alone = take(scored, torch.tensor([agent == "bob" for agent in AGENTS])).batch
        expected = assign_credit(alone, RECIPE, AlgorithmState())[0]
        assert theirs.advantages is not None and expected.advantages is not None
        assert theirs.advantages.tolist() == expected.advantages.tolist()
        metrics = meter.flush()
        assert metrics["tokens/trained"] == metrics["policy/one/tokens/trained"] + metrics["policy/two/tokens/trained"]
        means = {name: state.reward_stats.mean for name, state in policies.state.items()}
        assert means["one"] == 3.0 and means["two"] == 1.0

    with closing(Journal(tmp_path / "journal.db")) as journal:
        asyncio.run(go(journal))
