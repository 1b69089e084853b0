"""A fingerprint that layout does not change and weights do."""

import torch

from roll.types import Digest
from roll.weights.digest import digest

NOISE = torch.Generator().manual_seed(0)
ONE, TWO = torch.randn(6, 4, generator=NOISE), torch.randn(10, 4, generator=NOISE)


def test_a_digest_is_the_sum_of_bit_patterns_and_of_their_squares() -> None:
    # fp32 1.0 is 0x3f800000, 2.0 is 0x40000000, -0.0 is -2^31 as a signed integer.
    one, two, minus = 0x3F800000, 0x40000000, -(2**31)
    expected = ((one + two + minus) % 2**64, (one**2 + two**2 + minus**2) % 2**64)
    assert digest([torch.tensor([1.0, 2.0, -0.0])]) == Digest({"torch.float32": expected})


def test_fusing_splitting_order_and_zero_padding_change_nothing() -> None:
    expected = digest([ONE, TWO])
    assert digest([torch.cat([ONE, TWO])]) == expected
    assert digest([*TWO.split(3), *ONE.unbind(1)]) == expected
    assert digest([TWO, ONE]) == expected
    assert digest([torch.cat([ONE, torch.zeros(2, 4)]), TWO.T]) == expected


def test_one_bit_of_one_weight_changes_it() -> None:
    for bit in (0, 1, 22, 23, 30, 31):
        changed = ONE.clone()
        changed.view(torch.int32)[3, 2] ^= torch.tensor(1 << bit if bit < 31 else -(2**31), dtype=torch.int32)
        assert digest([changed, TWO]) != digest([ONE, TWO])


def test_a_change_that_leaves_the_sum_alone_is_seen_by_the_squares() -> None:
    changed = ONE.clone()
    bits = changed.view(torch.int32)
    bits[0, 0] += 1
    bits[0, 1] -= 1
    assert digest([changed]).sums["torch.float32"][0] == digest([ONE]).sums["torch.float32"][0]
    assert digest([changed]) != digest([ONE])


def test_kinds_of_numbers_are_counted_apart() -> None:
    both = digest([ONE, ONE.to(torch.bfloat16)])
    assert set(both.sums) == {"torch.float32", "torch.bfloat16"}
    assert both.sums["torch.float32"] == digest([ONE]).sums["torch.float32"]


def test_sums_wrap_modulo_two_to_the_sixty_fourth() -> None:
    # Four times (2^31)^2 is 2^64: nothing is left of it.
    assert digest([torch.full((4,), -0.0)]).sums["torch.float32"] == ((-4 * 2**31) % 2**64, 0)
