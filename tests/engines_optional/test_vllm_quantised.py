"""Weights in eight bits in a real vLLM: served as quantised, attested byte by byte, and learned from."""

import asyncio
import json
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from roll.algorithms.recipe import Objective
from roll.cluster.inline import InlineCluster
from roll.commands import train as commands
from roll.config.load import load
from roll.config.schema import Optimizer
from roll.engines.base import Generator, Trainer
from roll.engines.native.decoder import Decoder
from roll.engines.vllm.generator import VllmGenerator
from roll.errors import ConfigError, RunStopped
from roll.journal.events import WeightsPublished
from roll.journal.store import Journal
from roll.serving.canary import canary_for
from roll.serving.publisher import Publisher
from roll.serving.router import Router
from roll.types import Sampling, Spec
from roll.weights.buckets import NamedTensor
from roll.weights.channel import Mailbox
from roll.weights.huggingface import write_model
from roll.weights.quantization import is_quantised, quantise
from tests.engines import contract
from tests.engines.models import batch_of, collect, prompts, request, trainer
from tests.engines_optional.conftest import NEEDS_VLLM, Engines, model

pytestmark = NEEDS_VLLM
LOSS = Objective(loss=Spec("policy_gradient"))
ROWS = prompts(6, shortest=3, longest=40, seed=4)
UNTIED = {"architecture": "qwen2", "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": False}
"""With biases, one head of keys, and an output layer of its own."""


async def published(
    engine: VllmGenerator, decoder: Decoder, path: Path, channel: Mailbox, versions: int
) -> list[WeightsPublished]:
    learning = trainer(decoder, optimizer=Optimizer(lr=0.01), channel=channel)
    learning.settings = replace(learning.settings, quantization="int8")
    generators = InlineCluster[Generator]([engine])
    await learning.start()
    await engine.start()
    with closing(Journal(path / "journal.db")) as journal:
        publisher = Publisher(
            trainers=InlineCluster[Trainer]([learning]),
            generators=generators,
            router=Router(generators),
            journal=journal,
            canary=canary_for(vocab=40, max_seq_len=contract.CONTEXT, exact=False),
        )
        for version in range(versions):
            if version:
                await learning.update(batch_of(prompts(6, shortest=4, longest=12, seed=version)), LOSS)
            await publisher.publish(version)
        journal.flush()
        return [entry.event for entry in journal.events(WeightsPublished)]


@pytest.mark.parametrize(("name", "changes"), [("qwen3", {}), ("qwen2 untied", UNTIED)])
def test_publications_are_attested_over_the_quantised_tensors(
    name: str, changes: dict[str, Any], engines: Engines, tmp_path: Path
) -> None:
    decoder, channel = model(**changes), Mailbox()
    engine = engines.serving(decoder, f"int8 {name}", channel, quantization="int8")
    events = asyncio.run(published(engine, decoder, tmp_path, channel, 3))
    assert len(events) == 3 and all(one.digest != other.digest for one, other in pairwise(events))
    assert all("torch.int8:" in event.digest for event in events)


