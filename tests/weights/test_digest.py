"""A digest depends on the weights and not on their layout."""

import pytest
import torch

from roll.weights.digest import Digest, StreamingDigest, digest

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


def test_the_squares_detect_a_change_that_leaves_the_sum_equal() -> None:
    changed = ONE.clone()
    bits = changed.view(torch.int32)
    bits[0, 0] += 1
    bits[0, 1] -= 1
    assert digest([changed]).sums["torch.float32"][0] == digest([ONE]).sums["torch.float32"][0]
    assert digest([changed]) != digest([ONE])


def test_an_even_number_of_changed_signs_is_not_detected() -> None:
    # The canary detects them where they change the logprobs.
    changed = ONE.clone()
    changed[0, :2] *= -1
    assert digest([changed]) == digest([ONE])
    changed[0, 2] *= -1
    assert digest([changed]) != digest([ONE])


def test_each_dtype_has_its_own_sums() -> None:
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


def test_a_streaming_digest_covers_the_copies() -> None:
    arriving = {"a": ONE, "b": TWO.t(), "tied, without a target": ONE}
    targets = {"a": torch.zeros(6, 4), "b": torch.zeros(4, 10)}
    with StreamingDigest(torch.device("cpu")) as streaming:
        for name, tensor in streaming.watch(arriving.items(), targets):
            if name in targets:
                targets[name].copy_(tensor)
        result = streaming.digest()
    assert result == digest([ONE, TWO]) == digest(targets.values())


def test_a_streaming_digest_detects_a_wrong_copy_of_a_right_tensor() -> None:
    targets = {"a": torch.zeros(6, 4)}
    with StreamingDigest(torch.device("cpu")) as streaming:
        for _, tensor in streaming.watch([("a", ONE)], targets):
            targets["a"].copy_(tensor)
            targets["a"][3, 2] = 0.0
        result = streaming.digest()
    assert result != digest([ONE]) and result == digest(targets.values())
