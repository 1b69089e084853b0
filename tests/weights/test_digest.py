"""A fingerprint that layout does not change and weights do."""

import pytest
import torch

from roll.types import Digest
from roll.weights.digest import Folding, digest

NOISE = torch.Generator().manual_seed(0)
ONE, TWO = torch.randn(6, 4, generator=NOISE), torch.randn(10, 4, generator=NOISE)


def test_a_digest_is_the_sum_of_bit_patterns_and_of_their_squares() -> None:
    # fp32 1.0 is 0x3f800000, 2.0 is 0x40000000, -0.0 is 0x80000000.
    one, two, minus = 0x3F800000, 0x40000000, 0x80000000
    expected = ((one + two + minus) % 2**32, (one**2 + two**2 + minus**2) % 2**32)
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


def test_what_it_cannot_see_is_an_even_number_of_signs() -> None:
    # The canary does, where such a model says other things.
    changed = ONE.clone()
    changed[0, :2] *= -1
    assert digest([changed]) == digest([ONE])
    changed[0, 2] *= -1
    assert digest([changed]) != digest([ONE])


def test_kinds_of_numbers_are_counted_apart() -> None:
    both = digest([ONE, ONE.to(torch.bfloat16)])
    assert set(both.sums) == {"torch.float32", "torch.bfloat16"}
    assert both.sums["torch.float32"] == digest([ONE]).sums["torch.float32"]


def by_hand(bits: torch.Tensor) -> tuple[int, int]:
    numbers = bits.tolist()
    return sum(numbers) % 2**32, sum(number * number for number in numbers) % 2**32


@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 1025, 32_768, 32_769, 70_001])
@pytest.mark.parametrize(
    ("least", "most"), [(-(2**31), 2**31), (-(2**31), -(2**31) + 1), (2**31 - 1, 2**31), (2**30, 2**30 + 2**20)]
)
def test_any_number_of_any_bits_is_summed_exactly(size: int, least: int, most: int) -> None:
    bits = torch.randint(least, most, (size,), generator=NOISE, dtype=torch.int64).to(torch.int32)
    assert digest([bits.view(torch.float32)]).sums.get("torch.float32", (0, 0)) == by_hand(bits)


@pytest.mark.parametrize(
    ("kind", "dtype"), [(torch.int16, torch.bfloat16), (torch.int8, torch.int8), (torch.int64, torch.float64)]
)
def test_numbers_of_other_sizes_are_summed_exactly(kind: torch.dtype, dtype: torch.dtype) -> None:
    info = torch.iinfo(kind)
    bits = torch.randint(info.min, info.max, (70_001,), generator=NOISE, dtype=kind)
    bits[:2] = torch.tensor([info.min, info.max])
    words = bits.view(torch.int32) if kind is torch.int64 else bits
    assert digest([bits.view(dtype)]).sums[str(dtype)] == by_hand(words)


def test_what_is_folded_beside_a_delivery_is_what_was_made_of_it() -> None:
    coming = {"a": ONE, "b": TWO.t(), "tied, and not held": ONE}
    held = {"a": torch.zeros(6, 4), "b": torch.zeros(4, 10)}
    with Folding() as folding:
        for name, tensor in folding.landing(coming.items(), held):
            if name in held:
                held[name].copy_(tensor)
        found = folding.digest()
    assert found == digest([ONE, TWO]) == digest(held.values())


def test_a_copy_that_went_wrong_is_in_the_digest_although_what_came_was_right() -> None:
    held = {"a": torch.zeros(6, 4)}
    with Folding() as folding:
        for _, tensor in folding.landing([("a", ONE)], held):
            held["a"].copy_(tensor)
            held["a"][3, 2] = 0.0
        found = folding.digest()
    assert found != digest([ONE]) and found == digest(held.values())
