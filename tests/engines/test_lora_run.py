"""Whole runs with adapters: config, memory plan, bitwise resume, export, and learning."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from roll.cli import main
from roll.commands import train as commands
from roll.config.load import LoadedRun, load
from roll.config.lora import TARGETS
from roll.data.templates import character_tokenizer
from roll.engines.native import lora
from roll.engines.native.model_spec import ModelSpec, build
from roll.errors import ConfigError
from roll.explain.placement import placement_report
from roll.explain.run import explain
from roll.journal.events import WeightsPublished
from roll.journal.store import Reader
from roll.placement.facts import facts_of
from roll.placement.machine import parse_cluster
from roll.placement.planner import plan_devices
from roll.preflight import preflight
from roll.tracking.sinks import read_lines
from roll.types import Task
from roll.weights.huggingface import read_tensors, write_model
from tests.engines.models import small

pytestmark = pytest.mark.slow

RUN = f"""\
name: run
deterministic: true
threads: 1
steps: 4
model: {{shape: {{alphabet: "0123456789+=", hidden: 32, layers: 2, heads: 4, kv_heads: 2, mlp: 64, max_seq_len: 64}}}}
algorithm: {{recipe: grpo, kl: {{estimator: k3, coefficient: 0.05, apply_to: loss}}}}
tasks: [{{name: sums, data: {{kind: arithmetic, digits: 1}}, reward: "{__name__}:sevens"}}]
rollout: {{groups_per_step: 4, group_size: 4, max_seq_len: 16, max_new_tokens: 4}}
actor_train: {{tokens_per_microbatch: 64, optimizer: {{lr: 0.02}}, lora: {{rank: 4, alpha: 8}}}}
actor_infer: {{max_num_seqs: 8}}
checkpoint: {{every: 2}}
tracking: {{tensorboard: false}}
"""


def sevens(task: Task, reply: str) -> float:
    """Reward grows with the number of sevens; a random model gets a little."""
    return reply.count("7") / 4


@pytest.fixture(autouse=True)
def _settings_of_torch() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., LoadedRun]:
    """The run file with overrides."""

    def loaded(*changes: str) -> LoadedRun:
        (tmp_path / "run.yaml").write_text(RUN)
        return load(tmp_path / "run.yaml", [f"directory={tmp_path}", *changes])

    return loaded


def metrics(run: Path) -> list[dict[str, Any]]:
    """All metrics that do not depend on time."""
    return [
        {name: value for name, value in line.items() if not name.startswith(("time", "speed/"))}
        for line in read_lines(run / "metrics.jsonl")
    ]


def test_a_resumed_run_equals_an_unbroken_one(start: Any, tmp_path: Path) -> None:
    commands.train(start("name=whole"), overwrite=False)
    commands.train(start("name=cut", "steps=2"), overwrite=False)
    files = {file.name for file in (tmp_path / "cut" / "checkpoints" / "step-2").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "optimizer"} <= files
    assert not {"config.json", "model.safetensors"} & files, "the model itself is where it was"
    commands.resume(tmp_path / "cut", ["steps=4"])
    whole, cut = (dict(read_tensors(tmp_path / name / "model")) for name in ("whole", "cut"))
    assert whole.keys() == cut.keys() and all(torch.equal(whole[name], cut[name]) for name in whole)
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "cut")
    assert metrics(tmp_path / "whole")[-1]["loss/kl"] > 0, "the reference stays where the run began"
    assert not (tmp_path / "whole" / "reference").exists(), "no copy of it is kept"


def test_another_adapter_is_refused_on_resume(start: Any, tmp_path: Path) -> None:
    commands.train(start("steps=2"), overwrite=False)
    for change, message in {
        "actor_train.lora.rank=8": r"actor_train.lora.rank: the adapter in .*step-2 has 4 \(got 8\)",
        "actor_train.lora.target_modules=[q_proj]": "actor_train.lora.target_modules: .* set the same value here",
        "actor_train.lora=null": "actor_train.lora: .*step-2 was saved by a run that trains adapters; add it again",
    }.items():
        with pytest.raises(ConfigError, match=message) as refused:
            commands.resume(tmp_path / "run", ["steps=3", change])
        assert "\n" not in str(refused.value)
        torch.use_deterministic_algorithms(False)


def test_the_export_is_a_whole_model_or_the_adapter_alone(start: Any, tmp_path: Path) -> None:
    for name in ("merged", "adapter"):
        commands.train(start("steps=2", f"name={name}", f"actor_train.lora.export={name}"), overwrite=False)
    adapter = tmp_path / "adapter" / "model"
    again = start(f"actor_train.lora.path={adapter}").run
    decoder = build(ModelSpec(model=again.model, lora=again.actor_train.lora))
    pairs, whole = dict(decoder.adapter_tensors()), dict(read_tensors(tmp_path / "merged" / "model"))
    assert any(bool(tensor.any()) for name, tensor in pairs.items() if "lora_B" in name)
    for name, tensor in lora.merge(decoder.named_tensors(), pairs, 2.0):
        assert torch.equal(tensor, whole[name]), name


def test_a_checkpoint_can_be_exported_merged_or_as_adapter(
    start: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decoder, base = build(ModelSpec(model=start().run.model)), tmp_path / "base"
    write_model(base, decoder.config, dict(decoder.named_tensors()))
    tokenizer: Any = character_tokenizer("0123456789+=")
    tokenizer.chat_template = "{{ messages[0].content }}"
    tokenizer.save_pretrained(base)
    (base / "generation_config.json").write_text('{"temperature": 0.6, "eos_token_id": [0, 1]}')
    commands.train(start("steps=2", f"model={{path: {base}}}"), overwrite=False)
    run, whole, apart = (str(tmp_path / name) for name in ("run", "whole", "apart"))
    for arguments in ([run, "--output", whole], [run, "--output", apart, "--adapter-only"]):
        with pytest.raises(SystemExit) as ended:
            main(["export", *arguments])
        assert not ended.value.code
    merged = dict(read_tensors(tmp_path / "run" / "model"))
    assert all(torch.equal(tensor, merged[name]) for name, tensor in read_tensors(Path(whole)))
    for folder in (tmp_path / "whole", tmp_path / "run" / "model", tmp_path / "run" / "checkpoints" / "step-2"):
        assert (folder / "tokenizer.json").is_file() and (folder / "chat_template.jinja").is_file()
        assert (folder / "generation_config.json").read_text() == (base / "generation_config.json").read_text()
    saved = dict(read_tensors(tmp_path / "run" / "checkpoints" / "step-2"))
    assert all(torch.equal(tensor, saved[name]) for name, tensor in read_tensors(Path(apart)))
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["export", run, "--output", whole])
    assert ended.value.code == 2 and "exists already; name another" in capsys.readouterr().err
    adapter = tmp_path / "run" / "checkpoints" / "step-2" / "adapter_model.safetensors"
    adapter.write_bytes(adapter.read_bytes()[:-1] + b"?")
    with pytest.raises(SystemExit) as ended:
        main(["export", run, "--output", str(tmp_path / "damaged")])
    assert ended.value.code == 2 and "adapter_model.safetensors: its content has changed" in capsys.readouterr().err
    assert not (tmp_path / "damaged").exists()


def test_adapters_are_sent_between_two_modules_of_one_process(start: Any, tmp_path: Path) -> None:
    changes = ("deterministic=false", "rollout.max_staleness=1", "algorithm.correction={kind: truncate}")
    commands.train(start(*changes), overwrite=False)
    with closing(Reader(tmp_path / "run" / "journal.db")) as journal:
        assert len({entry.event.digest for entry in journal.events(WeightsPublished)}) == 5


@pytest.mark.sweep
def test_a_run_with_adapters_learns(start: Any, tmp_path: Path) -> None:
    shape = start().run.model.shape
    tokenizer = character_tokenizer(shape.alphabet)
    tokenizer.save_pretrained(tmp_path / "model")
    decoder = small(vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id, max_position_embeddings=64)
    write_model(tmp_path / "model", decoder.config, dict(decoder.named_tensors()))  # whose logits are far from flat
    more = ["steps=10", "rollout.groups_per_step=8", "rollout.group_size=8", "actor_train.optimizer.lr=0.03"]
    commands.train(start(*more, f"model={{path: {tmp_path / 'model'}}}", "checkpoint.every=0"), overwrite=False)
    rewards = [line["reward/mean"] for line in metrics(tmp_path / "run") if line["step"]]
    assert rewards[0] < 0.25
    assert sum(rewards[-3:]) / 3 > rewards[0] + 0.25, rewards


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["actor_train.lora.rank=17"],
            r"actor_train.lora.rank: k_proj is 32 x 16, so its rank is at most 16 \(got 17\)",
        ),
        (["actor_train.lora.rank=0"], r"actor_train.lora.rank: must be greater than 0 \(got 0\)"),
        (
            ["actor_train.lora.target_modules=[q_porj]"],
            "actor_train.lora.target_modules: a layer has no projection 'q_porj'; did you ",
        ),
        (["actor_train.lora.target_modules=[lm_head]"], "no projection 'lm_head'; known: dense, "),
        (
            ["actor_train.lora.target_modules=[q_proj,q_proj]"],
            "actor_train.lora.target_modules: a projection is named twice",
        ),
        (["actor_train.lora.rnak=4"], "unknown key 'actor_train.lora.rnak'; did you mean 'rank'"),
        (
            ["executor=ray", "reference.workers=2"],
            "reference.workers: with actor_train.lora the reference is the actor without",
        ),
        (["critic.lora={rank: 4}"], "unknown key 'critic.lora'"),
        (
            [
                "executor=ray",
                "deterministic=false",
                "actor_train={backend: fsdp2, workers: 2, parallel: {tp: 2}, lora: {rank: 4}}",
            ],
            r"actor_train.parallel.tp \(2\): adapters are not divided",
        ),
    ],
)
def test_unsupported_combinations_are_refused_in_one_line(changes: list[str], message: str, start: Any) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        start(*changes)
    assert "\n" not in str(refused.value)


def test_a_rank_is_checked_against_the_model_in_a_directory(start: Any, tmp_path: Path) -> None:
    commands.train(start("steps=1", "name=first"), overwrite=False)
    model = f"model={{path: {tmp_path / 'first' / 'model'}}}"
    preflight(start(model, "actor_train.lora.rank=16"))
    with pytest.raises(ConfigError, match=r"actor_train.lora.rank: k_proj is 32 x 16") as refused:
        preflight(start(model, "actor_train.lora.rank=32", f"actor_train.lora.path={tmp_path}"))
    assert "no adapter_config.json" in str(refused.value)


def test_explain_shows_the_trained_parameters_and_the_reference(start: Any) -> None:
    run = start().run
    text = " ".join(explain(run).split())
    assert "rank 4 on q_proj, k_proj" in text and "only they are trained and published" in text
    assert "not started: the actor without its adapters" in text
    one_layer = (32 + 32) + 2 * (32 + 16) + (32 + 32) + 2 * (32 + 64) + (64 + 32)
    decoder = build(ModelSpec(model=run.model, lora=run.actor_train.lora))
    assert sum(each.numel() for each in decoder.parameters() if each.requires_grad) == 2 * 4 * one_layer
    assert f"trained: {2 * 4 * one_layer:,} adapter parameters" in placement_report(run)


def test_the_memory_plan_counts_adapters_and_a_frozen_model_in_its_dtype(tmp_path: Path) -> None:
    text = """\
