"""Noise, truncation and sampling, on distributions small enough to compute by hand."""

import math

import numpy as np
import pytest
import torch

from roll.engines.native.sampling import _LOGIT_BYTES as LOGIT_BYTES
from roll.engines.native.sampling import draw, noise_key, restrict, score, uniforms
from roll.types import Sampling

HALVES = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log()


def noise(keys: int, positions: int, seed: int = 0) -> np.ndarray:
    """[keys, positions] numbers."""
    names = np.array([noise_key(seed, number) for number in range(keys)], np.uint64)
    return uniforms(np.repeat(names, positions), np.tile(np.arange(positions, dtype=np.uint64), keys))


def test_noise_lies_in_the_unit_interval_and_never_repeats() -> None:
    result = noise(200, 100)
    assert result.min() >= 0 and result.max() < 1
    assert len(np.unique(result)) == 20_000
    assert abs(result.mean() - 0.5) < 0.01
    assert abs(np.corrcoef(result[:-1], result[1:])[0, 1]) < 0.03


def test_noise_depends_only_on_key_and_position() -> None:
    keys, positions = np.array([5, 9, 5], np.uint64), np.array([0, 1, 2], np.uint64)
    whole = uniforms(keys, positions)
    for at in range(3):
        assert uniforms(keys[at : at + 1], positions[at : at + 1])[0] == whole[at]


def test_keys_with_different_parts_differ() -> None:
    assert noise_key(1, "a", 2) == noise_key(1, "a", 2)
    assert len({noise_key(1, 23), noise_key(12, 3), noise_key(123), noise_key(1, 2, 3), noise_key("1", "", 23)}) == 5


def test_top_k_keeps_the_k_likeliest_and_renormalises_their_logprobs() -> None:
    retained = restrict(HALVES, Sampling(top_k=2)).softmax(-1)
    torch.testing.assert_close(retained, torch.tensor([[2 / 3, 1 / 3, 0, 0]]))


def test_top_p_keeps_the_fewest_that_reach_p() -> None:
    torch.testing.assert_close(restrict(HALVES, Sampling(top_p=0.6)).softmax(-1), torch.tensor([[2 / 3, 1 / 3, 0, 0]]))
    torch.testing.assert_close(restrict(HALVES, Sampling(top_p=0.4)).softmax(-1), torch.tensor([[1.0, 0, 0, 0]]))


def test_top_p_applies_after_top_k() -> None:
    # top-k 2 leaves 2/3 and 1/3: the first alone reaches 0.6, but did not before the cut.
    both = restrict(HALVES, Sampling(top_k=2, top_p=0.6)).softmax(-1)
    torch.testing.assert_close(both, torch.tensor([[1.0, 0, 0, 0]]))


def test_temperature_divides_logits() -> None:
    # Squared and normalised: 4/16, 1/16, 1/64, 1/64 over their sum 22/64.
    cold = restrict(HALVES, Sampling(temperature=0.5)).softmax(-1)
    torch.testing.assert_close(cold, torch.tensor([[16, 4, 1, 1]]) / 22)


def test_equal_logits_are_cut_by_index_so_trainer_and_generator_agree() -> None:
    retained = restrict(torch.zeros(1, 4), Sampling(top_k=2))
    assert torch.isfinite(retained).tolist() == [[True, True, False, False]]


def test_a_sampled_token_is_never_excluded_when_it_is_scored() -> None:
    retained = restrict(HALVES, Sampling(top_k=1), keep=torch.tensor([3]))
    torch.testing.assert_close(retained.softmax(-1), torch.tensor([[0.8, 0, 0, 0.2]]))


def test_drawing_inverts_the_cumulative_distribution() -> None:
    at = torch.tensor([0.0, 0.49, 0.51, 0.74, 0.76, 0.99], dtype=torch.float64)
    ids, logprobs = draw(HALVES.expand(6, -1), Sampling(), at)
    assert ids.tolist() == [0, 0, 1, 1, 2, 3]
    torch.testing.assert_close(logprobs, torch.tensor([0.5, 0.5, 0.25, 0.25, 0.125, 0.125]).log())


def test_a_drawn_logprob_is_of_the_truncated_distribution() -> None:
    ids, logprobs = draw(HALVES, Sampling(top_k=2), torch.tensor([0.7], dtype=torch.float64))
    assert (ids.item(), logprobs.item()) == (1, pytest.approx(math.log(1 / 3)))


def test_greedy_takes_the_likeliest_with_its_logprob_at_temperature_one() -> None:
    ids, logprobs = draw(HALVES, Sampling(temperature=0.0), torch.tensor([0.99], dtype=torch.float64))
    assert (ids.item(), logprobs.item()) == (0, pytest.approx(math.log(0.5)))


def test_the_highest_noise_draws_a_token_that_has_a_probability() -> None:
    logits = torch.tensor([[0.0, 0.0, -torch.inf, -torch.inf]])
    ids, _ = draw(logits, Sampling(), torch.tensor([1 - 2.0**-53], dtype=torch.float64))
    assert ids.item() == 1


@pytest.mark.parametrize("kind", [Sampling(), Sampling(temperature=0.7), Sampling(top_k=5), Sampling(top_p=0.8)])
def test_frequencies_are_the_probabilities_and_nothing_outside_is_drawn(kind: Sampling) -> None:
    logits = torch.randn(1, 20, generator=torch.Generator().manual_seed(1)) * 1.5
    expected = restrict(logits, kind).softmax(-1)[0].double()
    num = 40_000
    ids, _ = draw(logits.expand(num, -1), kind, torch.from_numpy(noise(num // 100, 100)))
    counts = torch.bincount(ids, minlength=20).double()
    inside = expected > 0
    assert counts[~inside].sum() == 0
    statistic = ((counts - num * expected)[inside].square() / (num * expected)[inside]).sum()
    free = inside.sum() - 1
    assert statistic < free + 5 * (2 * free).sqrt()


@pytest.mark.slow
def test_scores_in_chunks_equal_those_in_one_piece_and_so_do_their_gradients() -> None:
    noise_of = torch.Generator().manual_seed(0)
    vocab, num = 2**20, 18  # logits of 16 such tokens fill a chunk of 64 MiB
    assert LOGIT_BYTES // (4 * vocab) < num
    hidden, head = torch.randn(num, 2, generator=noise_of), torch.randn(vocab, 2, generator=noise_of)
    ids = torch.randint(0, vocab, (num,), generator=noise_of)
    result = []
    for function in (
        lambda h, w: score(h, w, ids, Sampling())[0],
        lambda h, w: (h @ w.T).log_softmax(-1)[range(num), ids],
    ):
        h, w = hidden.clone().requires_grad_(), head.clone().requires_grad_()
        row = function(h, w)
        (row * torch.arange(num)).sum().backward()
        result.append((row, h.grad, w.grad))
    for mine, plain in zip(*result, strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-4, atol=1e-5)


def test_entropy_is_of_the_distribution_sampled_from() -> None:
    # Head row i is log p_i, the hidden state is one: logits are the log probabilities.
    head = HALVES.T.contiguous()
    _, entropies = score(torch.ones(1, 1), head, torch.tensor([0]), Sampling())
    assert entropies.item() == pytest.approx(0.5 * math.log(2) + 0.25 * math.log(4) + 0.25 * math.log(8))
    _, cut = score(torch.ones(1, 1), head, torch.tensor([0]), Sampling(top_k=2))
    assert cut.item() == pytest.approx(math.log(3) - 2 / 3 * math.log(2))
