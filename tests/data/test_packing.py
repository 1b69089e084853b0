"""Micro-batches that keep their budget by construction."""

import random

import pytest

from roll.data.collate import pack


def tokens(packed: list[list[int]], lengths: list[int]) -> list[int]:
    return [sum(lengths[row] for row in rows) for rows in packed]


def test_no_micro_batch_exceeds_its_budget_and_no_row_is_lost():
    random_source = random.Random(0)
    for _ in range(400):
        budget = random_source.randint(8, 200)
        lengths = [random_source.randint(1, budget) for _ in range(random_source.randint(0, 60))]
        multiple = random_source.choice([1, 1, 2, 3, 8])
        packed = pack(lengths, budget, multiple=multiple)
        assert sorted(row for rows in packed for row in rows) == list(range(len(lengths)))
        assert all(total <= budget for total in tokens(packed, lengths))
        assert len(packed) % multiple == 0
        assert len(packed) < 2 * sum(lengths) / budget + 1 + multiple


def test_gaps_after_long_rows_are_filled_before_a_new_micro_batch():
    assert len(pack([6, 6, 6, 4, 4, 4], 10)) == 3  # neighbours alone would need five
    assert tokens(pack([6, 6, 6, 4, 4, 4], 10), [6, 6, 6, 4, 4, 4]) == [10, 10, 10]


def test_micro_batches_are_balanced_by_tokens():
    assert sorted(tokens(pack([5] * 12, 50), [5] * 12)) == [30, 30]  # filled one by one they would be 50 and 10
    lengths = [9, 8, 7, 3, 2, 1]
    assert sorted(tokens(pack(lengths, 20), lengths)) == [13, 17]


def test_rows_of_similar_length_are_together_if_that_needs_no_further_micro_batch():
    assert pack([1, 9, 1, 9, 1, 9, 1, 1, 1, 1, 1, 1], 27) == [[1, 3], [5, 0, 2, 4, 6, 7, 8, 9, 10, 11]]


def test_every_rank_gets_the_same_number_of_micro_batches():
    packed = pack([4] * 6, 12, multiple=4)
    assert sorted(map(len, packed)) == [1, 1, 2, 2]


def test_ranks_without_a_row_get_an_empty_micro_batch():
    assert pack([4, 3], 12, multiple=4) == [[0], [1], [], []]
    assert pack([], 12, multiple=2) == []


def test_a_row_longer_than_the_budget_fails_an_assertion():
    with pytest.raises(AssertionError, match="a row of 13 tokens exceeds the micro-batch budget of 12"):
        pack([4, 13], 12)


def test_families_are_together_even_if_that_needs_one_more_micro_batch():
    lengths = [9, 2, 8, 3, 9, 2, 8, 3]
    assert pack(lengths, 22, families=[0, 1, 2, 3, 0, 1, 2, 3]) == [[0, 4], [1, 5, 2], [6, 3, 7]]
    assert [0, 4] not in pack([8, 2, 8, 3, 9, 2, 8, 3], 22)
    assert pack([10, 12, 10, 12], 22, families=[0, 1, 0, 1]) == [[0, 2], [1], [3]]


def test_families_are_split_if_they_would_need_more_than_one_further_micro_batch():
    lengths = [12, 12, 12, 12, 10, 10, 10, 10]
    assert len(pack(lengths, 22, families=list(range(8)))) == 4
