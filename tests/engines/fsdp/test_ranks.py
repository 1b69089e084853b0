"""Positions of ranks in their groups, and the error for a lost rank; no process is started here."""

import pytest
import torch.distributed as dist

from roll.engines.fsdp.model import ShardedDecoder
from roll.engines.fsdp.ranks import ParallelLayout, Ranks
from roll.errors import ConfigError, WorkerDied
from tests.engines.models import config


def ranks(size: int, rank: int = 0, *, tp: int = 1, cp: int = 1) -> Ranks:
    return Ranks(ParallelLayout(url="file:///nowhere", size=size, tp=tp, cp=cp), rank)


def test_ranks_that_share_rows_are_adjacent() -> None:
    result = [ranks(8, rank, tp=2, cp=2) for rank in range(8)]
    assert [each.dp_rank for each in result] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [each.cp_rank for each in result] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [each.tp_rank for each in result] == [0, 1, 0, 1, 0, 1, 0, 1]
    assert [each.shard for each in result] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert result[0].layout.dp == 2


def test_a_model_that_is_not_divisible_is_refused() -> None:
    with pytest.raises(ConfigError, match="3 do not divide into groups of tp 2 times cp 1"):
        ranks(3, tp=2)
    with pytest.raises(ConfigError, match="2 key and value heads are not divisible by tp 2 times cp 2"):
        ShardedDecoder(config(), ranks(4, tp=2, cp=2))
    with pytest.raises(ConfigError, match="an MLP of width 63 is not divisible by 2"):
        ShardedDecoder(config(intermediate_size=63), ranks(2, tp=2))


def test_slices_of_tokens_are_equal_and_cover_all() -> None:
    decoders = [ShardedDecoder(config(), ranks(2, rank, cp=2)) for rank in range(2)]
    assert [decoder.slice_of(7) for decoder in decoders] == [(0, 4), (4, 4)]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[pair.cc:547] gloo: Connection closed by peer [127.0.0.1]:1"),
        dist.DistNetworkError("timed out\nand more"),
    ],
)
def test_a_lost_rank_is_a_worker_death_in_one_line(error: Exception) -> None:
    message = r"actor_train 1: lost another rank during an update \(.*\); see"
    with pytest.raises(WorkerDied, match=message) as raised, ranks(2, 1).blame_peers("an update"):
        raise error
    assert "\n" not in str(raised.value)


def test_other_errors_are_not_converted() -> None:
    with pytest.raises(RuntimeError, match="out of memory"), ranks(2).blame_peers("an update"):
        raise RuntimeError("out of memory")
