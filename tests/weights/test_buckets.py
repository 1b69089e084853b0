"""Tensors in buckets: each comes out as it went in, and no bucket is larger than it may be."""

import json
from dataclasses import astuple

import torch

from roll.weights.buckets import Entry, buckets, size_of


def given() -> list[tuple[str, torch.Tensor]]:
    noise = torch.Generator().manual_seed(0)
    whole = torch.randn(30, 20, generator=noise)
    return [
        ("turned", whole.t()),
        ("a part", whole[:, :7]),
        ("narrow", torch.randn(33, generator=noise).bfloat16()),
        ("large", torch.randn(40, 40, generator=noise)),
        ("one", torch.tensor(3.0)),
        ("wide", torch.randn(5, 3, generator=noise).double()),
    ]


def test_every_tensor_comes_out_as_it_went_in() -> None:
    found: dict[str, torch.Tensor] = {}
    for bucket in buckets(given(), 4096):
        memory = torch.zeros(size_of(bucket), dtype=torch.uint8)
        for entry, lying in bucket:
            entry.within(memory).copy_(lying)
        for text in [json.dumps(astuple(entry)) for entry, _ in bucket]:  # as it travels
            entry = Entry(*json.loads(text))
            found[entry.name] = entry.tensor(memory).clone()
    assert list(found) == [name for name, _ in given()]
    for name, tensor in given():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)


def test_a_bucket_is_never_too_large_unless_one_tensor_is() -> None:
    cut = [[entry.name for entry, _ in bucket] for bucket in buckets(given(), 4096)]
    # 2,400 bytes turned and 840 of a part, 66 narrow ones after them; 6,400 fit nowhere; 4 and 120.
    assert cut == [["turned", "a part", "narrow"], ["large"], ["one", "wide"]]
    assert [size_of(bucket) for bucket in buckets(given(), 4096)] == [3584 + 66, 6400, 256 + 120]


def test_nothing_makes_no_bucket() -> None:
    assert list(buckets([], 4096)) == []
