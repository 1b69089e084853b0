"""Steps towards a teacher: values, gradients and memory against plain formulas in double precision."""

import asyncio
import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from roll.algorithms.distillation import Distillation, TeacherTokens
from roll.config.schema import Optimizer, Shape
from roll.data.collate import supervised
from roll.engines.base import OutputLayer
from roll.engines.native.attention import Ragged
from roll.engines.native.decoder import Decoder
from roll.engines.native.distillation import DistillationTargets, NativeDistiller, NativeTeacher, chunked_losses
from roll.engines.native.mixed import Precision
from roll.engines.native.trainer import NativeTrainerSettings
from roll.types import Batch, Sampling, Spec
from roll.weights.channel import Shared
from roll.weights.huggingface import config_of

VOCAB = 23
ROWS = [[[1, 2, 3], [4, 5, 6, 7, 8]], [[9], [10, 11]], [[3, 3], [12], [13, 14], [15, 16, 17]], [[5, 6, 7, 8], [9, 1]]]


def decoder_of(seed: int, hidden: int, vocab: int = VOCAB) -> Decoder:
    shape = Shape(hidden=hidden, layers=1, heads=2, kv_heads=1, mlp=32)
    config = config_of(shape, vocab_size=vocab, eos_id=0, pad_id=1, bos_id=2)
    config.initializer_range = 0.4
    decoder = Decoder(config)
    decoder.initialise(seed)
    return decoder


def settings(budget: int) -> NativeTrainerSettings:
    return NativeTrainerSettings(
        optimizer=Optimizer(kind="sgd", lr=1.0, max_grad_norm=None),
        total_steps=9,
        tokens_per_microbatch=budget,
        sampling=Sampling(),
        device=torch.device("cpu"),
    )


def logits_before(decoder: Decoder, batch: Batch) -> Tensor:
    """Logits before the trained tokens, in double precision."""
    layout = Ragged(batch.lengths, device=torch.device("cpu"))
    hidden = decoder.hidden(batch.ids[layout.flat_tokens], layout.positions, attend=layout.attend)
    at = batch.trained.nonzero().squeeze(-1)
    before = hidden.index_select(0, layout.flat_index(at - 1))
    return before.double() @ decoder.head.double().t()


def reference(student: Decoder, teacher: Decoder, batch: Batch, top_k: int | None) -> tuple[Tensor, dict[str, Tensor]]:
    """The reverse KL at temperature 2 mixed with a quarter of the SFT loss, each token by token, and all gradients."""
    student = copy.deepcopy(student)
    logits, goal = logits_before(student, batch), logits_before(teacher, batch).detach()
    common = min(logits.shape[-1], goal.shape[-1])
    q, p = (logits[:, :common] / 2).softmax(-1), (goal[:, :common] / 2).softmax(-1)
    if top_k is not None:
        order = p.argsort(-1, descending=True)
        q, p = (
            torch.cat([row.gather(-1, order)[:, :top_k], row.gather(-1, order)[:, top_k:].sum(-1, keepdim=True)], -1)
            for row in (q, p)
        )
    divergence = 4 * (q * (q.log() - p.log())).sum(-1)
    surprise = -logits.log_softmax(-1)[torch.arange(len(logits)), batch.ids[batch.trained]]
    loss = 0.75 * divergence + 0.25 * surprise
    loss.mean().backward()
    gradients = {name: each.grad for name, each in student.named_parameters() if each.grad is not None}
    return torch.stack([loss, divergence, surprise]).detach(), gradients


def step(student: Decoder, teacher: Decoder, batch: Batch, top_k: int | None, budget: int) -> Any:
    """The metrics of one step, the losses before it, and the change of every parameter."""
    student = copy.deepcopy(student)
    before = {name: each.detach().clone() for name, each in student.named_parameters()}
    trainer, source = NativeDistiller(student, settings(budget), Shared()), NativeTeacher(teacher, settings(budget))
    common = min(len(student.head), len(teacher.head))
    objective = Distillation(divergence=Spec("reverse_kl"), temperature=2.0, sft_weight=0.25, vocab=common)

    async def run() -> tuple[dict[str, float], Tensor]:
        await trainer.start()
        await trainer.receive_teacher(await source.output_layer())
        tokens = await (source.hidden_states(batch) if top_k is None else source.most_likely(batch, top_k, objective))
        losses = await trainer.distillation_losses(batch, tokens, objective)
        return await trainer.distil(batch, tokens, objective), losses

    metrics, losses = asyncio.run(run())
    return metrics, losses, {name: before[name] - each.detach() for name, each in student.named_parameters()}