model: {path: models/Qwen3-0.6B}
algorithm: {recipe: grpo, kl: {estimator: k3, coefficient: 0.05, apply_to: loss}}
tasks: [{name: sums, data: arithmetic, reward: exact}]
executor: ray
actor_train: {devices: [0], dtype: bfloat16, lora: {rank: 16}}
actor_infer: {backend: vllm, devices: [1]}
"""
    (tmp_path / "run.yaml").write_text(text)
    facts = facts_of(load(tmp_path / "run.yaml").run)
    assert [role.role for role in facts.roles] == ["actor_train", "actor_infer"], "the reference is for free"
    actor = facts.role("actor_train")
    model = actor.model
    assert model is not None
    # Qwen3-0.6B: 28 layers of width 1024, queries of 2048, keys of 1024 and a feed-forward of 3072 numbers
    one_layer = (1024 + 2048) + 2 * (1024 + 1024) + (2048 + 1024) + 2 * (1024 + 3072) + (3072 + 1024)
    assert actor.adapters == 28 * 16 * one_layer
    shares = plan_devices(facts, parse_cluster("2xH200")).shares
    held = {each.part: each.bytes for each in shares if (each.role, each.phase) == ("actor_train", "update")}
    assert held["weights"] == 2 * model.parameters
    assert held["adapters"] == held["gradients"] == 4 * actor.adapters
    assert held["optimizer"] == 8 * actor.adapters
    assert "rounded" not in held


def test_all_projections_are_targets_by_default(start: Any) -> None:
    lora_of = start().run.actor_train.lora
    assert lora_of.target_modules == TARGETS
    assert start("actor_train.lora.target_modules=[v_proj, q_proj]").run.actor_train.lora.target_modules == (
        "q_proj",
        "v_proj",
    )
    assert json.loads(lora_of.model_dump_json())["export"] == "merged"
