"""Every recipe takes finite, nonzero steps from the file to the weights; those that should improve a model do."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from roll.commands import train as commands
from roll.config.load import LoadedRun, load
from roll.engines.native.decoder import Decoder
from roll.engines.native.model_spec import ModelSpec, build
from roll.preflight import preflight
from roll.types import Task
from roll.weights.huggingface import read_tensors, write_model
from roll.wiring.models import build_tokenizer

pytestmark = [pytest.mark.learns, pytest.mark.sweep]
EXAMPLE = Path(__file__).parents[2] / "examples" / "arithmetic.yaml"
IMPROVES = ("grpo", "rloo", "reinforce++", "dapo", "gspo", "cispo", "tis", "topr", "ppo")
OTHERS = (
    "dr_grpo",
    "reinforce",
    "reinforce++_baseline",
    "lite_ppo",
    "raft++",
    "kimi15",
    "sapo",
    "gmpo",
    "decoupled_ppo",
    "step_reinforce",
    "gigpo",
)
RUN = f"""\
deterministic: true
threads: 2
model:
  shape: {{alphabet: "0123456789+=", hidden: 32, layers: 1, heads: 2, kv_heads: 2, mlp: 64, max_seq_len: 32}}
algorithm: grpo
tasks: [{{name: sums, data: {{kind: arithmetic, digits: 1}}, reward: "{__name__}:sevens"}}]
rollout: {{groups_per_step: 8, group_size: 8, max_seq_len: 16, max_new_tokens: 4}}
actor_train: {{optimizer: {{lr: 1e-2}}}}
critic: {{optimizer: {{lr: 1e-2}}}}
tracking: {{tensorboard: false}}
checkpoint: {{every: 0}}
"""


def sevens(task: Task, reply: str) -> float:
    """A random model earns a little of it, and more with every seven."""
    return reply.count("7") / 4


def train(folder: Path, name: str, *overrides: str) -> list[dict[str, float]]:
    """What each step of a run reported."""
    path = folder / "run.yaml"
    path.write_text(RUN, encoding="utf-8")
    return _trained(load(path, [f"directory={folder}", f"name={name}", *overrides]), folder / name)


def _trained(loaded: LoadedRun, directory: Path) -> list[dict[str, float]]:
    preflight(loaded)
    try:
        commands.train(loaded, overwrite=False)
    finally:
        torch.use_deterministic_algorithms(False)
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["step"]]


@pytest.mark.parametrize("recipe", IMPROVES)
def test_a_recipe_improves_a_model(recipe: str, tmp_path: Path) -> None:
    found = train(tmp_path, recipe, f"algorithm={recipe}", "steps=12")
    rewards = [line["reward/mean"] for line in found]
    assert rewards[0] < 0.15
    assert sum(rewards[-3:]) / 3 > rewards[0] + 0.25


@pytest.mark.parametrize("recipe", (*IMPROVES, *OTHERS, "opd"))
def test_a_recipe_trains_the_demo_model_however_its_batch_is_cut(recipe: str, tmp_path: Path) -> None:
    """Plain SGD, so that what the weights have moved is the gradient."""
    changes = [
        f"algorithm={recipe}",
        "steps=1",
        "rollout.groups_per_step=6",
        f"tasks.0.reward='{__name__}:sevens'",
        "validation.tasks=[]",
        "sft.stop_at_accuracy=null",
        "actor_train.optimizer={kind: sgd, lr: 2e-2, max_grad_norm: null}",
    ]
    if recipe == "opd":
        changes.append(f"teacher={{path: {_other_model(tmp_path / 'teacher')}}}")
    moved: list[dict[str, torch.Tensor]] = []
    for name, budget in (("whole", 8192), ("cut", 32)):
        loaded = load(EXAMPLE, [f"directory={tmp_path}", f"name={name}", *changes])
        run = loaded.run.model_copy(
            update={"actor_train": loaded.run.actor_train.model_copy(update={"tokens_per_microbatch": budget})}
        )
        before = dict(build(ModelSpec(model=run.model, seed=run.seed)).named_tensors())
        _took_steps(_trained(replace(loaded, run=run), tmp_path / name))
        after = dict(read_tensors(tmp_path / name / "model"))
        moved.append({key: after[key] - before[key].detach() for key in after})
    whole, cut = (torch.cat([moves[key].flatten() for key in sorted(moves)]) for moves in moved)
    assert whole.norm() > 0
    assert float((whole - cut).norm() / whole.norm()) < 2e-4  # what is left of it in fp32 weights


def test_distillation_brings_a_student_to_its_teacher(tmp_path: Path) -> None:
    train(tmp_path, "teacher", "algorithm=tis", "steps=12")
    teacher = f"teacher={{path: {tmp_path / 'teacher' / 'model'}}}"
    found = train(tmp_path, "student", "algorithm=opd", teacher, "steps=12")
    _took_steps(found)
    assert found[-1]["reward/mean"] > found[0]["reward/mean"] + 0.25, "though it never saw a reward"


def test_a_reward_model_is_learned_from(tmp_path: Path) -> None:
    """A classifier with random weights says nothing sensible, but a policy can learn to please it."""
    (tmp_path / "run.yaml").write_text(RUN, encoding="utf-8")
    model = load(tmp_path / "run.yaml").run.model
    tokenizer, body = build_tokenizer(model), build(ModelSpec(model=model))
    judge = Decoder(body.config, scored=True)
    score = torch.randn(1, body.shape.hidden, generator=torch.Generator().manual_seed(3))
    judge.load([*body.named_tensors(), ("score.weight", score)], where="test")
    directory = tmp_path / "judge"
    directory.mkdir()
    write_model(directory, body.config, dict(judge.named_tensors()))
    tokenizer.save_pretrained(directory)
    named = f"reward_model={{path: {directory}, weight: 2.0}}"
    found = train(tmp_path, "pleasing", "algorithm=tis", "steps=12", named)
    pleased = [line["reward/model"] for line in found]
    assert sum(pleased[-3:]) / 3 > sum(pleased[:3]) / 3 + 1.0


def _other_model(directory: Path) -> Path:
    """The demo's shape with other weights."""
    model = load(EXAMPLE).run.model
    tokenizer, decoder = build_tokenizer(model), build(ModelSpec(model=model, seed=1))
    directory.mkdir()
    write_model(directory, decoder.config, dict(decoder.named_tensors()))
    tokenizer.save_pretrained(directory)
    return directory


def _took_steps(found: list[dict[str, float]]) -> None:
    for line in found:
        assert line["loss/refused"] == 0
        assert math.isfinite(line["loss/grad_norm"]) and line["loss/grad_norm"] > 0
