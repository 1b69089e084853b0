"""Roles whose model is sharded over their processes: who is made, how often, and where they meet."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from roll.cluster.handle import RankGroup
from roll.cluster.inline import InlineCluster
from roll.cluster.serialization import pack, unpack
from roll.config.load import load
from roll.engines.fsdp.logprob_model import FsdpLogprobModel
from roll.engines.fsdp.trainer import FsdpTrainer
from roll.engines.megatron.logprob_model import MegatronLogprobModel
from roll.engines.megatron.trainer import MegatronTrainer
from roll.serving.recovery import RecoveringCluster
from roll.types import Spec
from roll.wiring.actor import build_engine_specs, place_actor
from roll.wiring.models import build_models, build_tokenizer

TEXT = """\
executor: ray
model: {shape: {alphabet: "0123456789+=", hidden: 16, layers: 1, heads: 2, kv_heads: 2, mlp: 32, max_seq_len: 64}}
rollout: {max_seq_len: 32, max_new_tokens: 8}
algorithm: {recipe: ppo, kl: {coefficient: 0.1}}
tasks: [{name: sums, data: arithmetic, reward: exact}]
actor_train: {backend: fsdp2, workers: 4, parallel: {tp: 2}, offload: true}
critic: {sharded: true, workers: 2}
reference: {sharded: true, workers: 3}
"""


class Recorder:
    """An executor that makes every worker here, of which none is started."""

    def __init__(self) -> None:
        self.made: dict[str, list[Any]] = {}

    def cluster(self, worker: Spec, size: int, *, role: str, python: str | None = None) -> InlineCluster[Any]:
        call: Spec = unpack(pack(worker))
        module, _, attribute = call.name.partition(":")
        make = getattr(__import__(module, fromlist=[attribute]), attribute)
        self.made[role] = [make(rank, **call.kwargs) for rank in range(size)]
        return InlineCluster[Any](self.made[role])

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


def test_ranks_of_a_role_meet_at_a_place_of_their_own_and_are_one_worker(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(TEXT)
    run, executor = load(tmp_path / "run.yaml").run, Recorder()
    parts = replace(
        build_engine_specs(run, run.actor_train.optimizer, 7, supervised=False), scratch=tmp_path / "weights"
    )
    actor = place_actor(run, parts, executor, tmp_path / "weights")
    models = build_models(run, build_tokenizer(run.model), parts, executor)
    for role, size in (("actor_train", 4), ("critic", 2), ("reference", 3)):
        ranks = [worker.ranks for worker in executor.made[role]]
        assert [each.rank for each in ranks] == list(range(size))
        (layout,) = {each.layout for each in ranks}
        assert (layout.size, layout.role) == (size, role) and layout.url.startswith(
            f"file://{tmp_path}/weights-{role}-"
        )
    for cluster in (actor.trainers, models.critic, models.reference):
        assert isinstance(cluster, RecoveringCluster) and isinstance(cluster.cluster, RankGroup)
    trainer, critic, reference = (executor.made[role][0] for role in ("actor_train", "critic", "reference"))
    assert isinstance(trainer, FsdpTrainer) and (trainer.ranks.layout.tp, trainer.ranks.layout.offload) == (2, True)
    assert isinstance(critic, FsdpTrainer) and critic.decoder.score is not None and trainer.decoder.score is None
    assert critic.settings.optimizer == run.critic.optimizer
    assert type(reference) is FsdpLogprobModel
    assert [worker.channel.__class__.__name__ for worker in executor.made["actor_train"]] == ["Disk", *["Shared"] * 3]


def test_roles_of_a_megatron_trainer_are_sharded_with_its_layout(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(TEXT)
    sections = (
        "actor_train={backend: megatron, workers: 4, parallel: {tp: 2}}",
        "critic={sharded: true, workers: 2, optimizer: {lr: 0.5}}",
        "reference={sharded: true, workers: 4}",
    )
    run, executor = load(tmp_path / "run.yaml", sections).run, Recorder()
    parts = replace(
        build_engine_specs(run, run.actor_train.optimizer, 7, supervised=False), scratch=tmp_path / "weights"
    )
    build_models(run, build_tokenizer(run.model), parts, executor)
    critic, reference = executor.made["critic"][0], executor.made["reference"][0]
    assert isinstance(critic, MegatronTrainer) and type(reference) is MegatronLogprobModel
    sizes = [(each.ranks.layout.size, each.ranks.layout.tp, each.ranks.layout.dp) for each in (critic, reference)]
    assert sizes == [(2, 2, 1), (4, 2, 2)]
    assert critic.settings.optimizer.lr == 0.5
    assert (critic.model_spec.head, reference.model_spec.head) == ("new score", "logits")
