"""Adapters on a frozen 16-bit model on a GPU: compiled, packed, with the gradient of 32 bits up to rounding.

With vLLM beside the trainer they are published to it, attested, and outlive its sleep.
"""

import asyncio
import json
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from roll.algorithms.recipe import Objective
from roll.cluster.inline import InlineCluster
from roll.config.load import load
from roll.config.lora import Lora
from roll.config.schema import Model, Optimizer
from roll.engines.base import Generator, Trainer
from roll.engines.native import lora
from roll.engines.native.decoder import Decoder
from roll.engines.native.mixed import Precision
from roll.engines.native.model_spec import ModelSpec, build
from roll.engines.native.trainer import NativeTrainer, NativeTrainerSettings
from roll.engines.vllm.generator import VllmGenerator, VllmSettings
from roll.journal.events import WeightsPublished
from roll.journal.store import Journal
from roll.placement.machine import GIB, visible_gpus
from roll.placement.memory import USABLE
from roll.placement.records import Offload
from roll.serving.canary import canary_for
from roll.serving.publisher import Publisher
from roll.serving.router import Router
from roll.types import Batch, Sampling, Spec
from roll.weights.adapters import write_adapter
from roll.weights.channel import Mailbox
from roll.weights.huggingface import write_model
from roll.wiring.placing import plan_placement
from tests.engines.models import CPU, Answer, batch_of, collect, prompts, request, small

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
CUDA = torch.device("cuda")
LORA = Lora(rank=8, alpha=16)
NARROW = Precision(dtype=torch.bfloat16)
NEEDS_VLLM = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")


@pytest.fixture
def model_spec(tmp_path: Path) -> ModelSpec:
    """A model with 16-bit weights, and an adapter that is not zero."""
    numbers = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    named = {"architectures": ["Qwen3ForCausalLM"], "dtype": "bfloat16"}
    decoder = small("qwen3", vocab_size=500, intermediate_size=256, initializer_range=0.1, **numbers, **named)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    write_model(tmp_path / "model", decoder.config, dict(decoder.named_tensors()))
    lora.initialise(lora.attach(decoder, LORA), 0)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in decoder.adapter_tensors():
            if name.endswith("lora_B.weight"):
                tensor.copy_(torch.randn(tensor.shape, generator=noise) * 0.05)
    write_adapter(tmp_path / "adapter", LORA, decoder.adapter_tensors(), base=None)
    lora_spec = LORA.model_copy(update={"path": str(tmp_path / "adapter")})
    return ModelSpec(model=Model(path=str(tmp_path / "model")), lora=lora_spec)


def settings(precision: Precision, device: torch.device) -> NativeTrainerSettings:
    return NativeTrainerSettings(
        optimizer=Optimizer(kind="sgd", lr=1.0, max_grad_norm=None),
        total_steps=10,
        tokens_per_microbatch=400,
        sampling=Sampling(),
        device=device,
        precision=precision,
    )


def example() -> Batch:
    return batch_of(prompts(24, vocab=500, shortest=4, longest=60, seed=3))


