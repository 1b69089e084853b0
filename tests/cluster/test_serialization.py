"""What goes to another process, and comes out of it there."""

import numpy as np
import pytest
import torch

from roll.cluster.serialization import Parcel, packed, unpacked
from roll.errors import UnknownName
from roll.types import Call


def there(found: object) -> object:
    """What the other side has: it sees the contents of arrays, and may not write them."""
    parcel = packed(found)
    buffers = [buffer.copy() for buffer in parcel.buffers]
    for buffer in buffers:
        buffer.flags.writeable = False
    return unpacked(Parcel(parcel.head, tuple(buffers)))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.int32])
def test_a_tensor_arrives_with_its_kind_and_shape_and_may_be_written(kind: torch.dtype) -> None:
    sent = torch.arange(6).reshape(2, 3).to(kind)
    found = there(sent.t())
    assert isinstance(found, torch.Tensor) and found.dtype is kind and torch.equal(found, sent.t())
    found[0, 0] = 1
    assert sent[0, 0] == 0


def test_tensors_without_numbers_and_without_dimensions_arrive() -> None:
    assert torch.equal(there(torch.zeros(0, 3)), torch.zeros(0, 3))  # type: ignore[arg-type]
    assert torch.equal(there(torch.tensor(2.5)), torch.tensor(2.5))  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [3, 100_000])
def test_an_array_arrives_and_may_be_written_whatever_its_size(size: int) -> None:
    sent = np.arange(size, dtype=np.float32)
    found, tensor = there((sent, torch.from_numpy(np.arange(size))))  # type: ignore[misc]
    assert np.array_equal(found, sent)
    found[0], tensor[0] = 7, 7
    assert sent[0] == 0


def test_the_contents_of_large_arrays_are_not_copied_into_the_pickle() -> None:
    rows, tensor = np.zeros(10_000, np.float32), torch.zeros(10_000)
    parcel = packed({"rows": rows, "tensor": tensor})
    assert len(parcel.head) < 1_000 and parcel.num_bytes > 80_000
    assert any(np.shares_memory(buffer, rows) for buffer in parcel.buffers)


def test_records_and_errors_arrive_as_they_were() -> None:
    assert there((Call("a:b", {"c": 1}), [1.5, None])) == (Call("a:b", {"c": 1}), [1.5, None])
    error = there(UnknownName("reward", "maths", ["math"]))
    assert isinstance(error, UnknownName) and "did you mean 'math'" in str(error)


def test_functions_travel_by_name_or_not_at_all() -> None:
    assert there(packed) is packed
    with pytest.raises(TypeError, match="cannot be sent to another process"):
        packed(lambda: 1)
