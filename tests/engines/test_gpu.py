"""The native engines on a GPU: the tokens and gradients of the CPU, and a run that learns."""

import asyncio
import json
from pathlib import Path

import pytest
import torch

from roll.algorithms.recipe import Objective
from roll.commands import train as commands
from roll.config.load import load
from roll.config.schema import Optimizer
from roll.engines.native.decoder import Decoder
from roll.engines.native.generator import NativeGenerator, NativeGeneratorSettings
from roll.engines.native.trainer import NativeTrainer, NativeTrainerSettings
from roll.types import Batch, Sampling, Spec, Task
from roll.weights.channel import Shared
from roll.weights.digest import digest
from tests.engines.models import CPU, batch_of, config, ours, peer, prompts, request, serve, small, twin

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
CUDA = torch.device("cuda")
ROWS = prompts(24, shortest=4, longest=60, seed=8)


def generator(decoder: Decoder) -> NativeGenerator:
    settings = NativeGeneratorSettings(
        max_num_seqs=16, max_seq_len=128, max_num_batched_tokens=512, progress_interval=64, device=CUDA
    )
    return NativeGenerator(decoder, settings, Shared())


def trainer(decoder: Decoder, device: torch.device, *, budget: int = 400) -> NativeTrainer:
    settings = NativeTrainerSettings(
        optimizer=Optimizer(kind="sgd", lr=1.0, max_grad_norm=None),
        total_steps=10,
        tokens_per_microbatch=budget,
        sampling=Sampling(),
        device=device,
    )
    return NativeTrainer(decoder, settings, Shared())


def gradient(decoder: Decoder, batch: Batch, device: torch.device) -> torch.Tensor:
    async def step() -> None:
        engine = trainer(decoder, device)
        await engine.start()
        assert (await engine.update(batch, Objective(loss=Spec("clipped"))))["loss/refused"] == 0

    before = [parameter.detach().cpu().clone() for parameter in decoder.parameters()]
    asyncio.run(step())
    after = [parameter.detach().cpu() for parameter in decoder.parameters()]
    return torch.cat([(old - new).flatten() for old, new in zip(before, after, strict=True)])


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_greedy_tokens_equal_those_of_transformers(kind: str) -> None:
    model = peer(config(kind)).to(CUDA)
    contexts = [request(str(number), ids, 24, sampling=Sampling(temperature=0)) for number, ids in enumerate(ROWS)]
    result = asyncio.run(serve(generator(ours(model.cpu())), contexts))
    model.to(CUDA)
    for one in contexts:
        ids = torch.tensor([one.ids], device=CUDA)
        seen = torch.ones_like(ids)  # else ids that equal the pad token would be hidden
        expected = model.generate(ids, attention_mask=seen, max_new_tokens=24, do_sample=False, pad_token_id=0)
        assert result[one.id].ids == tuple(expected[0, len(one.ids) :].tolist())


def test_sampler_and_trainer_agree_on_logprobs_of_samples() -> None:
    decoder = small()
    contexts = [request(str(number), ids, 20) for number, ids in enumerate(ROWS)]
    result = asyncio.run(serve(generator(decoder), contexts))
    rows = [[*one.ids, *result[one.id].ids] for one in contexts]

    async def scored() -> torch.Tensor:
        engine = trainer(decoder, CUDA)
        await engine.start()
        return await engine.logprobs(batch_of(rows))

    logprobs = asyncio.run(scored()).split([len(row) for row in rows])
    for one, row in zip(contexts, logprobs, strict=True):
        sampled = torch.tensor(result[one.id].logprobs)
        torch.testing.assert_close(row[-len(sampled) :], sampled, atol=1e-4, rtol=0)


def test_the_gradient_is_that_of_the_cpu() -> None:
    decoder, batch = small(), batch_of(ROWS)
    there, here = gradient(twin(decoder), batch, CUDA), gradient(decoder, batch, CPU)
    assert here.norm() > 0.01
    assert float((there - here).norm() / here.norm()) < 1e-4


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_the_digest_equals_that_of_the_cpu(kind: torch.dtype) -> None:
    noise = torch.Generator().manual_seed(0)
    here = [torch.randn(rows, 777, generator=noise).mul(100).to(kind) for rows in (1, 300, 4001)]
    there = [tensor.to(CUDA) for tensor in here]
    assert digest(there) == digest(here)
    assert digest([there[2].t(), there[0], there[1][:100], there[1][100:]]) == digest(here), "order does not matter"
    there[1][7, 5] *= 2
    assert digest(there) != digest(here)


def sevens(task: Task, reply: str) -> float:
    return reply.count("7") / 4


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_run_learns(staleness: int, tmp_path: Path) -> None:
    """For as long as replies differ in reward: once all are right, what is left of advantages is the critic's noise.

    With staleness the gap is how far one update moved the policy.
    """
    (tmp_path / "run.yaml").write_text(f"""\
directory: {tmp_path}
steps: 10
model: {{shape: {{alphabet: "0123456789+=", hidden: 32, layers: 1, heads: 2, kv_heads: 2, mlp: 64, max_seq_len: 32}}}}
algorithm: ppo
tasks: [{{name: sums, data: {{kind: arithmetic, digits: 1}}, reward: "{__name__}:sevens"}}]
rollout: {{groups_per_step: 8, group_size: 8, max_seq_len: 16, max_new_tokens: 4, max_staleness: {staleness}}}
actor_train: {{devices: cuda, optimizer: {{lr: 1e-2}}}}
critic: {{optimizer: {{lr: 1e-2}}}}
tracking: {{tensorboard: false}}
""")
    commands.train(load(tmp_path / "run.yaml"), overwrite=False)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    rewards = [line["reward/mean"] for line in lines if line["step"]]
    assert sum(rewards[-3:]) / 3 > rewards[0] + 0.25
    assert max(line["sampler_mismatch/max"] for line in lines if line["step"]) < (1e-3 if staleness == 0 else 3)