class Changed(Mailbox):
    """Delivers one number of a layer with another last bit."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def receive(self, *, version: int) -> Iterable[NamedTensor]:
        for name, tensor in super().receive(version=version):
            if version and name.endswith(self.name):
                tensor.view(torch.int8)[3, 0] ^= 1  # of a scale, the last bit of its mantissa
            yield name, tensor


@pytest.mark.parametrize("name", ["1.mlp.up_proj.weight", "0.self_attn.k_proj.weight_scale"])
def test_a_changed_weight_or_scale_ends_the_run(name: str, engines: Engines, tmp_path: Path) -> None:
    decoder, channel = model(), Changed(name)
    engine = engines.serving(decoder, "int8 qwen3", channel, quantization="int8")
    with pytest.raises(RunStopped, match=r"version 1: generator 0 does not hold the trainer's weights: these weights"):
        asyncio.run(published(engine, decoder, tmp_path, channel, 2))


def test_logprobs_are_those_of_the_quantised_model(engines: Engines, tmp_path: Path) -> None:
    """The reference is transformers with int8 weights, and activations rounded per token to 127 steps of their largest.

    Without activations rounded it would differ by more, and with other weights by far more.
    """
    decoder, channel = model(), Mailbox()
    engine = engines.serving(decoder, "int8 qwen3", channel, quantization="int8")

    async def run() -> dict[str, Any]:
        await published(engine, decoder, tmp_path, channel, 2)
        await engine.submit([request(str(at), ids, 24, sampling=Sampling()) for at, ids in enumerate(ROWS)])
        return await collect(engine, len(ROWS))

    answers = asyncio.run(run())
    write_model(tmp_path / "model", decoder.config, dict(decoder.named_tensors()))
    plain, weights, both = (mean_gap(tmp_path / "model", answers, steps) for steps in (0, 1, 2))
    assert both < 2e-3 and both < weights / 5 and both < plain / 5


def mean_gap(path: Path, answers: dict[str, Any], steps: int) -> float:
    """Mean difference to a model of which weights (1), and activations too (2), are rounded."""
    reference: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    for name, module in reference.named_modules():
        if isinstance(module, nn.Linear) and is_quantised(f"{name}.weight"):
            if steps > 0:
                weight, scale = quantise(module.weight, "int8")
                module.weight.data = weight * scale
            if steps > 1:
                module.register_forward_pre_hook(rounded)
    gaps: list[float] = []
    for at, ids in enumerate(ROWS):
        answer = answers[str(at)]
        with torch.no_grad():
            logits = reference(torch.tensor([[*ids, *answer.ids]])).logits[0, len(ids) - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(answer.ids)[:, None]).flatten()
        gaps += (expected - torch.tensor(answer.logprobs)).abs().tolist()
    return sum(gaps) / len(gaps)


def rounded(module: nn.Module, inputs: tuple[torch.Tensor]) -> torch.Tensor:
    scale = inputs[0].abs().amax(-1, keepdim=True) / 127
    return (inputs[0] / scale).round() * scale


def test_a_run_learns_from_samples_of_a_quantised_model_with_a_correction(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(f"""\
directory: {tmp_path}
steps: 8
threads: 1
model: {{shape: {{alphabet: "0123456789+=", hidden: 64, layers: 1, heads: 2, kv_heads: 2, mlp: 64, max_seq_len: 96}}}}
algorithm: {{recipe: grpo, correction: truncate}}
tasks: [{{name: sums, data: {{kind: arithmetic, digits: 1}}, reward: "tests.engines_optional.test_learning:sevens"}}]
rollout: {{groups_per_step: 8, group_size: 8, max_seq_len: 96, max_new_tokens: 4}}
actor_train: {{devices: cpu, optimizer: {{lr: 1e-2}}}}
actor_infer: {{backend: vllm, max_num_seqs: 64, kv_cache_gib: 0.25, enforce_eager: true, quantization: int8}}
tracking: {{tensorboard: false}}
""")
    commands.train(load(tmp_path / "run.yaml"), overwrite=False)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["step"]]
    rewards = [line["reward/mean"] for line in steps]
    assert sum(rewards[-2:]) / 2 > rewards[0] + 0.15
    gaps = [line["sampler_mismatch/mean"] for line in steps]
    assert min(gaps) > 1e-5 and max(gaps) < 0.1, "the gap of a quantised sampler is reported, and small"


def test_fp8_without_a_gpu_that_has_it_is_refused(engines: Engines) -> None:
    engine = engines.serving(model(), "fp8", quantization="fp8")
    with pytest.raises(ConfigError, match=r"actor_infer.quantization \(fp8\): only GPUs from Ada and Hopper on"):
        asyncio.run(engine.start())
