"""Cutting a batch into micro-batches. No micro-batch ever exceeds the budget: rows are only put where they fit."""

from __future__ import annotations

from collections.abc import Sequence


def pack(
    lengths: Sequence[int], budget: int, *, multiple: int = 1, families: Sequence[int] | None = None
) -> list[list[int]]:
    """Micro-batches of row indices: each row in exactly one, at most `budget` tokens each, few and alike in tokens.

    Rows of similar length go together where that costs no further micro-batch, since attention pads within one. With
    `multiple` their number is a multiple of it, so that as many data-parallel ranks get equally many; where there are
    too few rows for that, the last ones are empty. With `families`, a number for each row, those of one family go
    together instead, even where that costs one more. The result depends on nothing but the arguments.
    """
    longest = max(lengths, default=0)
    assert longest <= budget, f"a row of {longest} tokens exceeds the micro-batch budget of {budget}"
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    fewest = _first_fit(order, lengths, budget)
    size = -(-len(fewest) // multiple) * multiple
    if families is not None:
        near = sorted(range(len(lengths)), key=lambda row: (families[row], row))
        for enough in (size, size + multiple):
            if (packed := _neighbours(near, lengths, budget, enough)) is not None:
                return _split_to(packed, lengths, enough)
    for packed in (_neighbours(order, lengths, budget, size), _levelled(order, lengths, budget, size)):
        if packed is not None:
            return _split_to(packed, lengths, size)
    return _split_to(fewest, lengths, size)


def _first_fit(order: Sequence[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    """First-fit decreasing: at most 11/9 of the fewest bins there could be, and one."""
    bins: list[list[int]] = []
    room: list[int] = []
    for row in order:
        place = next((i for i, free in enumerate(room) if lengths[row] <= free), None)
        if place is None:
            place = len(bins)
            bins.append([])
            room.append(budget)
        bins[place].append(row)
        room[place] -= lengths[row]
    return bins


def _neighbours(order: Sequence[int], lengths: Sequence[int], budget: int, size: int) -> list[list[int]] | None:
    """The sorted rows cut into at most `size` runs, the fullest as small as can be; None if that breaks the budget."""
    if len(_runs(order, lengths, budget)) > size:
        return None
    low, high = max((lengths[row] for row in order), default=0), budget
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(_runs(order, lengths, middle)) <= size else (middle + 1, high)
    return _runs(order, lengths, low)


def _runs(order: Sequence[int], lengths: Sequence[int], most: int) -> list[list[int]]:
    runs: list[list[int]] = []
    free = -1
    for row in order:
        if lengths[row] > free:
            runs.append([])
            free = most
        runs[-1].append(row)
        free -= lengths[row]
    return runs


def _levelled(order: Sequence[int], lengths: Sequence[int], budget: int, size: int) -> list[list[int]] | None:
    """Longest row first, each into the emptiest of `size` bins; None if one does not fit there."""
    bins: list[list[int]] = [[] for _ in range(size)]
    filled = [0] * size
    for row in order:
        place = min(range(size), key=filled.__getitem__)
        if filled[place] + lengths[row] > budget:
            return None
        bins[place].append(row)
        filled[place] += lengths[row]
    return bins


def _split_to(packed: list[list[int]], lengths: Sequence[int], size: int) -> list[list[int]]:
    """`size` bins: the fullest one with two rows is halved again and again; empty ones once no row can be parted."""
    bins = [list(rows) for rows in packed if rows]
    while len(bins) < size:
        place = max(
            range(len(bins)), key=lambda i: (len(bins[i]) > 1, sum(lengths[row] for row in bins[i])), default=None
        )
        if place is None or len(bins[place]) < 2:
            return bins + [[] for _ in range(size - len(bins))]
        rows = bins[place]
        bins[place : place + 1] = [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    return bins