@pytest.mark.parametrize("budget", [200, 11])
@pytest.mark.parametrize("top_k", [None, 5, VOCAB])
def test_a_step_is_that_of_the_formula_for_any_micro_batches(top_k: int | None, budget: int):
    batch, student, teacher = supervised(ROWS), decoder_of(0, 16), decoder_of(1, 24)
    teacher.requires_grad_(False)
    untouched = [each.clone() for each in teacher.parameters()]
    expected, gradients = reference(student, teacher, batch, None if top_k == VOCAB else top_k)
    metrics, losses, changes = step(student, teacher, batch, top_k, budget)
    torch.testing.assert_close(losses.double(), expected, atol=1e-5, rtol=1e-5)
    reported = [metrics[f"loss/{name}"] for name in ("policy", "divergence", "surprise")]
    assert reported == pytest.approx(expected.mean(1).tolist(), abs=1e-5)
    assert set(gradients) == set(changes)
    for name, change in changes.items():
        torch.testing.assert_close(change, gradients[name].float(), atol=1e-5, rtol=1e-5, msg=name)
    assert all(torch.equal(one, other) for one, other in zip(untouched, teacher.parameters(), strict=True))


@pytest.mark.parametrize(("mine", "yours"), [(VOCAB, 30), (30, VOCAB)])
def test_models_with_different_numbers_of_rows_are_compared_on_the_common_ones(mine: int, yours: int):
    batch, student, teacher = supervised(ROWS), decoder_of(0, 16, mine), decoder_of(1, 24, yours)
    expected, _ = reference(student, teacher, batch, None)
    for top_k in (None, VOCAB):
        losses = step(student, teacher, batch, top_k, 200)[1]
        torch.testing.assert_close(losses.double(), expected, atol=1e-5, rtol=1e-5)


class Largest(TorchDispatchMode):
    """The largest number of values in any tensor that an operation returns."""

    numel = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else [result]:
            if isinstance(each, Tensor):
                self.numel = max(self.numel, each.numel())
        return result


@pytest.mark.parametrize("top_k", [None, 8])
def test_chunks_give_the_same_gradient_and_no_tensor_of_tokens_by_vocabulary(top_k: int | None):
    draw = torch.Generator().manual_seed(0)
    tokens, vocab, width = 96, 512, 8
    states, weight, hidden, layer = (torch.randn(n, width, generator=draw) for n in (tokens, vocab, tokens, vocab))
    logits = hidden @ layer.t()
    chosen = logits.topk(top_k or 1).indices
    logprobs = logits.log_softmax(-1).gather(-1, chosen)
    others = (1 - logprobs.exp().sum(-1, keepdim=True)).log()
    teacher = (
        TeacherTokens(hidden=hidden)
        if top_k is None
        else TeacherTokens(ids=chosen, logprobs=torch.cat([logprobs, others], -1))
    )
    targets = DistillationTargets(ids=torch.arange(tokens), teacher=teacher, layer=OutputLayer(weight=layer))
    objective = Distillation(divergence=Spec("jensen_shannon"), vocab=vocab)

    def gradients(logit_bytes: int) -> tuple[Tensor, Tensor, int]:
        x, w = states.clone().requires_grad_(), weight.clone().requires_grad_()
        with Largest() as largest:
            losses = chunked_losses(x, OutputLayer(weight=w), targets, objective, logit_bytes=logit_bytes)
            losses[0].sum().backward()
        assert x.grad is not None and w.grad is not None
        return x.grad, w.grad, largest.numel

    whole, small = gradients(2**30), gradients(4 * vocab * 8)
    assert whole[2] >= tokens * vocab > 8 * small[2]
    for one, other in zip(whole[:2], small[:2], strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_in_16_bits_the_losses_are_those_of_32_up_to_rounding():
    batch, student, teacher = supervised(ROWS), decoder_of(0, 16), decoder_of(1, 24)
    objective = Distillation(divergence=Spec("forward_kl"), vocab=VOCAB)

    async def losses(precision: Precision) -> Tensor:
        used = replace(settings(200), precision=precision)
        trainer = NativeDistiller(copy.deepcopy(student), used, Shared())
        await trainer.start()
        tokens = await NativeTeacher(teacher, used).most_likely(batch, 5, objective)
        assert (await trainer.distil(batch, tokens, objective))["loss/grad_norm"] > 0
        return await trainer.distillation_losses(batch, tokens, objective)

    wide, narrow = (asyncio.run(losses(Precision(dtype=dtype))) for dtype in (None, torch.bfloat16))
    torch.testing.assert_close(wide, narrow, atol=0.1, rtol=0.1)
    assert not torch.equal(wide, narrow)