def learned(decoder: Decoder, precision: Precision, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient of all adapters, and the logprobs of the model without them."""

    async def step() -> torch.Tensor:
        engine = NativeTrainer(decoder, settings(precision, device), Mailbox())
        await engine.start()
        assert (await engine.update(example(), Objective(loss=Spec("clipped"))))["loss/refused"] == 0
        result = await engine.base_logprobs(example())
        await engine.send(1)
        return result

    before = [tensor.detach().cpu().clone() for _, tensor in decoder.adapter_tensors()]
    reference = asyncio.run(step())
    after = [tensor.detach().cpu() for _, tensor in decoder.adapter_tensors()]
    return torch.cat([(old - new).flatten() for old, new in zip(before, after, strict=True)]), reference


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_gradient_of_adapters_is_that_of_32_bits_up_to_rounding(model_spec: ModelSpec, checkpointing: bool) -> None:
    wide, reference = learned(build(model_spec), Precision(), CPU)
    narrow = Precision(dtype=torch.bfloat16, checkpointing=checkpointing)
    held = build(replace(model_spec, frozen=torch.bfloat16), CUDA)
    assert held.device.type == "cuda" and held.embed.dtype == torch.bfloat16
    result, plain = learned(held, narrow, CUDA)
    assert float((result - wide).norm() / wide.norm()) < 0.05
    assert float((plain - reference).abs().mean()) < 0.02
    assert lora.frozen_digest(held).sums.keys() == {"torch.bfloat16"}


def test_only_adapters_have_gradients_and_nothing_is_stored_twice(model_spec: ModelSpec) -> None:
    held = build(replace(model_spec, frozen=torch.bfloat16), CUDA)
    learned(held, NARROW, CUDA)
    assert all(parameter.grad is None for parameter in held.parameters())
    frozen = [parameter for parameter in held.parameters() if not parameter.requires_grad]
    assert {parameter.dtype for parameter in frozen} == {torch.bfloat16}


@NEEDS_VLLM
def test_adapters_in_vllm_survive_its_sleep_and_can_be_replaced_after_it(model_spec: ModelSpec, tmp_path: Path) -> None:
    rows = prompts(4, vocab=500)
    contexts = [request(str(at), ids, 12, sampling=Sampling(temperature=0)) for at, ids in enumerate(rows)]
    channel = Mailbox()
    learning = NativeTrainer(build(replace(model_spec, frozen=torch.bfloat16), CUDA), settings(NARROW, CUDA), channel)
    kind = VllmSettings(
        max_seq_len=96,
        max_num_seqs=8,
        max_num_batched_tokens=512,
        progress_interval=64,
        dtype="bfloat16",
        kv_cache_gib=2,
        enforce_eager=True,
        offload=True,
    )
    serving = VllmGenerator(model_spec, kind, channel)
    generators = InlineCluster[Generator]([serving])

    async def replies() -> dict[str, Answer]:
        await serving.submit(contexts)
        return await collect(serving, len(contexts))

    async def slept(work: Any = None) -> int:
        """Bytes freed by offloading and loading only the cache."""
        before = torch.cuda.mem_get_info()[0]
        await serving.offload(["kv"])
        gained = torch.cuda.mem_get_info()[0] - before
        if work is not None:
            await work
        await serving.onload(["kv"])
        return gained

    async def run() -> list[Any]:
        await learning.start()
        await serving.start()
        with closing(Journal(tmp_path / "journal.db")) as journal:
            publisher = Publisher(
                trainers=InlineCluster[Trainer]([learning]),
                generators=generators,
                router=Router(generators),
                journal=journal,
                canary=canary_for(vocab=500, max_seq_len=96, exact=False),
            )
            await publisher.publish(0)
            result: list[Any] = [await replies(), await slept(), await replies()]
            result.append(await slept(learning.update(example(), Objective(loss=Spec("clipped")))))
            await publisher.publish(1)
            result.append(await replies())
            journal.flush()
            assert len({entry.event.digest for entry in journal.events(WeightsPublished)}) == 2
        await serving.stop()
        return result

    before, gained, after, again, trained = asyncio.run(run())
    assert min(gained, again) > 1.5 * GIB
    assert after == before
    assert {name: each.ids for name, each in trained.items()} != {name: each.ids for name, each in before.items()}


def remainder(task: Any, reply: str) -> float:
    return sum(map(ord, reply)) % 7 / 7


@NEEDS_VLLM
@pytest.mark.parametrize("offload", [False, True], ids=["both resident", "taking turns"])
def test_a_run_trains_adapters_on_a_gpu_shared_with_vllm(offload: bool, tmp_path: Path) -> None:
    """The GPU is shared in turn if cache and update, by the memory plan, do not fit together."""
    kv_gib = USABLE * visible_gpus()[0][1] / GIB - 10 if offload else 1
    letters = "0123456789+=" + "".join(map(chr, range(0x100, 0x400)))  # vLLM wants no fewer than `hidden` of them
    shape = f'alphabet: "{letters}", hidden: 512, layers: 8, heads: 8, kv_heads: 8, mlp: 1024, max_seq_len: 2048'
    (tmp_path / "run.yaml").write_text(f"""\
directory: {tmp_path}
steps: 3
model: {{shape: {{{shape}}}}}
algorithm: grpo
tasks: [{{name: sums, data: {{kind: arithmetic, digits: 1}}, reward: "{__name__}:remainder"}}]
rollout: {{groups_per_step: 8, group_size: 8, max_seq_len: 2048, max_new_tokens: 16}}
actor_train:
  {{devices: cuda, dtype: bfloat16, lora: {{rank: 8}}, tokens_per_microbatch: 131072, optimizer: {{lr: 1e-2}}}}
actor_infer:
  {{backend: vllm, max_num_seqs: 64, kv_cache_gib: {kv_gib:.2f}, enforce_eager: true, offload: {str(offload).lower()}}}
tracking: {{tensorboard: false}}
""")
    plan = plan_placement(load(tmp_path / "run.yaml").run)
    assert plan.offloads == ((Offload(role="actor_infer", phase="update", parts=("kv",)),) if offload else ())
    command = [sys.executable, "-m", "roll.cli", "train", str(tmp_path / "run.yaml")]
    beside = torch.empty(0 if offload else 40 * GIB, dtype=torch.uint8, device=CUDA)  # of another, who was there first
    assert subprocess.run(command, timeout=300).returncode == 0
    del beside
    torch.cuda.empty_cache()
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert max(line["sampler_mismatch/mean"] for line in lines if line["step"]) < 0.02
    with closing(Journal(tmp_path / "run" / "journal.db")) as journal:
        assert len({entry.event.digest for entry in journal.events(WeightsPublished)}) == 4
