"""Products in fp8: those of 32 bits within the error of the format, here by the emulated kernel."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from roll.config.load import load
from roll.config.schema import Optimizer
from roll.engines.native import fp8
from roll.engines.native.attention import Ragged
from roll.engines.native.build import WorkerContext, training_device
from roll.engines.native.fp8 import Fp8
from roll.engines.native.mixed import Precision, hidden
from roll.engines.native.trainer import NativeTrainer, NativeTrainerSettings
from roll.errors import ConfigError
from roll.types import Sampling
from roll.weights.channel import Mailbox
from roll.wiring.actor import build_engine_specs
from tests.engines.models import CPU, batch_of, config, prompts, small

ROWS = prompts(4, shortest=3, longest=12, seed=5)
NARROW = Precision(dtype=torch.bfloat16)
EIGHT = replace(NARROW, fp8=Fp8(forward=True, least_size=0))


def apart(result: Tensor, expected: Tensor) -> float:
    return float((result.detach().float() - expected).norm() / expected.norm())


def factors(num_tokens: int = 37) -> tuple[Tensor, Tensor, Tensor]:
    noise = torch.Generator().manual_seed(0)
    x, weight, gradient = (
        torch.randn(size, generator=noise) for size in ((num_tokens, 96), (96, 64), (num_tokens, 64))
    )
    return x.bfloat16(), weight * 0.02, gradient.bfloat16() * 1e-9


def test_outputs_and_gradients_are_those_of_32_bits_within_4_percent() -> None:
    x, weight, gradient = factors()
    left, right = x.clone().requires_grad_(), weight.clone().requires_grad_()
    result = fp8.product(left, right, True)
    result.backward(gradient)
    assert left.grad is not None and right.grad is not None
    assert (result.dtype, left.grad.dtype, right.grad.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    assert 0.01 < apart(result, x.float() @ weight) < 0.04
    assert 0.01 < apart(left.grad, gradient.float() @ weight.t()) < 0.04
    assert apart(right.grad, x.float().t() @ gradient.float()) < 0.005  # the gradient of weights has 16 bits


def test_a_row_is_scaled_by_itself() -> None:
    x, weight, _ = factors()
    changed = x.clone()
    changed[3], changed[5] = 0, x[5] * 2**20
    before, after = fp8.product(x, weight, True), fp8.product(changed, weight, True)
    rest = [row for row in range(len(x)) if row not in (3, 5)]
    assert torch.equal(after[rest], before[rest])
    assert torch.equal(after[5], before[5] * 2**20)
    assert not after[3].any()
    columns = weight.clone()
    columns[:, 2] *= 2**20
    assert torch.equal(fp8.product(x, columns, True)[:, 3:], before[:, 3:])


def test_values_that_are_not_finite_do_not_become_finite() -> None:
    x, weight, _ = factors()
    x[3, 0], x[5, 0] = float("inf"), float("nan")
    result = fp8.product(x, weight, True)
    assert result[[3, 5]].isnan().all()
    assert result[[0, 4, 6]].isfinite().all()


def test_large_projections_alone_have_products_in_fp8() -> None:
    decoder = small("qwen3", initializer_range=0.1)  # sizes: q, k and v 21, o 16, gate and up 26, down 21
    ragged = Ragged([len(row) for row in ROWS], device=CPU)
    ids = torch.tensor([token for row in ROWS for token in row])

    def computed(narrow: Fp8 | None) -> tuple[Tensor, Tensor]:
        decoder.zero_grad()
        result = hidden(decoder, ids, ragged.positions, ragged.attend, Precision(fp8=narrow))
        (result * torch.randn(result.shape, generator=torch.Generator().manual_seed(0))).sum().backward()
        return result.detach(), torch.cat([p.grad.flatten() for p in decoder.parameters() if p.grad is not None])

    plain, expected = computed(None)
    none, some, every = (computed(Fp8(least_size=least)) for least in (27, 25, 0))
    assert torch.equal(none[1], expected)
    assert all(torch.equal(each[0], plain) for each in (some, every))  # the forward pass is not rounded
    assert 0.005 < apart(some[1], expected) < apart(every[1], expected) < 0.1
    forward = computed(Fp8(forward=True, least_size=0))
    assert 0.01 < apart(forward[0], plain) < 0.1
    assert 0.01 < apart(forward[1], expected) < 0.3


def test_logprobs_that_a_generator_is_compared_with_have_16_bits() -> None:
    decoder, batch = small("qwen3"), batch_of(ROWS)

    async def scored(precision: Precision, sampling: Sampling | None) -> Tensor:
        settings = NativeTrainerSettings(
            total_steps=1,
            tokens_per_microbatch=512,
            sampling=Sampling(),
            device=CPU,
            precision=precision,
            optimizer=Optimizer(),
        )
        return await NativeTrainer(decoder, settings, Mailbox()).logprobs(batch, sampling=sampling)

    expected = asyncio.run(scored(NARROW, None))
    assert torch.equal(asyncio.run(scored(EIGHT, Sampling())), expected)
    assert not torch.equal(asyncio.run(scored(EIGHT, None)), expected)  # the update and old logprobs


@pytest.mark.parametrize(
    ("changes", "engine", "fault"),
    [
        ({}, "hf", r"only the native decoder has them \(got model.engine hf\)"),
        ({"intermediate_size": 72}, "native", r"multiples of 16 \(got 72 x 32 for down\)"),
        ({}, "native", r"no projection of this model is large enough to gain \(got at most 26 for"),
    ],
)
def test_a_model_without_gain_is_refused(changes: dict[str, int], engine: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=rf"actor_train\.fp8_products: .*{fault}"):
        fp8.check_model(config("qwen3", **changes), engine)


def test_the_shape_of_qwen3_0_6b_gains() -> None:
    sizes = {"hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8}
    fp8.check_model(config("qwen3", head_dim=128, **sizes), "native")


def test_only_the_actor_of_a_run_has_fp8_products_and_not_without_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(
        "model: {shape: {hidden: 1024, mlp: 3072, heads: 16, kv_heads: 8}}\nalgorithm: grpo\n"
        "tasks: [{name: sums, data: {kind: arithmetic}, reward: exact}]\n"
        "rollout: {max_seq_len: 128, max_new_tokens: 8}\n"
        "actor_train: {dtype: bfloat16, fp8_products: all}\nactor_infer: {backend: vllm}\n"
    )
    run = load(tmp_path / "run.yaml").run
    specs = build_engine_specs(run, Optimizer(), 10, supervised=False)
    assert specs.training.precision.fp8 == Fp8(forward=True)
    assert specs.other_models.precision == NARROW
    on_cpu = WorkerContext(device_key="actor_train.devices", device="cpu", threads=1, deterministic=False)
    training_device(specs.other_models, on_cpu)
    with pytest.raises(ConfigError, match=r"fp8_products: needs a GPU \(got actor_train.devices on cpu\)"):
        training_device(specs.training, on_cpu)
