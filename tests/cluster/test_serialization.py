"""Objects sent to another process arrive equal, and writable."""

import numpy as np
import pytest
import torch

from roll.cluster.serialization import Payload, pack, unpack
from roll.errors import UnknownName
from roll.types import Spec


def transfer(value: object) -> object:
    """The received copy; the sent buffers are read-only."""
    payload = pack(value)
    buffers = [buffer.copy() for buffer in payload.buffers]
    for buffer in buffers:
        buffer.flags.writeable = False
    return unpack(Payload(payload.head, tuple(buffers)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.int32])
def test_a_tensor_arrives_with_its_dtype_and_shape_and_is_writable(dtype: torch.dtype) -> None:
    sent = torch.arange(6).reshape(2, 3).to(dtype)
    received = transfer(sent.t())
    assert isinstance(received, torch.Tensor) and received.dtype is dtype and torch.equal(received, sent.t())
    received[0, 0] = 1
    assert sent[0, 0] == 0


def test_tensors_without_numbers_and_without_dimensions_arrive() -> None:
    assert torch.equal(transfer(torch.zeros(0, 3)), torch.zeros(0, 3))  # type: ignore[arg-type]
    assert torch.equal(transfer(torch.tensor(2.5)), torch.tensor(2.5))  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [3, 100_000])
def test_an_array_of_any_size_arrives_and_is_writable(size: int) -> None:
    sent = np.arange(size, dtype=np.float32)
    received, tensor = transfer((sent, torch.from_numpy(np.arange(size))))  # type: ignore[misc]
    assert np.array_equal(received, sent)
    received[0], tensor[0] = 7, 7
    assert sent[0] == 0


def test_the_contents_of_large_arrays_are_not_copied_into_the_pickle() -> None:
    rows, tensor = np.zeros(10_000, np.float32), torch.zeros(10_000)
    payload = pack({"rows": rows, "tensor": tensor})
    assert len(payload.head) < 1_000 and payload.num_bytes > 80_000
    assert any(np.shares_memory(buffer, rows) for buffer in payload.buffers)


def test_records_and_errors_arrive_as_they_were() -> None:
    assert transfer((Spec("a:b", {"c": 1}), [1.5, None])) == (Spec("a:b", {"c": 1}), [1.5, None])
    error = transfer(UnknownName("reward", "maths", ["math"]))
    assert isinstance(error, UnknownName) and "did you mean 'math'" in str(error)


def test_functions_are_sent_by_name_or_refused() -> None:
    assert transfer(pack) is pack
    with pytest.raises(TypeError, match="cannot be sent to another process"):
        pack(lambda: 1)
