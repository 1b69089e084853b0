"""Router replay with the real vLLM: the trainer's logprobs come nearer to those of the sampler."""

import json
from pathlib import Path

import pytest

from benchmarks.families import family_model
from roll.commands import train as commands
from roll.config.load import load
from roll.config.schema import Shape
from roll.data.templates import character_tokenizer
from roll.engines.hf.decoder import HuggingFaceDecoder
from roll.journal.store import Reader
from roll.weights.huggingface import write_model
from tests.engines_optional.conftest import NEEDS_VLLM

pytestmark = NEEDS_VLLM


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture of experts with random weights."""
    folder, tokenizer = tmp_path_factory.mktemp("experts"), character_tokenizer(Shape().alphabet)
    shape = {"num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 128, "vocab_size": len(tokenizer)}
    decoder = HuggingFaceDecoder(family_model("Qwen3-MoE", **shape))
    write_model(folder, decoder.config, dict(decoder.named_tensors()))
    tokenizer.save_pretrained(str(folder))
    return folder


def test_replay_brings_the_trainer_nearer_to_the_sampler(directory: Path, tmp_path: Path) -> None:
    lines = {replay: metrics(directory, tmp_path / str(replay), replay) for replay in (False, True)}
    assert "experts/replay_changed" not in lines[False]
    assert 0 < lines[True]["experts/replay_changed"] < 0.5
    assert lines[True]["sampler_mismatch/mean"] < lines[False]["sampler_mismatch/mean"] / 2


def metrics(directory: Path, folder: Path, replay: bool) -> dict[str, float]:
    """Of the first step of a run."""
    folder.mkdir()
    (folder / "run.yaml").write_text(f"""\
directory: {folder}
steps: 1
threads: 1
model: {{path: {directory}}}
algorithm: grpo
tasks: [{{name: sums, data: {{kind: arithmetic, digits: 1}}, reward: exact}}]
rollout: {{groups_per_step: 8, group_size: 4, max_seq_len: 64, max_new_tokens: 32}}
actor_train: {{devices: cpu, dtype: bfloat16}}
actor_infer: {{backend: vllm, max_num_seqs: 32, kv_cache_gib: 0.25, enforce_eager: true, router_replay: {replay}}}
tracking: {{tensorboard: false}}
""")
    commands.train(load(folder / "run.yaml"), overwrite=False)
    reader = Reader(folder / "run" / "journal.db")
    turns = [turn for stored in reader.trajectories() for turn in stored.trajectory.turns]
    reader.close()
    assert turns and all((turn.experts is not None) == replay for turn in turns)
    return json.loads((folder / "run" / "metrics.jsonl").read_text().splitlines()[-1])
