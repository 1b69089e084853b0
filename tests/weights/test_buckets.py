"""Packing tensors into buckets."""

import json
from dataclasses import astuple

import torch

from roll.weights.buckets import Entry, buckets, size_of


def tensors() -> list[tuple[str, torch.Tensor]]:
    noise = torch.Generator().manual_seed(0)
    whole = torch.randn(30, 20, generator=noise)
    return [
        ("transposed", whole.t()),
        ("slice", whole[:, :7]),
        ("narrow", torch.randn(33, generator=noise).bfloat16()),
        ("large", torch.randn(40, 40, generator=noise)),
        ("one", torch.tensor(3.0)),
        ("wide", torch.randn(5, 3, generator=noise).double()),
    ]


def test_every_tensor_is_unpacked_as_it_was_packed() -> None:
    unpacked: dict[str, torch.Tensor] = {}
    for bucket in buckets(tensors(), 4096):
        memory = torch.zeros(size_of(bucket), dtype=torch.uint8)
        for entry, tensor in bucket:
            entry.stored(memory).copy_(tensor)
        for text in [json.dumps(astuple(entry)) for entry, _ in bucket]:  # as it is sent
            entry = Entry(*json.loads(text))
            unpacked[entry.name] = entry.tensor(memory).clone()
    assert list(unpacked) == [name for name, _ in tensors()]
    for name, tensor in tensors():
        assert unpacked[name].dtype == tensor.dtype and torch.equal(unpacked[name], tensor)


def test_a_bucket_exceeds_its_size_only_for_a_single_large_tensor() -> None:
    cut = [[entry.name for entry, _ in bucket] for bucket in buckets(tensors(), 4096)]
    # 2,400 bytes transposed and 840 of slice, 66 narrow ones after them; 6,400 fit nowhere; 4 and 120.
    assert cut == [["transposed", "slice", "narrow"], ["large"], ["one", "wide"]]
    assert [size_of(bucket) for bucket in buckets(tensors(), 4096)] == [3584 + 66, 6400, 256 + 120]


def test_no_tensors_make_no_bucket() -> None:
    assert list(buckets([], 4096)) == []
