"""Which roles a run starts, where, and that what makes them can travel."""

from pathlib import Path
from typing import Any

import pytest
import torch

from roll.cluster.inline import InlineCluster
from roll.cluster.serialization import pack, unpack
from roll.config.load import load
from roll.config.schema import Run
from roll.engines.native.build import WorkerContext, configure_torch
from roll.engines.native.model_spec import ModelSpec, build
from roll.errors import ConfigError
from roll.types import Spec
from roll.wiring.actor import build_actor, build_canary, build_engine_specs, place_actor
from roll.wiring.models import build_models, build_roles, build_tokenizer

TEXT = """\
executor: ray
seed: 3
model: {shape: {alphabet: "0123456789+=", hidden: 16, layers: 1, heads: 2, kv_heads: 1, mlp: 32, max_seq_len: 64}}
rollout: {max_seq_len: 32, max_new_tokens: 8, temperature: 0.7}
algorithm: {recipe: ppo, kl: {coefficient: 0.1}}
tasks: [{name: sums, data: arithmetic, reward: exact, top_k: 5}]
"""


def test_a_bf16_canary_samples_more_tokens(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(
        TEXT.replace("max_seq_len: 64", "max_seq_len: 256").replace("max_seq_len: 32", "max_seq_len: 200")
    )
    narrow = ["actor_train={dtype: bfloat16}", "actor_infer={backend: vllm}", "executor=inline", "algorithm=grpo"]
    found = [build_canary(load(tmp_path / "run.yaml", given).run) for given in ([], narrow)]
    assert [(len(each.ids), each.num_new) for each in found if each is not None] == [(64, 2), (64, 4)]


class Recorder:
    """An executor that notes who is to be made where, and makes them here."""

    def __init__(self) -> None:
        self.placed: dict[str, tuple[int, str | None]] = {}
        self.made: dict[str, Any] = {}

    def cluster(self, worker: Spec, size: int, *, role: str, python: str | None = None) -> InlineCluster[Any]:
        self.placed[role] = (size, python)
        call: Spec = unpack(pack(worker))
        module, _, attribute = call.name.partition(":")
        make = getattr(__import__(module, fromlist=[attribute]), attribute)
        self.made[role] = make(0, **call.kwargs)
        return InlineCluster[Any]([self.made[role]])

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


def run_of(folder: Path, *changes: str) -> Run:
    (folder / "run.yaml").write_text(TEXT)
    return load(folder / "run.yaml", changes).run


def test_every_role_is_built_from_its_spec_with_the_configured_workers(tmp_path: Path) -> None:
    run = run_of(tmp_path, "actor_infer={workers: 3, python: /other/python}", "reference.workers=2")
    parts, executor = build_engine_specs(run, run.actor_train.optimizer, 7, supervised=False), Recorder()
    actor = place_actor(run, parts, executor, tmp_path / "weights")
    tokenizer, decoder = build_tokenizer(run.model), build(ModelSpec(model=run.model, seed=run.seed))
    build_models(run, tokenizer, parts, executor)
    assert executor.placed == {
        "actor_train": (1, None),
        "actor_infer": (3, "/other/python"),
        "reference": (2, None),
        "critic": (1, None),
    }
    assert not actor.transport.concurrent, "files are written before they are read"
    for role in ("actor_train", "actor_infer", "reference"):
        found = dict(executor.made[role].decoder.named_tensors())
        assert all(torch.equal(found[name], tensor) for name, tensor in decoder.named_tensors()), role
    critic = executor.made["critic"]
    body = {name: tensor for name, tensor in critic.decoder.named_tensors() if name != "score.weight"}
    assert critic.decoder.score.count_nonzero() == 0
    assert all(torch.equal(tensor, dict(decoder.named_tensors())[name]) for name, tensor in body.items())
    assert executor.made["actor_train"].settings.sampling_of["sums"].top_k == 5
    assert executor.made["actor_train"].settings.total_steps == 7
    assert not any(weight.requires_grad for weight in executor.made["reference"].decoder.parameters())
    assert executor.made["actor_infer"].channel.directory == tmp_path / "weights"


def test_inline_trainer_and_generator_share_a_module_only_while_nothing_is_stale(tmp_path: Path) -> None:
    for staleness, shared in (("0", True), ("1", False)):
        run = run_of(tmp_path, "executor=inline", f"rollout.max_staleness={staleness}")
        actor = build_actor(run, build_engine_specs(run, run.actor_train.optimizer, 7, supervised=True))
        (trainer,), (generator,) = actor.trainers._workers, actor.generators._workers  # type: ignore[attr-defined]
        assert (trainer.decoder is generator.decoder) is shared


def test_a_model_that_is_too_short_for_the_run_is_refused_before_anything_starts(tmp_path: Path) -> None:
    run = run_of(tmp_path, "executor=inline")
    build(ModelSpec(model=run.model)).config.save_pretrained(tmp_path / "model")
    build_tokenizer(run.model).save_pretrained(tmp_path / "model")
    other = run_of(tmp_path, "executor=inline", f"model={{path: {tmp_path}/model}}", "rollout.max_seq_len=100")
    with pytest.raises(ConfigError, match=r"rollout.max_seq_len: the model supports 64 \(got 100\); lower it"):
        build_roles(other, other.actor_train.optimizer, 1)


@pytest.mark.parametrize("role", ["reference", "critic", "teacher", "reward_model"])
def test_another_model_that_is_too_short_for_the_run_is_refused_before_anything_starts(
    tmp_path: Path, role: str
) -> None:
    short = run_of(tmp_path, "executor=inline")
    build(ModelSpec(model=short.model)).config.save_pretrained(tmp_path / "model")
    build_tokenizer(short.model).save_pretrained(tmp_path / "model")
    changes = ["executor=inline", f"{role}={{path: {tmp_path}/model}}", "model.shape.max_seq_len=128"]
    if role == "teacher":
        changes.append("algorithm.needs=[teacher, critic]")
    limit = 63 if role == "reward_model" else 64  # a reward model reads the last token twice
    for longest, fits in ((limit, True), (limit + 1, False)):
        run = run_of(tmp_path, *changes, f"rollout.max_seq_len={longest}")
        specs = build_engine_specs(run, run.actor_train.optimizer, 7, supervised=False)
        if fits:
            with pytest.raises(ConfigError, match="safetensors"):  # the check of the length has passed
                build_models(run, build_tokenizer(run.model), specs, Recorder())
        else:
            with pytest.raises(ConfigError, match=r"the model supports 64 tokens \(the run needs 65\); lower"):
                build_models(run, build_tokenizer(run.model), specs, Recorder())


def test_a_device_that_is_not_there_is_refused_by_its_key() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    context = WorkerContext(device_key="actor_infer.devices", device="cuda:1", threads=0, deterministic=False)
    with pytest.raises(ConfigError, match=r"actor_infer.devices: no GPU is visible \(got 'cuda:1'\)"):
        configure_torch(context)


def test_products_are_left_to_blas_where_onednn_has_nothing_else_to_offer() -> None:
    configure_torch(WorkerContext(device_key="actor_infer.devices", device="cpu", threads=0, deterministic=False))
    slower = torch.backends.mkldnn.is_acl_available() and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert not (slower and torch.backends.mkldnn.enabled)


def test_a_score_is_read_where_there_is_one_and_begins_at_zero_where_a_critic_does(tmp_path: Path) -> None:
    from roll.weights.huggingface import write_model

    run = run_of(tmp_path)
    scored = build(ModelSpec(model=run.model, seed=1, head="new score"))
    with torch.no_grad():
        assert scored.score is not None
        scored.score.fill_(0.5)
    write_model(tmp_path / "judge", scored.config, dict(scored.named_tensors()))
    model = run.model.model_copy(update={"path": str(tmp_path / "judge"), "shape": None})
    for head in ("score", "new score"):
        found = build(ModelSpec(model=model, head=head)).score  # type: ignore[arg-type]
        assert found is not None and found[0, 0] == 0.5, "a head that is there is kept"
