"""Logprobs with hand-written gradients, compared with autograd and with a distribution computed by hand."""

import math

import pytest
import torch

from roll.engines.native.likelihood import Division, likelihood, wide_logits
from roll.engines.native.sampling import score
from roll.types import Sampling

VOCAB, WIDTH, TOKENS = 50, 12, 23


def example() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    noise = torch.Generator().manual_seed(3)
    hidden = torch.randn(TOKENS, WIDTH, generator=noise)
    head = torch.randn(VOCAB, WIDTH, generator=noise)
    return hidden, head, torch.randint(0, VOCAB, (TOKENS,), generator=noise)


def test_logprob_and_entropy_of_a_distribution_known_by_hand() -> None:
    # Logits log 1/2, log 1/4, log 1/8, log 1/8: the entropy is 1/2 + 1/2 + 3/8 + 3/8 bits.
    head = torch.tensor([[0.5], [0.25], [0.125], [0.125]]).log()
    logprobs, entropies = likelihood(torch.ones(2, 1), head, torch.tensor([1, 3]), 1.0)
    torch.testing.assert_close(logprobs, torch.tensor([0.25, 0.125]).log())
    torch.testing.assert_close(entropies, torch.full((2,), 1.75 * math.log(2)))


@pytest.mark.parametrize("logit_bytes", [1, 4 * VOCAB * 5, 2**30])
@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_results_and_gradients_are_those_of_autograd_for_any_chunk_size(
    logit_bytes: int, *, entropy_gradient: bool
) -> None:
    hidden, head, ids = example()
    result: list[list[torch.Tensor]] = []
    for by_hand in (False, True):
        x, weight = hidden.clone().requires_grad_(), head.clone().requires_grad_()
        if by_hand:
            rows = likelihood(
                x, weight, ids, 0.7, entropy_gradient=entropy_gradient, division=Division(logit_bytes=logit_bytes)
            )
        else:
            rows = score(x, weight, ids, Sampling(temperature=0.7), entropy_gradient=entropy_gradient)
        assert rows[1].requires_grad == entropy_gradient
        slopes = torch.linspace(-1, 2, TOKENS)
        loss = (rows[0] * slopes).sum() + ((rows[1] * slopes.flip(0)).sum() if entropy_gradient else 0.0)
        loss.backward()
        assert x.grad is not None and weight.grad is not None
        result.append([*(row.detach() for row in rows), x.grad, weight.grad])
    for ours, expected in zip(result[1], result[0], strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-4)


def test_the_gradient_of_the_head_is_as_wide_as_the_head() -> None:
    hidden, head, ids = example()
    weight = head.requires_grad_()
    likelihood(hidden.bfloat16(), weight, ids, 1.0, division=Division(logit_bytes=1))[0].sum().backward()
    assert weight.grad is not None and weight.grad.dtype == torch.float32
    wide = head.detach().clone().requires_grad_()
    likelihood(hidden, wide, ids, 1.0)[0].sum().backward()
    assert wide.grad is not None
    assert float((weight.grad - wide.grad).norm() / wide.grad.norm()) < 0.02


def test_logits_of_sixteen_bits_have_the_gradient_of_wide_ones() -> None:
    hidden, head, _ = example()
    slopes = torch.randn(TOKENS, VOCAB, generator=torch.Generator().manual_seed(4)).bfloat16()
    x, weight = hidden.bfloat16().requires_grad_(), head.clone().requires_grad_()
    logits = wide_logits(x, weight)
    torch.testing.assert_close(logits, x.detach().float() @ head.bfloat16().float().t())
    logits.backward(slopes.float())
    assert x.grad is not None and weight.grad is not None and weight.grad.dtype == torch.float32
    torch.testing.assert_close(x.grad.float(), slopes.float() @ head.bfloat16().float(), atol=0.1, rtol=0.02)
    torch.testing.assert_close(weight.grad, slopes.float().t() @ hidden.bfloat16().float(), atol=0.1, rtol=0.02)


def test_no_tokens_have_no_logprobs() -> None:
    hidden, head, ids = example()
    rows = likelihood(hidden[:0].requires_grad_(), head, ids[:0], 1.0)
    assert [row.shape for row in rows] == [(0,), (0,)]


def test_logits_of_sixteen_bit_factors_are_not_rounded() -> None:
    """Logits near 30 would be rounded to the next eighth; only the factors may be rounded."""
    hidden, head, ids = example()
    hidden, head = (12 * hidden).bfloat16(), head.bfloat16()
    wide = (hidden.double() @ head.double().t()).log_softmax(-1)
    result, _ = likelihood(hidden, head.float(), ids, 1.0)
    assert float((hidden.double() @ head.double().t()).abs().max()) > 30
    torch.testing.assert_close(result.double(), wide.gather(-1, ids.unsqueeze(-1)).squeeze(-1), atol=1e-4, rtol=0)
